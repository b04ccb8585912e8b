//! Steps that ask somebody outside, and those that merge or share: their settings, where they stand, and how many steps
//! there may be.

use super::found;
use crate::config::bounds::MAX_STEPS;

#[test]
fn mistakes_in_effects_and_in_the_order_of_steps_are_named() {
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
            format!("{rewrite}, tables = {{ \"a.b\" = \"a.c\" }} }}, {{ transform = \"lookup\", connection = \"own\" }}"),
            "of rewrite in a pipeline with lookup, which would take the database's names for the client's",
        ),
        (
            "{ transform = \"lookup\", username = \"u\", password_file = \"/p\" }".to_owned(),
            "username: expected with `connection = \"own\"`",
        ),
        (
            "{ transform = \"lookup\", connection = \"own\", username = \"u\" }".to_owned(),
            "username: expected with `password_file`",
        ),
        (
            "{ transform = \"lookup\", connection = \"own\", username = \"u\", password_file = \"p\" }".to_owned(),
            "password_file: expected an absolute path; found p",
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
}

#[test]
fn there_are_only_so_many_steps() {
    let many = vec!["{ transform = \"tag\" }"; MAX_STEPS + 1].join(", ");
    let error = found("enrich", &many).unwrap_err();
    assert!(error.contains("at most 32 transforms; found 33"), "{error}");
}
