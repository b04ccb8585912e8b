//! The results of a boot, as the guest has told them in lines that begin with RESULT.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail, ensure};

/// The results of one kernel.
#[derive(Default)]
pub struct Outcome {
    /// The kernel's version.
    pub kernel: String,
    /// The lines of `doctor`.
    pub doctor: Vec<String>,
    /// The exit code of `doctor`; empty where it was not run.
    pub doctors_code: String,
    /// Streams over each engine of the splice.
    pub engines: Vec<Carried>,
    /// The reason why a flow is not on the shortcut, from `flows --why`.
    pub refused: Option<String>,
    /// Requests of a tapped connection that copies have told with their answers.
    pub tapped: u64,
    /// Requests of a connection that was there before the agent.
    pub adopted: u64,
    /// Why running connections were not adopted.
    pub not_adopted: Vec<String>,
    /// A driver's requests on each path.
    pub drivers: Vec<Driven>,
    /// The edge, if it was attached.
    pub edge: Option<Edge>,
    /// The demo, if it was run.
    pub demo: Option<Demo>,
    /// The agent's reasons for what is off, by path.
    pub off: BTreeMap<String, String>,
    /// The BPF programs that agents had, by name.
    pub programs: BTreeMap<String, Program>,
}

/// The streams over an engine of the splice.
pub struct Carried {
    pub engine: String,
    /// The integrity program's exit code.
    pub code: String,
    pub up: u64,
    pub down: u64,
}

/// A driver's requests on a path.
pub struct Driven {
    pub path: String,
    /// Requests that it got answers to.
    pub answered: u64,
    /// How often the agent has counted them, or their flows, or messages.
    pub counted: u64,
    /// The paths that the agent listed.
    pub listed: String,
}

/// The edge's treatment of a driver and of a port that is denied.
pub struct Edge {
    pub mode: String,
    /// Requests of the driver that were answered.
    pub answered: u64,
    /// Connections of the driver that the edge has counted.
    pub allowed: u64,
    /// Packets to the other port that it has counted.
    pub denied: u64,
    /// Nothing came from that port.
    pub has_dropped: bool,
}

/// The outcome of `cargo xtask demo`'s program.
pub struct Demo {
    /// The demo's exit code.
    pub code: String,
    /// The checks that held.
    pub held: u64,
    /// The checks that were made.
    pub made: u64,
}

/// A program as the kernel has it.
pub struct Program {
    /// The type of the program.
    pub kind: String,
    /// The instructions that the verifier looked at, each as often as it did so.
    pub verified: u64,
    /// The bytes of machine code.
    pub machine_code: u64,
}

impl Outcome {
    /// Reads what a guest has said.
    pub fn read(kernel: String, said: &str) -> Result<Self> {
        let mut outcome = Self {
            kernel,
            ..Self::default()
        };
        let mut is_done = false;
        for line in said.lines() {
            let Some((_, result)) = line.split_once("RESULT ") else {
                continue;
            };
            let words: Vec<&str> = result.split_whitespace().collect();
            match words.as_slice() {
                ["done"] => is_done = true,
                words => outcome
                    .note(words)
                    .with_context(|| format!("what is {result:?}?"))?,
            }
        }
        ensure!(is_done, "it did not come to its end");
        Ok(outcome)
    }

    fn note(&mut self, words: &[&str]) -> Result<()> {
        match words {
            ["doctor", finding @ ..] => self.doctor.push(finding.join(" ")),
            ["doctored", code] => self.doctors_code = (*code).to_owned(),
            ["carried", engine, code, up, down] => self.engines.push(Carried {
                engine: (*engine).to_owned(),
                code: (*code).to_owned(),
                up: up.parse()?,
                down: down.parse()?,
            }),
            ["refused", cause @ ..] => self.refused = Some(cause.join(" ")),
            ["tapped", told @ ..] => self.tapped = requests(told)?,
            ["adopted", told @ ..] => self.adopted = requests(told)?,
            ["not_adopted", reason] => self.not_adopted.push((*reason).to_owned()),
            ["driver", path, answered, counted, listed @ ..] => self.drivers.push(Driven {
                path: (*path).to_owned(),
                answered: answered.parse()?,
                counted: counted.parse()?,
                listed: listed.join(" "),
            }),
            ["off", path, reason @ ..] => {
                self.off.insert((*path).to_owned(), reason.join(" "));
            }
            ["edge", mode, answered, allowed, denied, came] => {
                self.edge = Some(Edge {
                    mode: (*mode).to_owned(),
                    answered: answered.parse()?,
                    allowed: allowed.parse()?,
                    denied: denied.parse()?,
                    has_dropped: *came == "dropped",
                });
            }
            ["demo", code, held, made] => {
                self.demo = Some(Demo {
                    code: (*code).to_owned(),
                    held: held.parse()?,
                    made: made.parse()?,
                });
            }
            ["program", name, kind, verified, machine_code] => {
                let program = Program {
                    kind: (*kind).to_owned(),
                    verified: verified.parse()?,
                    machine_code: machine_code.parse()?,
                };
                self.programs.insert((*name).to_owned(), program);
            }
            _ => bail!("nobody says that"),
        }
        Ok(())
    }
}

/// The number that a metric has; none is 0.
fn requests(told: &[&str]) -> Result<u64> {
    told.first().map_or(Ok(0), |told| Ok(told.parse()?))
}
