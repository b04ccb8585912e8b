//! `docs/kernels.md`: what came of the boots.

use std::{fmt::Write, fs};

use anyhow::Result;

use super::{DRIVERS_REQUESTS, Outcome};
use crate::{paths, processor::Processor};

const HEAD: &str = "# Other kernels

Written by `cargo xtask kernels`, which boots kernels of Debian in an emulator, with a release build whose optimiser does less (`profile.guest`).
Each boot runs `doctor`, has checksummed streams carried by each engine of the splice, has two connections read from copies (one that begins under
its rule, and one that was there before the agent), has the Rust driver ask the embedded database on three paths (left alone, read from copies, and
through the agent), and runs the demo, at a rate that an emulator can do; its application runs before the agent does, so it cannot be shown where no
running connection is adopted. The tests run on 6.18. Nothing runs the tap on 5.15: its verifier has no `bpf_loop`, which the meter needs (5.17), so
`doctor` says that the path `observe` is off, and rules that would tap have their flows come to the agent.

| kernel | processor | engines that carried | tapped: attached, copied | running connections adopted | a driver's requests answered | the demo |
| --- | --- | --- | --- | --- | --- | --- |
";

/// Writes the rows of a processor into the page; those of others stay.
pub(super) fn write(processor: Processor, outcomes: &[Outcome]) -> Result<()> {
    let file = paths::root().join("docs/kernels.md");
    let before = fs::read_to_string(&file).unwrap_or_default();
    Ok(fs::write(file, of(processor.arch, outcomes, &before))?)
}

/// The page's text.
pub(super) fn of(arch: &str, outcomes: &[Outcome], before: &str) -> String {
    let mut rows = String::new();
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
        let all = outcome.drivers.iter();
        let answered: Vec<&str> = all
            .filter(|one| one.answered == DRIVERS_REQUESTS)
            .map(|one| one.path.as_str())
            .collect();
        let demo = match &outcome.demo {
            Some(demo) if demo.holds() => format!("all {} checks", demo.made),
            // Nothing was checked, for there was nothing to show.
            Some(demo) if demo.made == 0 && outcome.adopted == 0 => {
                "no: nothing adopted".to_owned()
            }
            Some(demo) => format!("no: {} of {} checks", demo.held, demo.made),
            None => "not run".to_owned(),
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            rows,
            "| {} | {arch} | {} | {tapped} | {adopted} | {} | {demo} |",
            outcome.kernel,
            engines.join(", "),
            answered.join(", "),
        );
    }
    let others = before.lines().filter(|line| {
        let mut cells = line.split('|').map(str::trim).skip(2);
        let theirs = cells.next().unwrap_or_default();
        line.starts_with("| ") && theirs != arch && ["amd64", "arm64"].contains(&theirs)
    });
    let mut all: Vec<&str> = rows.lines().chain(others).collect();
    all.sort_unstable();
    format!("{HEAD}{}\n", all.join("\n"))
}
