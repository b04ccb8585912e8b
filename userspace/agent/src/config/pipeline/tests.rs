//! Pipelines that a file may ask for, and those that it may not.

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

#[test]
fn every_transform_can_be_configured() {
    let steps = [
        "{ transform = \"consistency\", at_least = \"TWO\", serial = \"LOCAL_SERIAL\", kinds = \
         [\"writes\", \"select\"], keyspaces = [\"shop\"] }",
        "{ transform = \"guard\", refuse = [\"ddl\", \"no_limit\"], tables = [\"shop.*\"], \
         partition_keys = { \"shop.t\" = [\"k\"] }, mode = \"shadow\" }",
        "{ transform = \"lookup\" }",
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
        let edits = !super::reporters::NAMES.contains(name);
        assert_eq!(pipelines.edit(), edits);
        assert_eq!(pipelines.edits_of(rule).is_some(), edits);
        assert_eq!(pipelines.reporters_of(rule).is_some(), !edits);
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

#[test]
fn a_mistake_is_named_with_its_place() {
    let cases = [
        (
            "bypass",
            "{ transform = \"tag\" }",
            "u.toml:4:10: rule.action: expected `enrich`",
        ),
        (
            "enrich",
            "{ }",
            "u.toml:5:13: rule.pipeline: expected `transform`, one of consistency",
        ),
        (
            "enrich",
            "{ transform = \"tga\" }",
            "expected one of consistency, guard",
        ),
        ("enrich", "{ transform = 7 }", "found 7"),
        (
            "enrich",
            "{ transform = \"guard\", refuse = [\"dll\"] }",
            "unknown variant `dll`",
        ),
        (
            "enrich",
            "{ transform = \"guard\" }",
            "expected something to refuse",
        ),
        (
            "enrich",
            "{ transform = \"tag\", servce = \"x\" }",
            "unknown field `servce`",
        ),
        (
            "enrich",
            "{ transform = \"consistency\" }",
            "expected one of `exactly`",
        ),
        (
            "enrich",
            "{ transform = \"consistency\", exactly = \"SERIAL\" }",
            "exactly: expected one of ANY",
        ),
        (
            "enrich",
            "{ transform = \"consistency\", exactly = \"ONE\", at_most = \"TWO\" }",
            "exactly: expected without",
        ),
        (
            "enrich",
            "{ transform = \"consistency\", at_least = \"ALL\", at_most = \"TWO\" }",
            "at_least: expected a level that is not above",
        ),
        (
            "enrich",
            "{ transform = \"consistency\", exactly = \"ONE\", kinds = [\"inserts\"] }",
            "kinds: expected any of reads, writes, select",
        ),
        (
            "enrich",
            "{ transform = \"consistency\", exactly = \"ONE\", keyspaces = [] }",
            "keyspaces: expected one or more",
        ),
        (
            "enrich",
            "{ transform = \"paging\", at_most = 0 }",
            "expected 1 row or more",
        ),
        (
            "enrich",
            "{ transform = \"throttle\", rate = 0 }",
            "rate: expected 0.001 or more",
        ),
        (
            "enrich",
            "{ transform = \"throttle\", rate = nan }",
            "rate: expected 0.001 or more",
        ),
        (
            "enrich",
            "{ transform = \"throttle\", rate = 5, burst = 0.5 }",
            "burst: expected 1 or more",
        ),
        (
            "enrich",
            "{ transform = \"tracing\", one_in = 0 }",
            "one_in: expected 1 or more",
        ),
        (
            "enrich",
            "{ transform = \"audit\" }",
            "missing field `file`",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"a.log\" }",
            "file: expected an absolute path",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\", max_bytes = 1 }",
            "max_bytes: expected 262144 or more",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\", keep = 1001 }",
            "keep: expected at most 1000",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\", fsync = \"0s\" }",
            "fsync: expected `never`, `batch`",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\", full = \"wait\" }",
            "unknown variant `wait`",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\", kinds = [\"inserts\"] }",
            "kinds: expected any of reads, writes",
        ),
        (
            "enrich",
            "{ transform = \"audit\", file = \"/a\" }, { transform = \"audit\", file = \"/a\", keep = 1 }",
            "u.toml:2:8: rule.pipeline: expected /a to be kept alike",
        ),
        (
            "enrich",
            "{ transform = \"slowlog\" }",
            "expected one of `over`, `slowest_one_in`",
        ),
        (
            "enrich",
            "{ transform = \"slowlog\", over = \"61m\" }",
            "over: expected milliseconds, seconds or minutes",
        ),
        (
            "enrich",
            "{ transform = \"slowlog\", slowest_one_in = 1 }",
            "slowest_one_in: expected 2 to 1000000, found 1",
        ),
        (
            "enrich",
            "{ transform = \"slowlog\", over = \"1s\", file = \"slow\" }",
            "file: expected an absolute path",
        ),
        (
            "enrich",
            "{ transform = \"trace\", sample = 1 }",
            "missing field `endpoint`",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"http://127.0.0.1:4317\" }",
            "missing field `sample`",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"127.0.0.1:4317\", sample = 1 }",
            "endpoint: expected `http://HOST:PORT` or `https://HOST:PORT`, where a collector takes OTLP",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"https://127.0.0.1:4317\", sample = 1 }",
            "tls: expected with `https://`: `{ ca = \"/PATH\" }`",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"http://a:1\", sample = 1, tls = { ca = \"/a\" } }",
            "tls: expected with `https://` only",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"https://a:1\", sample = 1, tls = { ca = \"a\" } }",
            "tls: ca: expected an absolute path; found \"a\"",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"https://a:1\", sample = 1, tls = { ca = \"/a\", key = \"/k\" } }",
            "tls: expected both `cert` and `key`, or neither",
        ),
        (
            "enrich",
            "{ transform = \"rewrite\" }",
            "expected one of `addresses`, `keyspaces`, `tables`, `max_ttl`",
        ),
        (
            "enrich",
            "{ transform = \"rewrite\", keyspaces = { shop = \"v2\" }, tables = { \"shop.a\" = \"shop.b\" } }",
            "tables: `shop.a`: expected a table of `v2`",
        ),
        (
            "enrich",
            "{ transform = \"rewrite\", timestamps = { ahead = \"1s\" } }",
            "timestamps: expected `\"server\"` or `{ max_ahead = \"1s\" }`",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"http://a:1\", sample = 1.5 }",
            "sample: expected a fraction of requests, 0 to 1; found 1.5",
        ),
        (
            "enrich",
            "{ transform = \"trace\", endpoint = \"http://a:1\", sample = 1, service = \"\" }",
            "service: expected a name of 1 to 255 bytes; found 0 bytes",
        ),
    ];
    let mirror = "{ transform = \"mirror\", to = \"10.0.0.9:9042\"";
    let tag = "{ transform = \"tag\" }";
    let mirrors = [
        (
            "{ transform = \"mirror\" }".to_owned(),
            "missing field `to`",
        ),
        (
            "{ transform = \"mirror\", to = \"db:9042\" }".to_owned(),
            "to: expected `IP:PORT`",
        ),
        (format!("{mirror}, what = [] }}"), "what: expected any of"),
        (
            format!("{mirror}, what = [\"ddl\"] }}"),
            "unknown variant `ddl`",
        ),
        (
            format!("{mirror}, sample = 0.0 }}"),
            "sample: expected a fraction",
        ),
        (
            format!("{mirror}, timeout = \"11s\" }}"),
            "timeout: expected `1ms` to `10s`",
        ),
        (
            format!("{mirror}, username = \"u\" }}"),
            "username: expected with `password_file`",
        ),
        (
            format!("{mirror}, password_file = \"/p\" }}"),
            "password_file: expected with",
        ),
        (
            format!("{mirror}, username = \"u\", password_file = \"p\" }}"),
            "password_file: expected an absolute path",
        ),
        (
            format!("{mirror}, tls = {{ ca = \"a\" }} }}"),
            "tls: ca: expected an absolute path; found \"a\"",
        ),
        (format!("{mirror}, tls = {{ }} }}"), "missing field `ca`"),
        (
            format!("{mirror}, on_failure = \"error\" }}"),
            "on_failure: expected `error` with",
        ),
        (
            format!("{mirror}, show_values = true }}"),
            "show_values: expected with",
        ),
        (
            format!("{mirror}, dual_write = true, what = [\"reads\"] }}"),
            "dual_write: expected `writes`",
        ),
        (
            format!("{mirror}, dual_write = true, sample = 0.5 }}"),
            "dual_write: expected without",
        ),
        (
            format!("{mirror} }}, {tag}"),
            "u.toml:5:61: rule.pipeline: expected mirror behind all transforms",
        ),
        (
            format!(
                "{mirror} }}, {{ transform = \"protect\", columns = {{ \"a.b\" = [\"c\"] }}, keys = \"/k\" }}"
            ),
            "expected mirror behind all transforms, because it takes requests as the database gets them; found \
             protect behind it",
        ),
    ];
    for (step, expected) in mirrors {
        let error = found("enrich", &step).unwrap_err();
        assert!(error.contains(expected), "{step}: {error}");
    }
    let cache = "{ transform = \"cache\", redis = \"10.0.0.9:6379\"";
    let of = "tables = [\"shop.a\"], ttl = \"30s\"";
    let caches = [
        (format!("{cache} }}"), "missing field `tables`"),
        (
            format!("{{ transform = \"cache\", redis = \"r:6379\", {of} }}"),
            "redis: expected `IP:PORT`; found \"r:6379\"",
        ),
        (
            format!("{cache}, tables = [], ttl = \"30s\" }}"),
            "tables: expected 1 to 32",
        ),
        (
            format!("{cache}, tables = [\"shop\"], ttl = \"30s\" }}"),
            "tables: expected `keyspace.table`",
        ),
        (
            format!("{cache}, tables = [\"system.local\"], ttl = \"30s\" }}"),
            "tables: expected none of the server's own",
        ),
        (
            format!("{cache}, tables = [\"a.b\"], ttl = \"2000m\" }}"),
            "ttl: expected `1ms` to `1440m`; found \"2000m\"",
        ),
        (
            format!("{cache}, {of}, timeout = \"0ms\" }}"),
            "timeout: expected `1ms` to `10s`",
        ),
        (
            format!("{cache}, {of}, max_bytes = 0 }}"),
            "max_bytes: expected 1 to 1048576; found 0",
        ),
        (
            format!("{cache}, {of}, prefix = \"\" }}"),
            "prefix: expected",
        ),
        (
            format!("{cache}, {of}, username = \"u\" }}"),
            "username: expected with `password_file`",
        ),
        (
            format!("{cache}, {of}, password_file = \"p\" }}"),
            "password_file: expected an absolute path",
        ),
        (
            format!("{cache}, {of} }}, {tag}"),
            "expected cache behind all transforms",
        ),
        (
            format!("{{ transform = \"rewrite\", keyspaces = {{ a = \"b\" }} }}, {cache}, {of} }}"),
            "expected no `keyspaces` and `tables` of rewrite",
        ),
    ];
    for (step, expected) in caches {
        let error = found("enrich", &step).unwrap_err();
        assert!(error.contains(expected), "{step}: {error}");
    }
    let coalesce = "{ transform = \"coalesce\", tables = { \"a.b\" = { partition_key = [\"p\"], clustering = \
                    [\"c\"], columns = [] } } }";
    let protect = "{ transform = \"protect\", columns = { \"a.b\" = [\"v\"] }, keys = \"/k\" }";
    let guard = "{ transform = \"guard\", max_batch = 9 }";
    let rewrite = "{ transform = \"rewrite\"";
    let fold = "{ transform = \"fold\", connections = 2, share = 8 }";
    let orders = [
        (
            format!("{coalesce}, {protect}"),
            "u.toml:5:123: rule.pipeline: expected protect before coalesce, because a write that it refuses",
        ),
        (
            format!("{coalesce}, {guard}"),
            "expected guard before coalesce",
        ),
        (
            format!("{coalesce}, {tag}, {coalesce}"),
            "expected coalesce once",
        ),
        (
            format!("{mirror} }}, {coalesce}"),
            "expected mirror behind all transforms",
        ),
        (
            format!("{cache}, {of} }}, {coalesce}"),
            "expected cache behind all transforms",
        ),
        (
            format!("{coalesce}, {rewrite}, tables = {{ \"a.b\" = \"a.c\" }} }}"),
            "`tables` of rewrite in a pipeline with coalesce",
        ),
        (
            format!("{rewrite}, keyspaces = {{ a = \"b\" }} }}, {{ transform = \"lookup\" }}"),
            "of rewrite in a pipeline with lookup, which would take the database's names for the client's",
        ),
        (
            format!("{fold}, {tag}"),
            "expected fold behind all transforms",
        ),
        (
            format!("{fold}, {coalesce}"),
            "expected fold behind all transforms",
        ),
        (
            format!("{fold}, {mirror} }}"),
            "expected fold behind all other steps, because what it hands over does not reach them; found mirror",
        ),
        (format!("{fold}, {fold}"), "expected fold once"),
        (
            format!("{rewrite}, keyspaces = {{ a = \"b\" }} }}, {fold}"),
            "`tables` of rewrite in a pipeline with fold",
        ),
        (
            "{ transform = \"fold\", connections = 0 }".to_owned(),
            "fold: connections: expected 1 to 16",
        ),
    ];
    for (steps, expected) in orders {
        let error = found("enrich", &steps).unwrap_err();
        assert!(error.contains(expected), "{steps}: {error}");
    }
    let all = format!(
        "{guard}, {rewrite}, timestamps = \"server\" }}, {protect}, {coalesce}, {rewrite}, default_ttl = \"9d\" }}, \
         {{ transform = \"throttle\", rate = 9 }}, {cache}, {of} }}, {mirror} }}, \
         {fold}"
    );
    found("enrich", &all).unwrap();
    let encrypted = format!("{fold}]\nupstream_tls = {{ ca = \"/ca\" }} #");
    found("enrich", &encrypted).unwrap();
    found("enrich", &format!("{tag}, {cache}, {of} }}, {mirror} }}")).unwrap();
    found(
        "enrich",
        &format!("{tag}, {mirror} }}, {mirror}, compare = true }}"),
    )
    .unwrap();
    for (action, step, expected) in cases {
        let error = found(action, step).unwrap_err();
        assert!(error.contains(expected), "{step}: {error}");
    }
    let many = vec!["{ transform = \"tag\" }"; super::MAX_STEPS + 1].join(", ");
    let error = found("enrich", &many).unwrap_err();
    assert!(error.contains("at most 32 transforms; found 33"), "{error}");
}
