//! `docs/fleet.md`: every command that it shows is run, in the order of the page, with a real cluster of etcd, and says what the page
//! has it say, numbers too. `UPDATE_DOCS=1` writes what they say. The commands without output are run by [`crate::roles`].

use std::fs;

use ::sandbox::Etcd;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::{
    operating::{CONSOLE, Held, lay_out, said, serves},
    *,
};
use crate::common::operating::blocks_of;

const PAGE: &str = "fleet.md";

/// The ports of the page's members.
const MEMBERS: [u16; 3] = [2379, 22379, 32379];

/// The blocks that `cargo xtask kubernetes` runs.
const OF_KUBERNETES: &str = "console kubernetes";

/// The hosts' own files on the page.
const OWN: &str = "toml";

fn config(host: &OtherHost<'_>) -> String {
    let said = host.run(&["underpass", "config"]);
    String::from_utf8(said.stdout).unwrap()
}

/// The value of a metric.
fn metric(host: &OtherHost<'_>, name: &str) -> f64 {
    let address = "http://127.0.0.1:9464/metrics";
    let said = host.succeeds(&["curl", "--silent", "--fail", address]);
    let line = said
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name} ")));
    line.unwrap_or_else(|| panic!("no {name}: {said}"))
        .parse()
        .unwrap()
}

fn finding(host: &OtherHost<'_>) -> String {
    let said = host.run(&["underpass", "doctor", "--config", FILE]);
    let said = String::from_utf8(said.stdout).unwrap();
    let found = said
        .lines()
        .find(|line| line.starts_with("fleet's policy "));
    found.unwrap_or_else(|| panic!("{said}")).to_owned()
}

fn end(agent: Held) {
    drop(agent);
}

#[test]
fn another_number_on_the_fleets_page_is_seen() {
    let blocks = blocks_of(PAGE);
    let with = |text: &str| {
        let found = blocks.iter().find(|block| block.text.contains(text));
        found.unwrap_or_else(|| panic!("the page has no {text:?}"))
    };
    for (text, other) in [
        ("exit code 1", "exit code 0"),
        ("version 4 (version 2 again)", "version 5 (version 2 again)"),
        ("2 files, 4 rules", "2 files, 5 rules"),
        ("ee68d65f850a9d9c", "ee68d65f850a9d9d"),
        ("1 host: 1 in force", "1 host: 0 in force"),
        ("{limit=\"quota.user\"} 1", "{limit=\"quota.user\"} 2"),
        ("1/1", "0/1"),
        ("0/1", "1/1"),
    ] {
        let block = with(text);
        let said = block.text.replacen(text, other, 1);
        assert_ne!(block.shape(&block.text), block.shape(&said), "{other}");
    }
    for (text, other) in [
        ("  True      5s", " True    11s"),
        ("HOST         STATE", "HOST  STATE"),
    ] {
        let block = with(text);
        let said = block.text.replacen(text, other, 1);
        assert_eq!(block.shape(&block.text), block.shape(&said), "{other}");
    }
}

#[test]
fn every_command_of_the_fleets_page_says_what_the_page_has_it_say() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let mut etcd = Etcd::start_at(Some(&sandbox.netns), &MEMBERS).unwrap();
    let host = OtherHost::new(&sandbox);
    lay_out(&host);
    let blocks = blocks_of(PAGE);
    let own = blocks.iter().find(|block| block.kind == OWN).unwrap();
    let append = "printf %s \"$2\" >> \"$1\"";
    host.succeeds(&["sh", "-c", append, "sh", FILE, &own.text]);
    let agent = serves(&host, folder.path());
    eventually("it follows", || {
        metric(&host, "underpass_policy_source_in_step") == 1.0
    });
    for block in blocks.iter().filter(|block| block.kind == CONSOLE) {
        block.holds(&said(&host, &block.text, "/root"));
    }
    assert!(
        blocks
            .iter()
            .all(|block| [CONSOLE, OF_KUBERNETES, OWN, "sh"].contains(&block.kind.as_str()))
    );

    eventually("its limit is shared", || {
        metric(&host, "underpass_limits_hosts{limit=\"quota.user\"}") == 1.0
            && metric(&host, "underpass_limits_in_step") == 1.0
    });

    // Past `push`: what no host can use changes nothing, and is visible.
    let before = config(&host);
    assert_eq!(metric(&host, "underpass_policy_source_refused"), 0.0);
    etcd.ctl(
        0,
        &["put", "/underpass/rules/shop.toml", "[[rule]]\nname = 1\n"],
    )
    .unwrap();
    eventually("it is refused", || {
        metric(&host, "underpass_policy_source_refused") == 1.0
    });
    assert_eq!(config(&host), before);
    let status = host.run(&["underpass", "policy", "status"]);
    let said = String::from_utf8(status.stdout).unwrap();
    assert!(
        !status.status.success() && said.contains("etcd:rules/shop.toml:2:"),
        "{said}"
    );
    assert!(
        finding(&host).contains("is not what this host has in force"),
        "{}",
        finding(&host)
    );
    // What a host lacks may be there later: the same policy is looked at again.
    let lacks = "[[rule]]\nname = \"later\"\nto = [\":9142\"]\naction = \"enrich\"\nfail = \"open\"\n\
                 pipeline = [{ transform = \"audit\", file = \"/srv/later/audit.log\" }]\n";
    etcd.ctl(0, &["put", "/underpass/rules/shop.toml", lacks])
        .unwrap();
    eventually("its folder is missed", || {
        let status = host.run(&["underpass", "policy", "status"]);
        String::from_utf8(status.stdout)
            .unwrap()
            .contains("/srv/later cannot be opened")
    });
    host.succeeds(&["mkdir", "/srv/later"]);
    let pid = Pid::from_raw(i32::try_from(agent.0.id()).unwrap());
    kill(pid, Signal::SIGHUP).unwrap();
    eventually("it is in force", || {
        host.run(&["underpass", "policy", "status", "--expect", "1"])
            .status
            .success()
    });
    let more = host.run(&["underpass", "policy", "status", "--expect", "2"]);
    assert!(!more.status.success());
    host.succeeds(&["underpass", "policy", "rollback", "5"]);
    // Nothing is refused before the rollback, either: what it takes away is in force.
    eventually("it is right again", || {
        !config(&host).contains("/srv/later")
            && metric(&host, "underpass_policy_source_refused") == 0.0
    });
    let good = config(&host);
    eventually("it is kept", || finding(&host).contains("ok"));

    // etcd is away at the start: the last good policy holds, and nobody believes that it is the newest.
    end(agent);
    for member in 0..MEMBERS.len() {
        etcd.kill(member).unwrap();
    }
    let agent = serves(&host, folder.path());
    assert_eq!(config(&host), good);
    eventually("it says that it is away", || {
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        log.contains("the last one stays in force")
    });
    assert_eq!(metric(&host, "underpass_policy_source_in_step"), 0.0);
    // So does the limit's.
    assert_eq!(
        metric(&host, "underpass_limits_hosts{limit=\"quota.user\"}"),
        0.0
    );
    assert_eq!(metric(&host, "underpass_limits_in_step"), 0.0);
    assert!(metric(&host, "underpass_policy_source_age_seconds") > 0.0);
    assert!(
        finding(&host).contains("cannot be reached"),
        "{}",
        finding(&host)
    );
    end(agent);
}
