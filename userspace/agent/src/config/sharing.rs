//! `[limits]`: the etcd by which the hosts of a fleet share limits.

use policy_source::{MAX_ENDPOINTS, MAX_PREFIX_BYTES, Settings};
use serde::Deserialize;
use toml::Spanned;

use super::{
    bounds::DEFAULT_PREFIX,
    error::Flaw,
    etcd::{self, RawEtcd},
    source::{PolicySource, Store},
};

/// The etcd by which the hosts of a fleet share the rates of `throttle` with `scope = "fleet"` (`docs/fleet.md`). Without this table: that of
/// `[policy]`, where its source is `etcd`. Read when the agent starts.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"endpoints": ["http://127.0.0.1:2379"]}]))]
pub(super) struct RawLimits {
    /// Members of the etcd cluster: `http://HOST:PORT` or `https://HOST:PORT`. One is asked at a time, and another when it fails.
    #[schemars(
        with = "Vec<String>",
        length(min = 1, max = MAX_ENDPOINTS),
        extend("title" = "list of URLs", "examples" = [["http://127.0.0.1:2379"]])
    )]
    pub endpoints: Vec<Spanned<String>>,
    /// Key beneath which hosts share limits, beneath `limits/`.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]/*$"),
        length(max = MAX_PREFIX_BYTES),
        extend("default" = DEFAULT_PREFIX)
    )]
    pub prefix: Option<Spanned<String>>,
    /// User of etcd. Needs `password_file`.
    #[schemars(with = "Option<String>", extend("examples" = ["agent"]))]
    pub user: Option<Spanned<String>>,
    /// File with the user's password. `${NAME}` in its path is a variable of the agent's environment. Needs `user`.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "examples" = ["/etc/underpass/etcd.password"])
    )]
    pub password_file: Option<Spanned<String>>,
    /// TLS towards etcd, with the keys of `upstream_tls`. Needed with `https`, and only there.
    pub tls: Option<tls::RawDialling>,
}

/// Reads `[limits]`. `source`: that of the fleet's policy.
pub(super) fn of(
    raw: Option<Spanned<RawLimits>>,
    source: Option<&PolicySource>,
    warnings: &mut Vec<String>,
) -> Result<Option<Settings>, Flaw> {
    let Some(raw) = raw else {
        return Ok(match source.map(|source| &source.store) {
            Some(Store::Etcd(settings)) => Some(settings.clone()),
            Some(Store::Kubernetes(_)) | None => None,
        });
    };
    let span = raw.span();
    let raw = raw.into_inner();
    let raw = RawEtcd {
        table: "limits",
        span,
        endpoints: raw.endpoints,
        prefix: raw.prefix,
        user: raw.user,
        password_file: raw.password_file,
        tls: raw.tls,
    };
    etcd::of(raw, "how much of a limit this host has", warnings).map(Some)
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    fn with(table: &str, steps: &str) -> String {
        format!(
            "{table}\n[[rule]]\nname = \"shop\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\npipeline = [{steps}]\n"
        )
    }

    const FLEETS: &str =
        "{ transform = \"throttle\", rate = 1000, per = \"user\", scope = \"fleet\" }";

    #[test]
    fn the_fleets_limits_have_a_store() {
        let own = "[limits]\nendpoints = [\"http://127.0.0.1:2379\"]";
        let etcds = "[policy]\nsource = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]";
        for (table, port) in [
            (own.to_owned(), 2379),
            (etcds.to_owned(), 1),
            (format!("{own}\n{etcds}"), 2379),
        ] {
            let config = parse(&with(&table, FLEETS)).unwrap();
            let store = config.limits.unwrap();
            assert_eq!(store.endpoints[0].authority(), format!("127.0.0.1:{port}"));
            let limits: Vec<_> = config
                .pipelines
                .limits()
                .map(|limit| (limit.name(), limit.rate()))
                .collect();
            assert_eq!(limits, [("shop.user", 1000.0)]);
        }
        let far = parse("[limits]\nendpoints = [\"http://etcd1.example:2379\"]").unwrap();
        let said = far.warnings.concat();
        assert!(
            said.contains("limits.endpoints: without TLS") && said.contains("how much of a limit"),
            "{said}"
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let none = refusal(&with("", FLEETS));
        assert!(
            none.contains("expected `[limits]` with `endpoints`"),
            "{none}"
        );
        let store = "[limits]\nendpoints = [\"http://127.0.0.1:2379\"]";
        let twice = refusal(&with(store, &format!("{FLEETS}, {FLEETS}")));
        assert!(twice.contains("shop.user"), "{twice}");
        let other = FLEETS.replace("user", "table");
        parse(&with(store, &format!("{FLEETS}, {other}"))).unwrap();
        for (table, said) in [
            (
                "[limits]\nendpoints = []",
                "limits.endpoints: expected 1 to 16 members",
            ),
            (
                "[limits]\nendpoints = [\"https://a:1\"]",
                "limits.tls: expected with `https://`",
            ),
            (
                &format!("{store}\nuser = \"u\""),
                "limits: expected both `user` and `password_file`",
            ),
            (
                &format!("{store}\nprefix = \"a\""),
                "limits.prefix: expected a key",
            ),
        ] {
            let refused = refusal(table);
            assert!(refused.contains(said), "{refused}");
        }
    }
}
