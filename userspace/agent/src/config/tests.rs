//! What is accepted, and that each refusal names its place and what was expected.

use super::*;
use dataplane::policy::{Action, Fail};

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(Path::new("policy.toml"), text).map_err(|e| e.to_string())
}

fn refusal(text: &str) -> String {
    parse(text).unwrap_err()
}

#[test]
fn the_example_of_the_documentation_is_accepted() {
    let config = parse(include_str!("../../../../config/underpass.toml")).unwrap();
    assert!(!config.policy.rules.is_empty());
    assert_eq!(config.warnings, Vec::<String>::new());
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
    assert!(config.policy.rules[1].shortcut && !config.policy.rules[0].shortcut);
    let rule = &config.policy.rules[0];
    assert_eq!(rule.to.len(), 5);
    assert_eq!(rule.to[2].network, None);
    assert_eq!(rule.to[3].port, None);
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
    assert_eq!(config.admin.to_string(), DEFAULT_ADMIN);
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
    for action in ["enrich", "deny", "observe"] {
        let text = format!("[[rule]]\nname = \"a\"\naction = {action:?}\nshortcut = true\n");
        let refused = refusal(&text);
        let begin = "policy.toml:4:12: rule.shortcut: expected `action = \"bypass\"`, because ";
        assert!(refused.starts_with(begin), "{refused}");
    }
    let refused = refusal("[[rule]]\nname = \"a\"\naction = \"watch\"\n");
    assert!(refused.contains("`observe`"), "{refused}");
}

#[test]
fn names_are_unique_and_default_is_taken() {
    let one = "[[rule]]\nname = \"a\"\naction = \"bypass\"\n";
    assert!(refusal(&format!("{one}{one}")).contains("policy.toml:5:8: rule.name"));
    assert!(refusal("[[rule]]\nname = \"default\"\naction = \"bypass\"\n").contains("taken"));
}

#[test]
fn what_is_probably_not_meant_is_warned_of() {
    let config =
        parse("[[rule]]\nname = \"a\"\naction = \"deny\"\n[default]\naction = \"enrich\"\n");
    assert_eq!(config.unwrap().warnings.len(), 2);
}

#[test]
fn a_thousand_rules_are_accepted_and_one_too_many_is_not() {
    let rules = |n: usize| -> String {
        (0..n)
            .map(|i| {
                format!(
                    "[[rule]]\nname = \"r{i}\"\nto = [\":{}\"]\naction = \"deny\"\n",
                    i + 1
                )
            })
            .collect()
    };
    assert_eq!(parse(&rules(1000)).unwrap().policy.rules.len(), 1000);
    assert!(refusal(&rules(1025)).contains("at most 1024 rules"));
}

#[test]
fn every_key_of_a_session_rule_is_read() {
    let config = parse(
        r#"
        [[rule]]
        name = "s"
        to = [":9042"]
        user = ["alice", "etl*"]
        keyspace = ["shop"]
        driver = ["*"]
        driver_version = ["4.*"]
        application = ["batch"]
        protocol = ["v4", "v5"]
        compression = ["none"]
        tls = false
        action = "deny"
        fail = "closed"
        "#,
    )
    .unwrap();
    let rule = &config.policy.rules[0];
    let named: Vec<&str> = rule.session.named().map(|key| key.key()).collect();
    let all = [
        "user",
        "keyspace",
        "driver",
        "driver_version",
        "application",
        "protocol",
        "compression",
        "tls",
    ];
    assert_eq!(named, all);
    assert!(rule.is_session() && config.warnings.is_empty());
}

fn remembering(lasts: &str, rest: &str) -> String {
    format!("[[rule]]\nname = \"a\"\nremember = {lasts:?}\nto = [\":9042\"]\n{rest}\n")
}

#[test]
fn a_decision_is_remembered_for_as_long_as_a_rule_says() {
    let bypass = "user = [\"etl\"]\naction = \"bypass\"";
    for (text, seconds) in [("1s", 1), ("30s", 30), ("10m", 600), ("24h", 86_400)] {
        let config = parse(&remembering(text, bypass)).unwrap();
        let rule = &config.policy.rules[0];
        assert_eq!(rule.remember.unwrap().as_secs(), seconds, "{text}");
        assert!(config.policy.remembers() && config.warnings.is_empty());
    }
    for text in [
        "",
        "m",
        "0s",
        "25h",
        "86401s",
        "10",
        "10d",
        "-1s",
        "+1s",
        "1.5h",
        "1h30m",
        "10 m",
        "1µ",
        "99999999999999999999s",
        "9999999999999999999h",
    ] {
        let refused = refusal(&remembering(text, bypass));
        let begin = "policy.toml:3:12: rule.remember: expected seconds, minutes or hours";
        assert!(refused.starts_with(begin), "{text}: {refused}");
    }
}

#[test]
fn what_is_remembered_is_bypassed_and_is_behind_a_question() {
    for action in ["enrich", "deny"] {
        let rule = format!("user = [\"etl\"]\naction = {action:?}\nfail = \"closed\"");
        let refused = refusal(&remembering("10m", &rule));
        let begin = "policy.toml:3:12: rule.remember: expected `action = \"bypass\"`, because ";
        assert!(refused.starts_with(begin), "{refused}");
    }
    let plain = remembering("10m", "action = \"bypass\"");
    let refused = refusal(&plain);
    let begin = "policy.toml:3:12: rule.remember: expected a condition on the session";
    assert!(refused.starts_with(begin), "{refused}");
    // Behind a session rule it is decided in the agent.
    let asks = "[[rule]]\nname = \"s\"\nto = [\":9042\"]\nuser = [\"etl\"]\n";
    let config = parse(&format!("{asks}action = \"enrich\"\n{plain}")).unwrap();
    assert!(config.policy.rules[1].remember.is_some() && config.warnings.is_empty());
}

#[test]
fn a_denial_that_a_remembered_process_escapes_is_warned_of() {
    let deny = "[[rule]]\nname = \"d\"\nto = [\":9042\"]\nuser = [\"x\"]\naction = \"deny\"\n\
                fail = \"closed\"\n";
    let plain = remembering("10m", "action = \"bypass\"");
    let warnings = parse(&format!("{deny}{plain}")).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("rule d denies none of its further sessions"));
    let session = remembering("10m", "user = [\"etl\"]\naction = \"bypass\"");
    let warnings = parse(&format!("{session}{deny}")).unwrap().warnings;
    assert_eq!(warnings.len(), 0, "{warnings:?}");
}

#[test]
fn a_session_rule_cannot_observe_and_should_not_deny_openly() {
    let session = |action: &str| {
        format!("[[rule]]\nname = \"s\"\nto = [\":9042\"]\nuser = [\"a\"]\naction = \"{action}\"\n")
    };
    let refused = refusal(&session("observe"));
    let expected = "policy.toml:5:10: rule.action: expected `bypass`, `enrich` or `deny` in a rule \
                    with `user`";
    assert!(refused.starts_with(expected), "{refused}");
    let warnings = parse(&session("deny")).unwrap().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("fail = \"closed\" is safe"),
        "{warnings:?}"
    );
    assert_eq!(parse(&session("bypass")).unwrap().warnings.len(), 0);
}
