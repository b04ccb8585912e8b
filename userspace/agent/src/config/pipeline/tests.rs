//! Pipelines that a file may ask for, and those that it may not.

mod effects;
mod reporters;
mod transforms;

use std::path::Path;

use policy::RuleName;

use crate::config::Config;

fn found(action: &str, step: &str) -> Result<Config, String> {
    let text = format!(
        "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"{action}\"\npipeline = [{step}]\nfail = \"closed\"\n"
    );
    Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
}

/// A log for auditors is complete unless somebody chooses otherwise, and then that is said.
#[test]
fn an_audit_that_may_lose_records_is_warned_of() {
    for (settings, warns) in [
        ("", false),
        (", full = \"hold\"", false),
        (", full = \"drop\"", true),
    ] {
        let step = format!("{{ transform = \"audit\", file = \"/a\"{settings} }}");
        let warnings = found("enrich", &step).unwrap().warnings;
        let said = warnings
            .iter()
            .any(|warning| warning.contains("full = \"drop\""));
        assert_eq!(said, warns, "{settings}: {warnings:?}");
    }
}

/// Checks what is said of each: a rule's action, its step, and a part of the refusal.
fn refused(cases: &[(&str, &str, &str)]) {
    for (action, step, expected) in cases {
        let error = found(action, step).unwrap_err();
        assert!(error.contains(expected), "{step}: {error}");
    }
}

#[test]
fn every_transform_can_be_configured() {
    let steps = [
        "{ transform = \"consistency\", at_least = \"TWO\", serial = \"LOCAL_SERIAL\", kinds = \
         [\"writes\", \"select\"], keyspaces = [\"shop\"] }",
        "{ transform = \"guard\", refuse = [\"ddl\", \"no_limit\"], tables = [\"shop.*\"], \
         partition_keys = { \"shop.t\" = [\"k\"] }, mode = \"shadow\" }",
        "{ transform = \"null\" }",
        "{ transform = \"paging\", at_most = 10 }",
        "{ transform = \"rewrite\", addresses = \"dialled\", max_ttl = \"90d\", default_ttl = \"30d\", \
         timestamps = { max_ahead = \"1s\" }, keyspaces = { shop = \"shop_v2\" }, tables = { \
         \"shop.orders\" = \"shop_v2.orders_2026\" } }",
        "{ transform = \"tag\", service = \"s\", host = \"h\", prefix = \"p.\", comment = true }",
        "{ transform = \"throttle\", rate = 0.5, burst = 2, per = \"client\", mode = \"shadow\" }",
        "{ transform = \"tracing\", one_in = 100 }",
        "{ transform = \"cache\", redis = \"10.0.0.9:6379\", tables = [\"shop.products\"], ttl = \"30s\", max_bytes = 1, \
         timeout = \"20ms\", prefix = \"p\", username = \"u\", password_file = \"/p\" }",
        "{ transform = \"coalesce\", tables = { \"shop.e\" = { partition_key = [\"d\"], clustering = [\"at\"], \
         columns = [\"v\"] } }, window = \"2ms\", max_statements = 50, max_bytes = 65536 }",
        "{ transform = \"fold\", connections = 2, share = 9 }",
        "{ transform = \"mirror\", to = \"10.0.0.9:9042\", what = [\"reads\", \"writes\"], sample = 1.0, compare = \
         true, dual_write = true, username = \"u\", password_file = \"/p\", timeout = \"1s\", on_failure = \
         \"error\", show_values = true, compression = \"lz4\", tls = { ca = \"/a\", server_name = \"n\", cert = \"/c\", key = \"/k\" } }",
        "{ transform = \"lookup\" }",
        "{ transform = \"protect\", columns = { \"shop.customers\" = [\"iban\"] }, kms = \
         \"http://127.0.0.1:8200/keys\", refresh = \"10s\", max_age = \"60m\", timeout = \"1s\", \
         unencrypted = \"pass\", on_failure = \"error\" }",
        "{ transform = \"audit\", file = \"/a.log\", max_bytes = 1000000, keep = 3, fsync = \"batch\", \
         full = \"hold\", statement = true, tables = [\"shop.*\"], not_tables = [\"shop.x\"], kinds = \
         [\"writes\", \"select\"], not_kinds = [\"batch\"], users = [\"ann\"], not_users = [\"bob\"] }",
        "{ transform = \"count\" }",
        "{ transform = \"debug\", values = true, bytes = 64, sample = 0.1, per_second = 10, file = \
         \"/debug.log\", max_bytes = 1000000, keep = 2 }",
        "{ transform = \"slowlog\", over = \"100ms\", slowest_one_in = 1000, file = \"/var/log/slow\", \
         max_bytes = 1000000, keep = 0 }",
        "{ transform = \"stats\" }",
        "{ transform = \"trace\", endpoint = \"https://127.0.0.1:4317\", sample = 0.01, service = \"s\", tls = { ca = \"/a\", \
         server_name = \"n\", cert = \"/c\", key = \"/k\" } }",
    ];
    let names = super::names();
    let names: Vec<&str> = names.split(", ").collect();
    assert_eq!(names.len(), steps.len());
    for (name, step) in names.iter().zip(steps) {
        assert!(step.contains(name), "{name} is not tried");
        let pipelines = found("enrich", step).unwrap().pipelines;
        let rule = &RuleName::new("r");
        let reports = super::reporters::NAMES.contains(name);
        // An audit in a rule that refuses has what cannot be read refused.
        let edits = !reports || *name == "audit";
        assert_eq!(pipelines.edit(), edits);
        assert_eq!(pipelines.edits_of(rule).is_some(), edits);
        assert_eq!(pipelines.reporters_of(rule).is_some(), reports);
    }
}

#[test]
fn a_rule_that_protects_and_refuses_lets_nothing_pass_unread() {
    for (fail, step, is_strict) in [
        ("closed", "{ transform = \"throttle\", rate = 5 }", true),
        ("closed", "{ transform = \"audit\", file = \"/a\" }", true),
        (
            "closed",
            "{ transform = \"guard\", refuse = [\"ddl\"], mode = \"shadow\" }",
            true,
        ),
        ("closed", "{ transform = \"stats\" }", false),
        ("open", "{ transform = \"throttle\", rate = 5 }", false),
        ("open", "{ transform = \"audit\", file = \"/a\" }", false),
    ] {
        let text = format!(
            "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = {fail:?}\npipeline = [{step}]\n"
        );
        let config = Config::parse(Path::new("u.toml"), &text).unwrap();
        let edits = config.pipelines.edits_of(&RuleName::new("r"));
        let reads = edits.is_some_and(|edits| edits.iter().any(|step| step.is_strict()));
        assert_eq!(reads, is_strict, "{fail}: {step}");
    }
}

#[test]
fn what_must_not_be_in_plain_is_under_a_rule_that_lets_nothing_past() {
    let of = |rule: &str, more: &str| {
        let text = format!(
            "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\n{rule}\npipeline = [{{ \
             transform = \"protect\", columns = {{ \"a.b\" = [\"c\"] }}, keys = \"/k\" }}{more}]\n"
        );
        Config::parse(Path::new("u.toml"), &text).map_err(|e| e.to_string())
    };
    of("fail = \"closed\"", "").unwrap();
    of(
        "fail = \"closed\"",
        ", { transform = \"audit\", file = \"/a\" }",
    )
    .unwrap();
    for (rule, more, expected) in [
        ("", "", "u.toml:2:8: rule.fail: expected `closed`"),
        (
            "fail = \"open\"",
            "",
            "u.toml:5:8: rule.fail: expected `closed`",
        ),
        (
            "fail = \"closed\"\nsample = 0.5",
            "",
            "rule.sample: expected none",
        ),
        (
            "fail = \"closed\"",
            ", { transform = \"audit\", file = \"/a\", statement = true }",
            "expected no `statement = true`",
        ),
        (
            "fail = \"closed\"",
            ", { transform = \"debug\", values = true }",
            "expected no `values = true`",
        ),
    ] {
        let error = of(rule, more).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn what_the_documentation_shows_is_accepted() {
    let page = include_str!("../../../../../docs/pipelines.md");
    let shown = page.split("```toml\n").nth(1).unwrap();
    let shown = shown.split("```").next().unwrap();
    let config = Config::parse(Path::new("u.toml"), shown).unwrap();
    assert_eq!(config.warnings, Vec::<String>::new());
    for name in super::names().split(", ") {
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

/// The pages of single steps show pipelines, which a rule may have as they are.
#[test]
fn pipelines_on_the_pages_of_steps_are_accepted() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/steps");
    let mut shown = 0;
    for page in std::fs::read_dir(folder).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        let blocks = text.split("```toml\n").skip(1);
        for block in blocks.filter_map(|rest| rest.split("```").next()) {
            if !block.starts_with("pipeline = ") {
                continue;
            }
            shown += 1;
            let rule = format!(
                "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\n{block}"
            );
            let parsed = Config::parse(Path::new("u.toml"), &rule);
            let said =
                parsed.map_or_else(|error| vec![error.to_string()], |config| config.warnings);
            assert_eq!(said, Vec::<String>::new(), "{}", page.display());
        }
    }
    assert!(shown >= 7, "{shown}");
}
