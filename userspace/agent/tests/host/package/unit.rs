//! The unit, as systemd reads it.

use std::{collections::BTreeSet, process::Command};

use super::other_host::OtherHost;

/// The most exposure that a unit may have, in tenths, by `systemd-analyze security`.
const EXPOSURE: &str = "--threshold=40";

const UNIT: &str = include_str!("../../../../../packaging/underpass.service");

/// The agent's own list of calls.
const CONFINE: &str = include_str!("../../../src/confine.rs");

/// Holds the unit of a host that has the package to what systemd says of it.
pub fn check(host: &OtherHost<'_>) {
    let unit = "/usr/lib/systemd/system/underpass.service";
    let verified = host.run(&["systemd-analyze", "--man=no", "verify", unit]);
    assert!(
        verified.status.success() && verified.stderr.is_empty(),
        "{verified:?}"
    );
    let offline = ["systemd-analyze", "security", "--offline=true"];
    host.succeeds(&[&offline[..], &[EXPOSURE, "underpass.service"]].concat());
}

fn values(key: &str) -> Vec<&'static str> {
    let lines = UNIT
        .lines()
        .filter_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    lines.flat_map(str::split_whitespace).collect()
}

/// The calls of a filter's name: itself, or those of a group.
fn expanded(name: &str, into: &mut BTreeSet<String>) {
    if !name.starts_with('@') {
        into.insert(name.to_owned());
        return;
    }
    let mut analyze = Command::new("systemd-analyze");
    let said = analyze.args(["syscall-filter", name]).output().unwrap();
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    let members = said.lines().skip(1).map(str::trim);
    for member in members.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        expanded(member, into);
    }
}

/// A call that the unit forbids would fail there alone, where no test looks.
#[test]
fn the_unit_allows_every_call_that_the_agent_allows_itself() {
    let mut allowed = BTreeSet::new();
    for name in values("SystemCallFilter") {
        expanded(name, &mut allowed);
    }
    // By it the agent makes its own list hold, which it then leaves out.
    assert!(allowed.contains("seccomp"));
    // systemd allows these to every unit.
    expanded("@default", &mut allowed);
    let calls = CONFINE.split("libc::SYS_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap()]
    });
    let calls: Vec<&str> = calls.collect();
    assert!(calls.len() > 100, "{calls:?}");
    let forbidden: Vec<_> = calls
        .iter()
        .filter(|call| !allowed.contains(**call))
        .collect();
    assert!(forbidden.is_empty(), "{forbidden:?}");
}
