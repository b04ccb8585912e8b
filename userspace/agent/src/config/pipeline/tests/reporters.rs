//! Settings of steps that report, and mistakes in them.

use super::refused;

#[test]
fn mistakes_in_reporters_are_named() {
    refused(&[
        (
            "enrich",
            "{ transform = \"audit\" }",
            "expected one of `file`, `otlp = true`",
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
            "endpoint: expected the address of a collector, here or in a table `[otlp]`",
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
            "{ transform = \"trace\", sample = 1, tls = { ca = \"/a\" } }",
            "tls: expected beside an `endpoint`; found none",
        ),
        (
            "enrich",
            "{ transform = \"slowlog\", over = \"1s\", otlp = true }",
            "otlp: expected a table `[otlp]` with the `endpoint` of a collector; found none",
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
    ]);
}
