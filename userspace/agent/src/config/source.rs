//! `[policy]`: where the fleet's policy is.

use std::path::PathBuf;

use policy_source::{
    API_SERVER, Failure, KubernetesSettings, MAX_ENDPOINTS, MAX_PREFIX_BYTES, OwnPod,
    SERVICE_ACCOUNT, Settings, in_cluster,
};
use serde::Deserialize;
use tls::Endpoint;
use toml::Spanned;

use super::{
    bounds::{DEFAULT_CACHE, DEFAULT_PREFIX, POLICY_SOURCES, names},
    error::Flaw,
    etcd::{self, RawEtcd},
    value::{absolute, one_of},
};

/// Where further rules come from: those of a fleet, which `underpass policy` changes in etcd, or `kubectl` in Kubernetes (`docs/fleet.md`). They stand behind the rules of the files,
/// and are checked and put into force as these are. Read when the agent starts.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"source": "etcd", "endpoints": ["http://127.0.0.1:2379"]}]))]
pub(super) struct RawPolicy {
    /// Kind of source.
    #[schemars(with = "String", extend("enum" = names(&POLICY_SOURCES)))]
    pub source: Spanned<String>,
    /// Members of the etcd cluster: `http://HOST:PORT` or `https://HOST:PORT`. One is asked at a time, and another when it fails.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(min = 1, max = MAX_ENDPOINTS),
        extend("title" = "list of URLs", "examples" = [["http://127.0.0.1:2379"]])
    )]
    pub endpoints: Vec<Spanned<String>>,
    /// API server of Kubernetes: `https://HOST:PORT`. Without this key that of the cluster in one of whose pods the agent is.
    #[schemars(
        with = "Option<String>",
        extend("title" = "URL", "examples" = ["https://10.0.0.1:6443"])
    )]
    pub server: Option<Spanned<String>>,
    /// File with the token by which the API server knows the agent, read for each request. Without this key and `server`: that of
    /// the pod's service account.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "examples" = ["/etc/underpass/token"])
    )]
    pub token_file: Option<Spanned<String>>,
    /// Key beneath which the policy is.
    #[schemars(
        with = "Option<String>",
        regex(pattern = "^/[A-Za-z0-9._/-]*[A-Za-z0-9._-]/*$"),
        length(max = MAX_PREFIX_BYTES),
        extend("default" = DEFAULT_PREFIX, "x-beside" = "endpoints")
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
    /// TLS towards etcd or the API server, with the keys of `upstream_tls`. Needed with `https` and with `server`, and only there.
    pub tls: Option<tls::RawDialling>,
    /// File in which the last policy that was put into force is kept, for when etcd is away at the start.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "default" = DEFAULT_CACHE)
    )]
    pub cache: Option<Spanned<String>>,
}

/// The fleet's policy: where it is, and where the last good one is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySource {
    /// Where it is.
    pub store: Store,
    /// The file in which the last one that was put into force is kept, for when etcd is away at the start.
    pub cache: PathBuf,
}

/// A store of policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Store {
    /// Files in etcd, which are one policy.
    Etcd(Settings),
    /// Objects of Kubernetes, each a policy.
    Kubernetes(KubernetesSettings),
}

impl Store {
    /// Reads certificates, passwords and tokens, only to check whether they can be used.
    ///
    /// # Errors
    /// Names the bad file, and the reason.
    pub fn read_secrets(&self) -> Result<(), Failure> {
        match self {
            Self::Etcd(settings) => settings.read_secrets(),
            Self::Kubernetes(settings) => settings.read_secrets(),
        }
    }

    /// Returns the name for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Etcd(_) => "etcd",
            Self::Kubernetes(_) => "Kubernetes",
        }
    }
}

/// Reads `[policy]`. `host`: the name of the host, which a node has unless the environment names it (`NODE_NAME`).
pub(super) fn of(
    raw: Option<RawPolicy>,
    host: &str,
    warnings: &mut Vec<String>,
) -> Result<Option<PolicySource>, Flaw> {
    let Some(raw) = raw else {
        return Ok(None);
    };
    let is_kubernetes = one_of("policy.source", &raw.source, &POLICY_SOURCES)?;
    let first = raw.endpoints.first();
    let etcds = [
        ("endpoints", first),
        ("prefix", raw.prefix.as_ref()),
        ("user", raw.user.as_ref()),
        ("password_file", raw.password_file.as_ref()),
    ];
    let kubernetes_own = [
        ("server", raw.server.as_ref()),
        ("token_file", raw.token_file.as_ref()),
    ];
    let (others, own) = match is_kubernetes {
        true => (&etcds[..], "`server` and `token_file`"),
        false => (
            &kubernetes_own[..],
            "`endpoints`, `prefix`, `user` and `password_file`",
        ),
    };
    if let Some((key, Some(found))) = others.iter().find(|(_, value)| value.is_some()) {
        // Not what it is: there may be a log-in in it.
        let source = raw.source.get_ref();
        let message = format!("policy.{key}: `{source}` has no such key, but {own}");
        return Err(Flaw::new(found.span(), message));
    }
    let cache = match &raw.cache {
        None => PathBuf::from(DEFAULT_CACHE),
        Some(path) => absolute("policy.cache", path)?,
    };
    let store = match is_kubernetes {
        true => Store::Kubernetes(kubernetes(raw, host)?),
        false => Store::Etcd(in_etcd(raw, warnings)?),
    };
    Ok(Some(PolicySource { store, cache }))
}

fn kubernetes(raw: RawPolicy, host: &str) -> Result<KubernetesSettings, Flaw> {
    let wrong =
        |key: &str, why: String| Flaw::new(raw.source.span(), format!("policy.{key}: {why}"));
    let is_in_cluster = raw.server.is_none();
    let (server, span) = match raw.server {
        Some(server) => (server.get_ref().clone(), server.span()),
        None => {
            let none = "expected the API server, `https://HOST:PORT`, because this is no pod of a cluster; found none";
            let server = in_cluster().ok_or_else(|| wrong("server", none.into()))?;
            (server, raw.source.span())
        }
    };
    let why_not = |why| Flaw::new(span.clone(), format!("policy.server: {why}"));
    let server = Endpoint::parse(&server, API_SERVER).map_err(why_not)?;
    if !server.is_encrypted() {
        return Err(why_not(
            "expected `https://HOST:PORT`; found `http://`".to_owned(),
        ));
    }
    let of_pod = |name: &str| PathBuf::from(SERVICE_ACCOUNT).join(name);
    let tls = match raw.tls.map(tls::RawDialling::read).transpose() {
        Err(why) => return Err(wrong("tls", why)),
        Ok(Some(tls)) => tls,
        Ok(None) if is_in_cluster => tls::Dialling {
            ca: of_pod("ca.crt"),
            server_name: None,
            own: None,
        },
        Ok(None) => {
            let what = "expected with `server`: `{ ca = \"/PATH\" }`, who has to have signed its certificate; found none";
            return Err(wrong("tls", what.into()));
        }
    };
    let token_file = match raw.token_file {
        Some(file) => {
            let span = file.span();
            let path = tls::secret("policy.token_file", file.into_inner());
            Some(path.map_err(|why| Flaw::new(span, why))?)
        }
        None => is_in_cluster.then(|| of_pod("token")),
    };
    Ok(KubernetesSettings {
        server,
        tls,
        token_file,
        node: std::env::var("NODE_NAME").unwrap_or_else(|_| host.to_owned()),
        pod: OwnPod::of_environment(),
    })
}

fn in_etcd(raw: RawPolicy, warnings: &mut Vec<String>) -> Result<Settings, Flaw> {
    let raw = RawEtcd {
        table: "policy",
        span: raw.source.span(),
        endpoints: raw.endpoints,
        prefix: raw.prefix,
        user: raw.user,
        password_file: raw.password_file,
        tls: raw.tls,
    };
    etcd::of(raw, "which rules hold here", warnings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::parse;

    #[test]
    fn a_source_is_read_and_what_is_wrong_is_named() {
        let table = |keys: &str| parse(&format!("[policy]\nsource = \"etcd\"\n{keys}\n"));
        let here = "endpoints = [\"http://127.0.0.1:2379\"]";
        let source = table(here).unwrap().source.unwrap();
        let etcd = |source: &PolicySource| match &source.store {
            Store::Etcd(settings) => settings.clone(),
            Store::Kubernetes(_) => panic!("{source:?}"),
        };
        assert_eq!(etcd(&source).prefix, "/underpass");
        assert_eq!(
            source.cache.to_str(),
            Some("/var/lib/underpass/policy.json")
        );
        let far = table("endpoints = [\"http://etcd1.example:2379\"]").unwrap();
        assert!(far.warnings.iter().any(|said| said.contains("without TLS")));
        let both = "endpoints = [\"https://a:1\"]\ntls = { ca = \"/a\" }\nuser = \"u\"\npassword_file = \"/p\"";
        let source = table(both).unwrap().source.unwrap();
        assert_eq!(etcd(&source).login.unwrap().user, "u");
        for (keys, said) in [
            (
                "endpoints = []",
                "policy.endpoints: expected 1 to 16 members",
            ),
            (
                "endpoints = [\"etcd:1\"]",
                "policy.endpoints: expected `http://HOST:PORT`",
            ),
            (
                "endpoints = [\"https://a:1\"]",
                "policy.tls: expected with `https://`",
            ),
            (
                "endpoints = [\"http://a:1\"]\ntls = { ca = \"/a\" }",
                "only; found `http://`",
            ),
            (
                "endpoints = [\"https://a:1\", \"http://b:1\"]\ntls = { ca = \"/a\" }",
                "`https://` for each, or for none",
            ),
            (
                &format!("{here}\ntoken_file = \"/t\""),
                "policy.token_file: `etcd` has no such key",
            ),
            (
                &format!("{here}\nuser = \"u\""),
                "both `user` and `password_file`",
            ),
            (
                &format!("{here}\nuser = \"u\"\npassword_file = \"p\""),
                "an absolute path",
            ),
            (
                &format!("{here}\nprefix = \"a\""),
                "policy.prefix: expected a key",
            ),
            (
                &format!("{here}\nprefix = \"/\""),
                "policy.prefix: expected a key",
            ),
            (
                &format!("{here}\ncache = \"a\""),
                "policy.cache: expected an absolute path",
            ),
        ] {
            let refused = table(keys).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        let consul = parse("[policy]\nsource = \"consul\"\nendpoints = []")
            .unwrap_err()
            .to_string();
        assert!(
            consul.contains("policy.source: expected `etcd`"),
            "{consul}"
        );
        let table = |keys: &str| parse(&format!("[policy]\nsource = \"kubernetes\"\n{keys}\n"));
        let there =
            "server = \"https://10.0.0.1:6443\"\ntls = { ca = \"/ca\" }\ntoken_file = \"/t\"";
        let source = table(there).unwrap().source.unwrap();
        let Store::Kubernetes(settings) = source.store else {
            panic!("{source:?}");
        };
        assert_eq!(settings.server.authority(), "10.0.0.1:6443");
        assert_eq!(settings.token_file.unwrap().to_str(), Some("/t"));
        for (keys, said) in [
            ("", "policy.server: expected the API server"),
            (
                "server = \"http://a:1\"\ntls = { ca = \"/ca\" }",
                "policy.server: expected `https://HOST:PORT`",
            ),
            (
                "server = \"https://a:1\"",
                "policy.tls: expected with `server`",
            ),
            (
                &format!("{there}\nprefix = \"/a\""),
                "policy.prefix: `kubernetes` has no such key",
            ),
        ] {
            let refused = table(keys).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
        }
        // A log-in in a URL is no secret any more once it is in a message.
        let login = table("endpoints = [\"http://me:hunter2@a:1\"]")
            .unwrap_err()
            .to_string();
        assert!(!login.contains("hunter2"), "{login}");
    }
}
