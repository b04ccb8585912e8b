//! The verdict on each check of a boot.

use anyhow::{Result, ensure};

use super::outcome::{Carried, Demo, Driven, Edge, Outcome, Program};
use Verdict::{Failed, Off, Works};

/// The requests that the guest's driver makes on each path, and past the edge.
const DRIVERS_REQUESTS: u64 = 100;

/// A path that a driver's flows take, under a rule of the guest's.
struct Path {
    name: &'static str,
    /// The paths of these flows as `flows` lists them: none where the agent has nothing to do with them.
    listed: &'static str,
    /// The things that the agent has counted of them.
    counted: &'static str,
    /// The part of the agent without which there is none, as `underpass_path_available` names it.
    needs: &'static str,
}

const BYPASS: Path = Path {
    name: "bypass",
    listed: "",
    counted: "connections left alone",
    needs: "",
};

const OBSERVE: Path = Path {
    name: "observe",
    listed: "untouched",
    counted: "requests counted",
    needs: "observe",
};

const TAP: Path = Path {
    name: "tap",
    listed: "tap",
    counted: "statements told",
    needs: "observe",
};

const INLINE: Path = Path {
    name: "inline",
    listed: "enrich",
    counted: "statements told",
    needs: "",
};

const SHORTCUT: Path = Path {
    name: "shortcut",
    listed: "shortcut",
    counted: "messages past TCP",
    needs: "shortcut",
};

/// The edge, as reasons and checks name it.
const EDGE: &str = "edge";

/// The engines of the splice, as the agent names them, and their checks.
const ENGINES: [(&str, &str); 2] = [
    ("sender", "splice, by sender"),
    ("egress", "splice, by egress"),
];

/// The checks that no kernel may fail that is tried, whatever the agent says.
const NEEDED: [&str; 5] = [BYPASS.name, OBSERVE.name, TAP.name, INLINE.name, EDGE];

/// The verdict on a check.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    /// With what was seen.
    Works(String),
    /// With the agent's reason.
    Off(String),
    /// With what is wrong.
    Failed(String),
}

impl Outcome {
    /// Returns each check with its verdict, in the page's order.
    pub fn checks(&self) -> Vec<(&'static str, Verdict)> {
        let mut checks = vec![
            ("doctor", self.of_doctor()),
            (BYPASS.name, self.of_path(&BYPASS)),
            (OBSERVE.name, self.of_path(&OBSERVE)),
            (TAP.name, self.of_tap()),
            ("tap, of a running connection", self.of_running()),
            (INLINE.name, self.of_path(&INLINE)),
        ];
        checks.extend(ENGINES.map(|(engine, check)| (check, self.of_engine(engine))));
        checks.push((SHORTCUT.name, self.of_path(&SHORTCUT)));
        let refusal = self.of_refusal();
        checks.extend(refusal.map(|verdict| ("the reason for no shortcut", verdict)));
        checks.push((EDGE, self.of_edge()));
        checks.push(("demo", self.of_demo()));
        checks
    }

    fn of_doctor(&self) -> Verdict {
        let graded = |grade: &'static str| {
            let findings = self.doctor.iter().map(String::as_str);
            findings.filter(move |finding| finding.contains(grade))
        };
        match self.doctors_code.as_str() {
            "0" => {
                let notices = graded(" notice ").count();
                Works(format!("nothing is missing; notices: {notices}"))
            }
            "" => Failed("it was not run".to_owned()),
            code => {
                let missing: Vec<&str> = graded(" missing ").collect();
                Failed(format!("exit code {code}: {}", missing.join("; ")))
            }
        }
    }

    /// The agent's reason why it has no such path.
    fn reason(&self, part: &str) -> Option<Verdict> {
        let reason = self.off.get(part).filter(|reason| !reason.is_empty());
        reason.map(|reason| Off(reason.clone()))
    }

    /// The verdict on a path by a driver's requests.
    fn of_path(&self, path: &Path) -> Verdict {
        let Some(driven) = self.drivers.iter().find(|one| one.path == path.name) else {
            return Failed("no driver was tried".to_owned());
        };
        let Driven {
            answered,
            counted,
            listed,
            ..
        } = driven;
        let what = path.counted;
        if *answered != DRIVERS_REQUESTS {
            return Failed(format!("{answered} of a driver's requests were answered"));
        }
        if listed == path.listed && *counted > 0 {
            return Works(format!(
                "{answered} requests of a driver answered, {counted} {what}"
            ));
        }
        let other = || {
            Failed(format!(
                "{counted} {what}, its flows on the path {listed:?}"
            ))
        };
        self.reason(path.needs).unwrap_or_else(other)
    }

    fn of_tap(&self) -> Verdict {
        match (self.of_path(&TAP), self.tapped) {
            (Works(_), 0) => {
                Failed("no request of a connection without a driver was told".to_owned())
            }
            (Works(seen), told) => {
                Works(format!("{seen}; {told} of a connection without a driver"))
            }
            (verdict, _) => verdict,
        }
    }

    fn of_running(&self) -> Verdict {
        match (self.adopted, self.not_adopted.as_slice()) {
            (0, []) => {
                let other =
                    || Failed("none of its requests was told, and nobody says why".to_owned());
                self.reason(TAP.needs).unwrap_or_else(other)
            }
            (0, reasons) => {
                let reasons = reasons.iter().map(|why| format!("`{why}`"));
                Off(reasons.collect::<Vec<_>>().join(", "))
            }
            (told, _) => Works(format!("{told} of its requests told")),
        }
    }

    fn of_engine(&self, engine: &str) -> Verdict {
        if let Some(one) = self.engines.iter().find(|one| one.engine == engine) {
            let Carried { code, up, down, .. } = one;
            let seen = format!("{up} bytes up and {down} down");
            return match code == "0" && *up > 0 && *down > 0 {
                true => Works(format!("{seen}, each of them compared")),
                false => Failed(format!("the comparison exited with {code}, {seen}")),
            };
        }
        let off = format!("path splice_{engine} notice off: ");
        let mut reasons = self
            .doctor
            .iter()
            .filter_map(|line| line.strip_prefix(&off));
        match reasons.next() {
            Some(reason) => Off(reason.to_owned()),
            None => Failed("nothing was carried, and doctor does not say why".to_owned()),
        }
    }

    /// The verdict on what `flows --why` says of a flow that cannot take the shortcut. None: on a guest without the first engine
    /// nothing is known.
    fn of_refusal(&self) -> Option<Verdict> {
        let cause = self.refused.as_deref()?;
        Some(match ["foreign_netns", "shortcut_off"].contains(&cause) {
            true => Works(format!("`flows --why` says `{cause}`")),
            false => Failed(format!("`flows --why` says {cause:?}")),
        })
    }

    fn of_edge(&self) -> Verdict {
        let Some(edge) = &self.edge else {
            let other = || Failed("it was not tried".to_owned());
            return self.reason(EDGE).unwrap_or_else(other);
        };
        let Edge {
            mode,
            answered,
            allowed,
            denied,
            has_dropped,
        } = edge;
        let seen = format!(
            "{mode} mode: {answered} requests of a driver answered, {allowed} connections allowed, {denied} packets to \
             another port denied"
        );
        match *answered == DRIVERS_REQUESTS && *allowed > 0 && *denied > 0 && *has_dropped {
            true => Works(seen),
            false => Failed(seen),
        }
    }

    /// The verdict on the demo, whose application runs before the agent does: where no such connection is adopted, there is nothing to show.
    fn of_demo(&self) -> Verdict {
        match &self.demo {
            None => Failed("it was not run".to_owned()),
            Some(Demo { code, held, made }) if code == "0" && held == made && *made > 0 => {
                Works(format!("all {made} checks"))
            }
            Some(_) if self.adopted == 0 => Off("no running connection is read".to_owned()),
            Some(Demo { code, held, made }) => {
                Failed(format!("exit code {code}, {held} of {made} checks held"))
            }
        }
    }

    /// Prints what came of it.
    pub fn print(&self) {
        println!("{}", self.kernel);
        for finding in &self.doctor {
            println!("  {finding}");
        }
        for (check, verdict) in self.checks() {
            println!("  {check}: {verdict:?}");
        }
        for (name, program) in &self.programs {
            println!("  {name}: {} instructions verified", program.verified);
        }
    }

    /// Fails unless all works, or is off for a reason that is one.
    pub fn judge(&self) -> Result<()> {
        let checks = self.checks();
        let wrong = |(check, verdict): &(&'static str, Verdict)| match verdict {
            Failed(why) => Some(format!("{check}: {why}")),
            Off(why) if NEEDED.contains(check) => Some(format!("{check} is off: {why}")),
            _ => None,
        };
        let wrong: Vec<String> = checks.iter().filter_map(wrong).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join(", "));
        let mut engines = ENGINES.iter().map(|(engine, _)| self.of_engine(engine));
        ensure!(
            engines.any(|verdict| matches!(verdict, Works(_))),
            "no engine of the splice works"
        );
        let is_known = |program: &Program| program.verified > 0 && program.machine_code > 0;
        ensure!(
            !self.programs.is_empty() && self.programs.values().all(is_known),
            "the kernel does not say what it has made of the programs"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest's lines, where all is as it should be on an old kernel.
    const GOOD: &str = "[ 1.0] boot\r
RESULT doctor WHAT STATE WHY
RESULT doctor kernel ok 6.1.0
RESULT doctor path splice_sender notice off: bytes are lost (after 3 ms)
RESULT doctor path splice_egress ok carried every byte, tried in 9 ms
RESULT doctored 0
RESULT carried egress 0 10 20
RESULT refused foreign_netns
RESULT tapped 10
RESULT adopted
RESULT not_adopted no_end
RESULT driver bypass 100 3
RESULT driver observe 100 98 untouched
RESULT driver tap 100 98 tap
RESULT driver inline 100 98 enrich
RESULT driver shortcut 100 0 untouched
RESULT off shortcut the kernel has no such thing
RESULT program connect4 cgroup_sock_addr 812 4096
RESULT edge generic 100 3 4 dropped
RESULT program edge xdp 9000 20000
RESULT program connect4 cgroup_sock_addr 812 4096
RESULT demo 1 0 0
RESULT done
";

    fn good() -> Outcome {
        Outcome::read("6.1".into(), GOOD).unwrap()
    }

    fn verdict(outcome: &Outcome, check: &str) -> Verdict {
        let mut checks = outcome.checks().into_iter();
        checks.find(|(name, _)| *name == check).unwrap().1
    }

    #[test]
    fn a_guest_is_understood() {
        let all = good();
        all.judge().unwrap();
        assert_eq!(all.programs.len(), 2);
        for (check, expected) in [
            ("doctor", Works("nothing is missing; notices: 1".into())),
            (
                "observe",
                Works("100 requests of a driver answered, 98 requests counted".into()),
            ),
            ("tap, of a running connection", Off("`no_end`".into())),
            (
                "splice, by sender",
                Off("bytes are lost (after 3 ms)".into()),
            ),
            (
                "splice, by egress",
                Works("10 bytes up and 20 down, each of them compared".into()),
            ),
            ("shortcut", Off("the kernel has no such thing".into())),
            ("demo", Off("no running connection is read".into())),
        ] {
            assert_eq!(verdict(&all, check), expected, "{check}");
        }
        for unknown in [
            "RESULT carried egress 0 10 20\n",
            "RESULT else\nRESULT done\n",
            "RESULT driver tap all 98 tap\nRESULT done\n",
        ] {
            assert!(Outcome::read("6.1".into(), unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn every_failure_is_found() {
        for (line, spoilt, said) in [
            ("doctored 0", "doctored 1", "doctor: exit code 1"),
            (
                "carried egress 0",
                "carried egress 1",
                "by egress: the comparison exited",
            ),
            (
                "egress 0 10 20",
                "egress 0 0 20",
                "by egress: the comparison exited",
            ),
            ("carried egress 0 10 20", "carried egress 0 10", "what is"),
            (
                "notice off: bytes are lost",
                "ok: bytes",
                "by sender: nothing was carried",
            ),
            ("refused foreign_netns", "refused", "says \"\""),
            (
                "tapped 10",
                "tapped 0",
                "tap: no request of a connection without",
            ),
            ("not_adopted no_end", "adopted 0", "nobody says why"),
            ("driver bypass 100", "driver bypass 99", "bypass: 99 of a"),
            (
                "100 3\n",
                "100 3 relay\n",
                "bypass: 3 connections left alone",
            ),
            (
                "observe 100 98",
                "observe 100 0",
                "observe: 0 requests counted",
            ),
            (
                "100 98 untouched",
                "100 98",
                "observe: 98 requests counted, its flows on the path \"\"",
            ),
            (
                "100 98 tap",
                "100 98 enrich",
                "tap: 98 statements told, its flows on the path \"enrich\"",
            ),
            (
                "driver inline",
                "driver other",
                "inline: no driver was tried",
            ),
            ("off shortcut", "off other", "shortcut: 0 messages past TCP"),
            (
                "off shortcut the kernel has no such thing",
                "off shortcut",
                "shortcut: 0 messages",
            ),
            (
                "edge generic 100",
                "edge generic 0",
                "edge: generic mode: 0 requests",
            ),
            ("4 dropped", "4 through", "edge: generic mode"),
            (
                "edge generic 100 3 4 dropped",
                "off edge no memory",
                "edge is off: no memory",
            ),
            ("xdp 9000", "xdp 0", "the kernel does not say"),
        ] {
            assert!(GOOD.contains(line), "{line}");
            let read = Outcome::read("6.1".into(), &GOOD.replace(line, spoilt));
            let error = read.and_then(|outcome| outcome.judge()).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.contains(said), "{spoilt}: {error}");
        }
        let reads = GOOD.replace("RESULT adopted\n", "RESULT adopted 5\n");
        let error = Outcome::read("6.1".into(), &reads).unwrap().judge();
        let error = error.unwrap_err().to_string();
        assert!(error.contains("demo: exit code 1"), "{error}");
    }
}
