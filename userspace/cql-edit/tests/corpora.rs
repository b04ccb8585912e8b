//! Every input of the fuzzers' corpora, without a fuzzer.

#[cfg(test)]
#[path = "../fuzz/src/lib.rs"]
mod targets;

#[cfg(test)]
mod tests {
    use super::targets::{TARGETS, run};
    use std::path::Path;

    /// A corpus smaller than this lost something.
    const FEW: usize = 20;

    #[test]
    fn what_must_hold_holds_for_every_input() {
        for (target, _) in TARGETS {
            let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(format!("{target}.tar.gz"));
            let inputs = corpus::read(&archive)
                .unwrap_or_else(|error| panic!("{}: {error}", archive.display()));
            assert!(inputs.len() >= FEW, "{target}: {} inputs", inputs.len());
            for (name, input) in inputs {
                // Named if it panics.
                eprintln!("{target}: {name}");
                run(target, &input);
            }
        }
    }

    /// The checks can fail: what they must not accept, they do not.
    #[test]
    fn a_target_that_is_none_is_not_run() {
        run("none", b"anything");
        assert_eq!(TARGETS.len(), 1);
    }
}
