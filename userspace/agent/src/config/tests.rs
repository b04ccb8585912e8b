//! Files and rules that are accepted; each refusal names its place and what was expected.
//! Keys that have a file of their own are tested there.

use super::*;
use policy::{Action, Fail, RuleName, Shortcut};

pub(super) fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("policy.toml"), text).map_err(|e| e.to_string())
}

pub(super) fn refusal(text: &str) -> String {
    parse(text).unwrap_err()
}

#[test]
fn the_example_of_the_documentation_is_accepted() {
    let config = parse(include_str!("../../../../config/underpass.toml")).unwrap();
    assert!(!config.policy.rules.is_empty());
    assert_eq!(config.warnings, Vec::<String>::new());
}

#[test]
fn the_examples_are_accepted() {
    for text in [
        include_str!("../../../../config/examples/app-host.toml"),
        include_str!("../../../../config/examples/database-host.toml"),
        include_str!("../../../../config/examples/gateway.toml"),
    ] {
        assert_eq!(parse(text).unwrap().warnings, Vec::<String>::new());
    }
}

#[test]
fn every_key_of_a_rule_is_read() {
    let config = parse(
        r#"
        [agent]
        admin = "127.0.0.1:9999"
        cgroup = "/sys/fs/cgroup/unified/x"
        max_flows = 12
        workers = 3
        [[rule]]
        name = "reporting"
        to = ["10.1.0.0/16:9042", "[fd00::/8]:9042", ":9043", "192.0.2.1", "[2001:db8::1]"]
        uid = [1000]
        process = ["spark*", "java"]
        cgroup = ["/system.slice/reports.service"]
        action = "enrich"
        fail = "closed"
        [[rule]]
        name = "near"
        action = "bypass"
        shortcut = true
        [default]
        action = "bypass"
        "#,
    )
    .unwrap();
    assert_eq!((config.max_flows, config.workers), (12, 3));
    let shortcuts = config.policy.rules.iter().map(|rule| rule.shortcut);
    assert!(shortcuts.eq([Shortcut::Neither, Shortcut::Both]));
    let rule = &config.policy.rules[0];
    assert_eq!(rule.to.fixed().len(), 5);
    assert_eq!(rule.to.fixed()[2].network, None);
    assert_eq!(rule.to.fixed()[3].port, None);
    assert_eq!(
        (rule.uids.as_slice(), rule.processes.len()),
        ([1000].as_slice(), 2)
    );
    assert_eq!((rule.action, rule.fail), (Action::Enrich, Fail::Closed));
}

#[test]
fn an_empty_file_bypasses_everything() {
    let config = parse("").unwrap();
    assert_eq!(config.policy.default_action, Action::Bypass);
    assert_eq!(config.admin_socket.to_str(), Some(DEFAULT_ADMIN_SOCKET));
}

#[test]
fn an_unknown_key_is_an_error_at_its_place() {
    let refused = refusal("[agent]\nadmn = \"127.0.0.1:1\"\n");
    assert!(
        refused.starts_with("policy.toml:2:1: unknown field `admn`, expected"),
        "{refused}"
    );
}

#[test]
fn a_refusal_names_file_line_column_key_and_what_was_expected() {
    let head = "[[rule]]\nname = \"a\"\naction = \"enrich\"\n";
    for (line, column, key, wrong) in [
        (4, 7, "rule.to", "to = [\"10.1.0.0/33:9042\"]"),
        (4, 7, "rule.to", "to = [\"10.1.0.0/16:0\"]"),
        (4, 7, "rule.to", "to = [\"10.1.2.3/16:9042\"]"),
        (4, 7, "rule.to", "to = [\"fd00::1:9042\"]"),
        (4, 7, "rule.to", "to = [\"[::ffff:10.0.0.0/104]:9042\"]"),
        (4, 7, "rule.to", "to = [\"\"]"),
        (4, 8, "rule.uid", "uid = [-1]"),
        (4, 12, "rule.process", "process = [\"sixteen_letters_\"]"),
        (4, 12, "rule.process", "process = [\"a*b\"]"),
        (4, 11, "rule.cgroup", "cgroup = [\"relative\"]"),
        (4, 8, "rule.fail", "fail = \"ajar\""),
        (4, 9, "rule.user", "user = [\"\"]"),
        (4, 11, "rule.driver", "driver = [\"a*b\"]"),
        (4, 13, "rule.keyspace", "keyspace = [\"system_schema\"]"),
        (4, 13, "rule.protocol", "protocol = [\"v2\"]"),
        (4, 16, "rule.compression", "compression = [\"zstd\"]"),
    ] {
        let refused = refusal(&format!("{head}{wrong}\n"));
        let begin = format!("policy.toml:{line}:{column}: {key}: expected ");
        assert!(refused.starts_with(&begin), "{wrong}: {refused}");
    }
    for (action, value) in [
        ("deny", "true"),
        ("observe", "\"client\""),
        ("bypass", "1"),
        ("enrich", "\"both\""),
    ] {
        let text = format!("[[rule]]\nname = \"a\"\naction = {action:?}\nshortcut = {value}\n");
        let refused = refusal(&text);
        let begin = "policy.toml:4:12: rule.shortcut: expected ";
        assert!(refused.starts_with(begin), "{refused}");
    }
    let refused = refusal("[[rule]]\nname = \"a\"\naction = \"watch\"\n");
    assert!(refused.contains("`observe`"), "{refused}");
}

/// Sockets of applications stay out of sockmaps until a rule lets them in, side by side.
#[test]
fn nobody_is_let_into_a_sockmap_unless_a_rule_says_so() {
    for (value, client, database) in [
        ("", false, false),
        ("shortcut = false", false, false),
        ("shortcut = true", true, true),
        ("shortcut = \"client\"", true, false),
        ("shortcut = \"database\"", false, true),
    ] {
        for (keys, action) in [("", "bypass"), ("user = [\"u\"]", "bypass"), ("", "enrich")] {
            let text = format!("[[rule]]\nname = \"a\"\naction = {action:?}\n{keys}\n{value}\n");
            let policy = parse(&text).unwrap().policy;
            let name = &policy.rules[0].name;
            let shortcut = policy.shortcut_of(name);
            let taken = (shortcut.takes_client(), shortcut.takes_database());
            assert_eq!(taken, (client, database), "{text}");
            assert_eq!(policy.opts_in(), client || database);
            // Past TCP go both ends of a connection that is bypassed, or none; and one's leg to the agent.
            let skips = match action {
                "bypass" => client && database,
                _ => client || database,
            };
            assert_eq!(policy.shortcuts(), skips, "{text}");
            let default = policy.shortcut_of(&RuleName::of_default());
            assert!(!default.takes_client() && !default.takes_database());
        }
    }
}

#[test]
fn names_are_unique_and_default_is_taken() {
    let one = "[[rule]]\nname = \"a\"\naction = \"bypass\"\n";
    assert!(refusal(&format!("{one}{one}")).contains("policy.toml:5:8: rule.name"));
    assert!(refusal("[[rule]]\nname = \"default\"\naction = \"bypass\"\n").contains("taken"));
}

#[test]
fn what_is_probably_not_meant_is_warned_of() {
    let config = parse(
        "[[rule]]\nname = \"a\"\naction = \"deny\"\nfail = \"closed\"\n[default]\naction = \"enrich\"\n",
    );
    assert_eq!(config.unwrap().warnings.len(), 2);
}

#[test]
fn a_thousand_rules_are_accepted_and_one_too_many_is_not() {
    let rules = |n: usize| -> String {
        (0..n)
            .map(|i| {
                format!(
                    "[[rule]]\nname = \"r{i}\"\nto = [\":{}\"]\naction = \"deny\"\nfail = \"open\"\n",
                    i + 1
                )
            })
            .collect()
    };
    assert_eq!(parse(&rules(1000)).unwrap().policy.rules.len(), 1000);
    assert!(refusal(&rules(1025)).contains("at most 1024 rules"));
}
