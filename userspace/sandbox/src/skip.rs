//! Tests that cannot run here: skipped, but never in silence.
//!
//! A skip is a line `SKIP name: reason` in the file that UNDERPASS_SKIPS names, which
//! `cargo xtask test` holds against its list of allowed ones, and on stderr.

use std::{env, fs::OpenOptions, io::Write};

/// Names the file to which skips are appended.
const FILE: &str = "UNDERPASS_SKIPS";
/// Set to `1` where everything that a test can need is provided.
const REQUIRE_ALL: &str = "UNDERPASS_REQUIRE_ALL";

/// Counts a skip of the test `name`: for what a machine may lack, such as a kernel feature.
///
/// # Panics
/// The line cannot be written: a skip that nobody counts is a failure.
#[expect(clippy::panic, reason = "an uncounted skip has to fail its test")]
pub fn skip(name: &str, reason: &str) {
    let line = format!("SKIP {name}: {}\n", reason.replace('\n', " "));
    eprint!("{line}");
    let Some(path) = env::var_os(FILE) else {
        return;
    };
    // One write to a file opened for appending: tests of other processes do so as well.
    let appended = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(line.as_bytes()));
    if let Err(error) = appended {
        panic!("cannot count a skip in {}: {error}", path.display());
    }
}

/// The environment variable `variable`, which names what `cargo xtask test` provides. Without
/// it the test `name` is skipped; where everything is required it fails.
///
/// # Panics
/// It is missing, and UNDERPASS_REQUIRE_ALL is `1`. As [`skip`].
#[expect(clippy::panic, reason = "a full run that lacks something has failed")]
pub fn provided(name: &str, variable: &str) -> Option<String> {
    let value = env::var(variable).ok().filter(|value| !value.is_empty());
    if value.is_none() {
        if env::var(REQUIRE_ALL).is_ok_and(|all| all == "1") {
            panic!("{name} needs {variable}, and {REQUIRE_ALL} is 1");
        }
        skip(
            name,
            &format!("{variable} is not set; `cargo xtask test` sets it"),
        );
    }
    value
}
