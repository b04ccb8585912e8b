//! Settings of steps that change or refuse requests by themselves, and mistakes in them.

use super::refused;

#[test]
fn a_mistake_is_named_with_its_place() {
    refused(&[
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
    ]);
}
