//! `docs/kernels.md`: what came of the boots.

use std::{fmt::Write, fs};

use anyhow::Result;

use super::{checks::Verdict, outcome::Outcome};
use crate::{paths, processor::Processor};

const HEAD: &str = "# Other kernels

Written by `cargo xtask kernels`, which boots kernels of Debian in an emulator, with a release build whose optimiser does less (`profile.guest`).
The tests run on 6.18. Each boot runs `doctor`; has the Rust driver ask the embedded database on each path, and the agent say which path the flows are on
and what it has counted of them; has two more connections read from copies (one that begins under its rule, and one that was there before the agent);
has checksummed streams carried by each engine of the splice; has the edge, on the loopback device, let a driver pass to one port and nobody to
another one; and runs the demo, at a rate that an emulator can do. The demo's application runs before the agent does, so it cannot be shown where no running
connection is read. Reasons are the agent's own.

Nothing runs the tap on 5.15: its verifier has no `bpf_loop`, which the meter needs (5.17), so `doctor` says that the path `observe` is off, and rules that
would tap have their flows come to the agent.

The second table of a kernel has what it made of the BPF programs: the instructions that its verifier looked at, each as often as it did so, and the bytes
of machine code.
";

/// Writes the kernels of a processor into the page; those of others stay.
pub(super) fn write(processor: Processor, outcomes: &[Outcome]) -> Result<()> {
    let file = paths::root().join("docs/kernels.md");
    let before = fs::read_to_string(&file).unwrap_or_default();
    Ok(fs::write(file, of(processor.arch, outcomes, &before))?)
}

/// The page's text.
fn of(arch: &str, outcomes: &[Outcome], before: &str) -> String {
    let is_others = |section: &&str| {
        let heading = section.lines().next().unwrap_or_default();
        !heading.ends_with(&format!(", {arch}"))
    };
    let others = before.split("\n## ").skip(1).filter(is_others);
    let others = others.map(|section| format!("{}\n", section.trim_end()));
    let ours = outcomes.iter().map(|outcome| section(arch, outcome));
    let mut sections: Vec<String> = ours.chain(others).collect();
    sections.sort_unstable();
    let sections = sections.iter().map(|section| format!("\n## {section}"));
    format!("{HEAD}{}", sections.collect::<String>())
}

/// A kernel's part of the page, from its heading's text on.
fn section(arch: &str, outcome: &Outcome) -> String {
    let mut text = format!(
        "{}, {arch}\n\n| check | result | seen, or why not |\n| --- | --- | --- |\n",
        outcome.kernel
    );
    // Writing to a string does not fail.
    for (check, verdict) in outcome.checks() {
        let (result, why) = match verdict {
            Verdict::Works(seen) => ("works", seen),
            Verdict::Off(reason) => ("off", reason),
            Verdict::Failed(why) => ("failed", why),
        };
        let _ = writeln!(text, "| {check} | {result} | {} |", why.replace('|', "\\|"));
    }
    text += "\n| program | type | instructions verified | bytes of machine code |\n| --- | --- | --- | --- |\n";
    for (name, program) in &outcome.programs {
        let _ = writeln!(
            text,
            "| `{name}` | {} | {} | {} |",
            program.kind, program.verified, program.machine_code
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(kernel: &str, said: &str) -> Outcome {
        Outcome::read(kernel.into(), &format!("{said}RESULT done\n")).unwrap()
    }

    #[test]
    fn a_kernel_has_a_table_of_its_checks_and_one_of_its_programs() {
        let said = "RESULT driver observe 100 98 untouched\nRESULT driver shortcut 100 0 untouched\n\
                    RESULT off shortcut this | that\nRESULT carried egress 1 10 20\nRESULT program edge xdp 9000 20000\n";
        let page = of("amd64", &[outcome("6.1", said)], "");
        assert!(page.starts_with(HEAD), "{page}");
        for row in [
            "\n## 6.1, amd64\n\n| check |",
            "\n| observe | works | 100 requests of a driver answered, 98 requests counted |\n",
            "\n| shortcut | off | this \\| that |\n",
            "\n| splice, by egress | failed | the comparison exited with 1, 10 bytes up and 20 down |\n",
            "\n| `edge` | xdp | 9000 | 20000 |\n",
        ] {
            assert!(page.contains(row), "{row}: {page}");
        }
    }

    #[test]
    fn kernels_of_other_processors_stay_and_those_of_this_one_are_replaced() {
        let [old, new] = ["6.1", "6.12"].map(|kernel| outcome(kernel, ""));
        let first = of("amd64", &[old], "# What was there\n\n| kernel |\n");
        let both = of("arm64", &[new], &first);
        let sections: Vec<&str> = both
            .lines()
            .filter(|line| line.starts_with("## "))
            .collect();
        assert_eq!(sections, ["## 6.1, amd64", "## 6.12, arm64"]);
        assert!(both.starts_with(&first), "{both}");
        let again = of("amd64", &[outcome("6.2", "")], &both);
        assert!(again.contains("## 6.2, amd64") && !again.contains("## 6.1, amd64"));
        assert_eq!(of("amd64", &[outcome("6.1", "")], &again), both);
    }
}
