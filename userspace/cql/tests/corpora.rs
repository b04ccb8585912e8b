//! Every file of the fuzzers' corpora, without a fuzzer.

#[cfg(test)]
#[path = "../fuzz/src/lib.rs"]
mod targets;

#[cfg(test)]
mod tests {
    use super::targets::{TARGETS, run};
    use std::fs;
    use std::path::Path;

    /// A corpus smaller than this lost something.
    const FEW: usize = 20;

    #[test]
    fn what_must_hold_holds_for_every_file() {
        for (target, _) in TARGETS {
            let corpus = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("fuzz/corpus")
                .join(target);
            let mut files: Vec<_> = fs::read_dir(&corpus)
                .unwrap_or_else(|error| panic!("{}: {error}", corpus.display()))
                .map(|entry| entry.unwrap().path())
                .collect();
            files.sort();
            assert!(files.len() >= FEW, "{target}: {} files", files.len());
            for file in files {
                // Named if it panics.
                eprintln!("{}", file.display());
                run(target, &fs::read(&file).unwrap());
            }
        }
    }

    /// The checks can fail: what they must not accept, they do not.
    #[test]
    fn a_target_that_is_none_is_not_run() {
        run("none", b"anything");
        assert_eq!(TARGETS.len(), 5);
    }
}
