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
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
            let inputs = corpus::replay(&folder, target, |input| run(target, input)).unwrap();
            assert!(inputs >= FEW, "{target}: {inputs} inputs");
        }
    }
}
