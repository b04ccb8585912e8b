//! `docs/kernels.md`: what came of the boots.

use std::{fmt::Write, fs};

use anyhow::Result;

use super::Outcome;
use crate::paths;

const HEAD: &str = "# Other kernels

Written by `cargo xtask kernels`, which boots kernels of Debian in an emulator, with a release build of the agent. Each boot runs `doctor`, has
checksummed streams carried by each engine of the splice, and has two connections read from copies: one that begins under its rule, and one that
was there before the agent. The tests run on 6.18. Nothing runs the tap on 5.15: its verifier has no `bpf_loop`, which the meter needs (5.17), so
`doctor` says that the path `observe` is off, and rules that would tap have their flows come to the agent.

| kernel | engines that carried | tapped: attached, copied | running connections adopted |
| --- | --- | --- | --- |
";

/// Writes the page.
pub(super) fn write(outcomes: &[Outcome]) -> Result<()> {
    Ok(fs::write(
        paths::root().join("docs/kernels.md"),
        of(outcomes),
    )?)
}

/// The page's text.
pub(super) fn of(outcomes: &[Outcome]) -> String {
    let mut page = HEAD.to_owned();
    for outcome in outcomes {
        let good = outcome.engines.iter().filter(|one| one.code == "0");
        let engines: Vec<&str> = good.map(|one| one.engine.as_str()).collect();
        let reasons = outcome.not_adopted.iter();
        let reasons: Vec<String> = reasons.map(|why| format!("`{why}`")).collect();
        let adopted = match (outcome.adopted, reasons.as_slice()) {
            (0, []) => "no".to_owned(),
            (0, reasons) => format!("no: {}", reasons.join(", ")),
            (requests, _) => format!("yes, {requests} requests told"),
        };
        let tapped = match outcome.tapped {
            0 => "no".to_owned(),
            requests => format!("yes, {requests} requests told"),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            page,
            "| {} | {} | {tapped} | {adopted} |",
            outcome.kernel,
            engines.join(", "),
        );
    }
    page
}
