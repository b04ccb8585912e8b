//! What is accepted, and that each refusal names its place and what was expected.

use std::time::Duration;

use super::*;
use crate::backends::Established;
use dataplane::{
    ClientAddress,
    policy::{Action, Fail},
};

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
fn clients_and_backends_are_read() {
    let config = parse(
        r#"
        [[rule]]
        name = "cluster"
        from = ["10.2.0.0/16", "2001:db8::/32", "192.0.2.1"]
        to = ["10.9.0.10:9042", "10.9.0.11:9042"]
        backends = ["10.1.0.1:9042", "10.1.0.2:9142"]
        action = "bypass"
        "#,
    )
    .unwrap();
    let rule = &config.policy.rules[0];
    assert_eq!(rule.from.len(), 3);
    assert_eq!(rule.from[2].prefix_len(), 32);
    assert_eq!(
        rule.backends,
        ["10.1.0.1:9042", "10.1.0.2:9142"].map(|b| b.parse().unwrap())
    );
}

#[test]
fn incoming_namespaces_are_read() {
    let rule = "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\n";
    let config = parse(&format!(
        "{rule}[[incoming]]\n[[incoming]]\nnetns = \"/run/netns/db\"\nclient_address = \"agent\"\n"
    ));
    let config = config.unwrap();
    let expected = [
        IncomingOptions {
            netns: None,
            client_address: ClientAddress::Keep,
        },
        IncomingOptions {
            netns: Some("/run/netns/db".into()),
            client_address: ClientAddress::Agent,
        },
    ];
    assert_eq!(config.incoming, expected);
    assert_eq!(config.warnings, [""; 0]);
    let nobody = parse("[[incoming]]\n").unwrap();
    assert!(nobody.warnings[0].contains("no rule has `from` or `to`"));
    let many = (0..9).map(|n| format!("[[incoming]]\nnetns = \"/run/netns/{n}\"\n"));
    for (text, said) in [
        (
            "[[incoming]]\n[[incoming]]\n".to_owned(),
            "2:1: [[incoming]]: expected a `netns`",
        ),
        (
            "[[incoming]]\nnetns = \"db\"\n".to_owned(),
            "2:9: incoming.netns: expected an absolute",
        ),
        (
            "[[incoming]]\nclient_address = \"mine\"\n".to_owned(),
            "2:18: incoming.client_address: expected `keep` or `agent`; found \"mine\"",
        ),
        (
            "[[incoming]]\nport = 1\n".to_owned(),
            "unknown field `port`",
        ),
        (many.collect(), "at most 8 network namespaces, found 9"),
    ] {
        let refusal = refusal(&text);
        assert!(refusal.contains(said), "{refusal}");
    }
}

#[test]
fn backends_that_cannot_be_are_refused() {
    let with = |to: &str, backends: &str, action: &str| {
        refusal(&format!(
            "[[rule]]\nname = \"r\"\nto = {to}\nbackends = {backends}\naction = \"{action}\""
        ))
    };
    let (to, one) = (r#"["10.9.0.10:9042"]"#, r#"["10.1.0.1:9042"]"#);
    for (to, backends, action, said) in [
        (
            r#"["10.9.0.0/24:9042"]"#,
            one,
            "bypass",
            "virtual addresses of one family",
        ),
        (r#"["10.9.0.10"]"#, one, "bypass", "each with its port"),
        (
            r#"["10.9.0.10:9042", "[fd00::1]:9042"]"#,
            one,
            "bypass",
            "of one family",
        ),
        ("[]", one, "bypass", "a rule whose `to`"),
        (to, one, "deny", "other than `deny`"),
        (to, r#"["[fd00::2]:9042"]"#, "bypass", "of the same family"),
        (to, r#"["10.1.0.1"]"#, "bypass", "an address and port"),
        (to, r#"["10.1.0.1:0"]"#, "bypass", "that can be dialled"),
        (
            to,
            r#"["10.9.0.10:9042"]"#,
            "bypass",
            "other than the virtual one",
        ),
        (
            to,
            r#"["10.1.0.1:1", "10.1.0.1:1"]"#,
            "bypass",
            "not named yet",
        ),
    ] {
        let refusal = with(to, backends, action);
        assert!(refusal.contains(said), "{refusal}");
        assert!(refusal.starts_with("policy.toml:4:"), "{refusal}");
    }
    let many: Vec<_> = (1..=129).map(|n| format!("\"10.1.0.{n}:9042\"")).collect();
    let refusal = with(to, &format!("[{}]", many.join(",")), "bypass");
    assert!(refusal.contains("at most 128 backends"), "{refusal}");
}

#[test]
fn health_is_read_and_what_it_cannot_keep_is_refused() {
    let health = |text: &str| parse(&format!("[health]\n{text}\n")).map(|config| config.health);
    let default = health("").unwrap();
    assert_eq!(default, Settings::default());
    let all = health(
        "interval = \"5s\"\ntimeout = \"1s\"\nrise = 3\nfall = 4\nslow_start = \"1m\"\n\
         cql = false\nestablished = \"reset\"",
    );
    let expected = Settings {
        interval: Duration::from_secs(5),
        timeout: Duration::from_secs(1),
        rise: 3,
        fall: 4,
        slow_start: Duration::from_secs(60),
        cql: false,
        established: Established::Reset,
    };
    assert_eq!(all.unwrap(), expected);
    // What fits is chosen where the file does not say.
    assert_eq!(health("fall = 9").unwrap().timeout.as_millis(), 100);
    assert_eq!(
        health("interval = \"200ms\"").unwrap().timeout.as_millis(),
        80
    );
    for (text, said) in [
        (
            "timeout = \"451ms\"",
            "health.timeout: expected at most 450 ms",
        ),
        ("timeout = \"0s\"", "health.timeout: expected at most"),
        (
            "timeout = \"400ms\"\nfall = 3",
            "health.timeout: expected at most 300 ms",
        ),
        (
            "interval = \"50ms\"",
            "health.interval: expected from 100ms to 60s",
        ),
        (
            "interval = \"2m\"",
            "health.interval: expected from 100ms to 60s",
        ),
        ("interval = \"1\"", "health.interval: expected"),
        ("interval = \"s\"", "health.interval: expected"),
        (
            "slow_start = \"61m\"",
            "health.slow_start: expected from 0ms to 3600s",
        ),
        (
            "slow_start = \"99999999999999999999m\"",
            "health.slow_start: expected",
        ),
        (
            "rise = 0",
            "health.rise: expected a whole number from 1 to 10",
        ),
        (
            "fall = 11",
            "health.fall: expected a whole number from 1 to 10",
        ),
        (
            "established = \"keep\"",
            "health.established: expected `leave` or `reset`",
        ),
        ("often = true", "unknown field `often`"),
    ] {
        let refused = health(text).unwrap_err().to_string();
        assert!(refused.contains(said), "{refused}");
        assert!(refused.starts_with("policy.toml:2:"), "{refused}");
    }
}

#[test]
fn checked_backends_are_bounded() {
    let rules: String = (0..9)
        .map(|n| {
            let backends: Vec<_> = (1..=128)
                .map(|b| format!("\"10.{n}.0.{b}:9042\""))
                .collect();
            format!(
                "[[rule]]\nname = \"r{n}\"\nto = [\"10.9.0.{n}:9042\"]\nbackends = [{}]\n\
                 action = \"bypass\"\n",
                backends.join(",")
            )
        })
        .collect();
    let refusal = refusal(&rules);
    assert!(
        refusal.contains("at most 1024 different backends"),
        "{refusal}"
    );
    assert!(refusal.starts_with("policy.toml:44:"), "{refusal}");
}

#[test]
fn rules_with_backends_are_bounded() {
    let rules = |n: usize| -> String {
        let rule = |n| {
            format!(
                "[[rule]]\nname = \"r{n}\"\nto = [\"10.9.0.{n}:9042\"]\n\
                 backends = [\"10.1.0.1:9042\"]\naction = \"bypass\"\n"
            )
        };
        (1..=n).map(rule).collect()
    };
    assert_eq!(parse(&rules(64)).unwrap().policy.rules.len(), 64);
    let refusal = refusal(&rules(65));
    assert!(
        refusal.contains("at most 64 rules with `backends`"),
        "{refusal}"
    );
    assert!(refusal.starts_with("policy.toml:321:"), "{refusal}");
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

#[test]
fn an_interface_that_is_guarded_is_named_once_with_settings_that_go_together() {
    let text = "[[xdp]]\ninterface = \"eth0\"\nforward = \"snat\"\nsyn_rate = 100\n\
                [[xdp]]\ninterface = \"eth0.7\"\nmode = \"generic\"\nsyn_rate = 5\nsyn_burst = 9\n";
    let config = parse(text).unwrap();
    let rates: Vec<(u32, u32)> = config
        .xdp
        .iter()
        .filter_map(|one| one.syn_rate.map(|rate| (rate.per_second, rate.burst)))
        .collect();
    assert_eq!(rates, [(100, 100), (5, 9)]);
    let of = |rest: &str| refusal(&format!("[[xdp]]\ninterface = \"eth0\"\n{rest}\n"));
    for (rest, expected) in [
        (
            "mode = \"fast\"",
            "policy.toml:3:8: xdp.mode: expected `auto`, ",
        ),
        (
            "mode = \"native\"\nforward = \"snat\"\n[[xdp]]\ninterface = \"eth1\"\n\
             mode = \"generic\"\nforward = \"snat\"",
            "policy.toml:6:13: [[xdp]]: eth0 is to be guarded in native mode and eth1 in generic",
        ),
        (
            "forward = \"nat\"",
            "policy.toml:3:11: xdp.forward: expected `off`, ",
        ),
        (
            "syn_burst = 5",
            "policy.toml:3:13: xdp.syn_burst: expected `syn_rate` ",
        ),
        (
            "syn_rate = 0",
            "policy.toml:3:12: xdp.syn_rate: expected a whole ",
        ),
        (
            "[[xdp]]\ninterface = \"eth0\"",
            "policy.toml:4:13: xdp.interface: expected an interface that no ",
        ),
        (
            "[[xdp]]\ninterface = \"a/b\"",
            "policy.toml:4:13: xdp.interface: expected an interface's name",
        ),
    ] {
        let refused = of(rest);
        assert!(refused.starts_with(expected), "{rest}: {refused}");
    }
}
