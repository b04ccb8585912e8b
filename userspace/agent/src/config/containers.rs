//! `[containers]`: where container runtimes are. `container`, `labels`, `namespace`, `service_account` and
//! `owner` of a rule.

use std::collections::BTreeMap;

use policy::{
    ContainerConditions, Glob, MAX_CONTAINER_CONDITIONS, MAX_CONTAINER_TEXT_BYTES,
    MAX_POD_CONDITIONS, PodConditions, Policy, Rule, owner_in_full,
};
use serde::Deserialize;
use toml::Spanned;

use super::{
    PolicySource, Store,
    bounds::{self, MAX_RECORD_LABELS},
    error::Flaw,
    value::{expected, socket_path},
};
use crate::containers::{MAX_RUNTIMES, Socket, Speaks, default_sockets};

/// Sockets of container runtimes. The agent asks them if a rule names containers or pods.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"docker": ["/run/podman/podman.sock"], "cri": []}]))]
pub(super) struct RawContainers {
    /// Sockets that speak Docker's API. Those that do not exist are passed over. Both lists together have at most 8.
    #[schemars(
        with = "Option<Vec<String>>",
        length(max = MAX_RUNTIMES),
        extend("title" = "list of absolute paths", "default" = bounds::default_paths(Speaks::Docker))
    )]
    pub docker: Option<Vec<Spanned<String>>>,
    /// Sockets that speak the Container Runtime Interface (containerd, CRI-O).
    #[schemars(
        with = "Option<Vec<String>>",
        length(max = MAX_RUNTIMES),
        extend("title" = "list of absolute paths", "default" = bounds::default_paths(Speaks::Cri))
    )]
    pub cri: Option<Vec<Spanned<String>>>,
    /// Labels that records of `audit`, `slowlog` and `trace`, and metrics of `stats`, have of a client's container and pod, beside names. With
    /// this key runtimes are asked whatever rules say; so they are where the policy is in Kubernetes.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_RECORD_LABELS),
        extend("title" = "list of keys of labels", "examples" = [["app.kubernetes.io/name", "team"]])
    )]
    pub record_labels: Vec<Spanned<String>>,
}

/// A key that is left out has its default; an empty list: none is asked.
pub(super) fn sockets(raw: RawContainers) -> Result<Vec<Socket>, Flaw> {
    let mut sockets = Vec::new();
    for (speaks, key, paths) in [
        (Speaks::Docker, "containers.docker", raw.docker),
        (Speaks::Cri, "containers.cri", raw.cri),
    ] {
        let Some(paths) = paths else {
            let defaults = default_sockets().into_iter();
            sockets.extend(defaults.filter(|socket| socket.speaks == speaks));
            continue;
        };
        for text in &paths {
            let path = socket_path(key, text)?;
            if sockets.iter().any(|socket: &Socket| socket.path == path) {
                return expected(key, text, "a socket that is not named yet");
            }
            if sockets.len() >= MAX_RUNTIMES {
                return expected(key, text, &format!("at most {MAX_RUNTIMES} sockets in all"));
            }
            sockets.push(Socket { speaks, path });
        }
    }
    Ok(sockets)
}

/// Reads the keys of the labels that records have.
pub(super) fn record_labels(keys: &[Spanned<String>]) -> Result<Vec<String>, Flaw> {
    if let Some(too_many) = keys.get(MAX_RECORD_LABELS) {
        let most = format!("at most {MAX_RECORD_LABELS} keys");
        return expected("containers.record_labels", too_many, &most);
    }
    let keys = keys.iter().map(|key| {
        let text = key.get_ref();
        let is_key = (1..=MAX_CONTAINER_TEXT_BYTES).contains(&text.len())
            && !text.contains(char::is_control);
        match is_key {
            true => Ok(text.clone()),
            false => {
                let what = format!("the key of a label, of 1 to {MAX_CONTAINER_TEXT_BYTES} bytes");
                expected("containers.record_labels", key, &what)
            }
        }
    });
    keys.collect()
}

pub(super) fn conditions(
    names: &[Spanned<String>],
    labels: &BTreeMap<String, Spanned<String>>,
) -> Result<ContainerConditions, Flaw> {
    let labels = labels.iter().map(|(key, value)| {
        if !(1..=MAX_CONTAINER_TEXT_BYTES).contains(&key.len()) {
            let most = format!("keys of 1 to {MAX_CONTAINER_TEXT_BYTES} bytes");
            return expected("rule.labels", value, &most);
        }
        Ok((key.clone(), glob("rule.labels", value)?))
    });
    if let Some(too_many) = names.get(MAX_CONTAINER_CONDITIONS) {
        let most = format!("at most {MAX_CONTAINER_CONDITIONS} names");
        return expected("rule.container", too_many, &most);
    }
    let names = names.iter().map(|name| glob("rule.container", name));
    Ok(ContainerConditions::new(
        names.collect::<Result<_, _>>()?,
        labels.collect::<Result<_, _>>()?,
    ))
}

/// Conditions on the pod: `namespace`, `service_account` and `owner` of a rule.
pub(super) fn of_pods(
    namespaces: &[Spanned<String>],
    accounts: &[Spanned<String>],
    owners: &[Spanned<String>],
) -> Result<PodConditions, Flaw> {
    let owners = owners.iter().map(|text| {
        let span = text.span();
        let full = owner_in_full(text.get_ref()).map(|full| Spanned::new(span, full));
        let form =
            "`KIND/NAME`, where KIND is `deploy`, `sts`, `ds`, `rs`, `job` or `cronjob`, such as \"deploy/shop\"";
        full.map_or_else(|| expected("rule.owner", text, form), Ok)
    });
    let owners = owners.collect::<Result<Vec<_>, Flaw>>()?;
    Ok(PodConditions {
        namespaces: globs("rule.namespace", namespaces)?,
        service_accounts: globs("rule.service_account", accounts)?,
        owners: globs("rule.owner", &owners)?,
    })
}

/// Rules whose conditions on the pod nobody tells: only an API server does.
pub(super) fn doubts(policy: &Policy, source: Option<&PolicySource>) -> Vec<String> {
    let is_told = source.is_some_and(|source| matches!(source.store, Store::Kubernetes(_)));
    let asks = |rule: &&Rule| {
        let pods = &rule.containers.pods;
        let asks_none = pods.service_accounts.is_empty() && pods.owners.is_empty();
        !is_told && !asks_none
    };
    let doubt = |rule: &Rule| {
        format!(
            "rule {}: it holds for nobody, because only an API server tells `service_account` and `owner`: set `[policy]` with \
             source = \"kubernetes\"",
            rule.name
        )
    };
    policy.rules.iter().filter(asks).map(doubt).collect()
}

fn globs(key: &str, texts: &[Spanned<String>]) -> Result<Vec<Glob>, Flaw> {
    if let Some(too_many) = texts.get(MAX_POD_CONDITIONS) {
        return expected(key, too_many, &format!("at most {MAX_POD_CONDITIONS}"));
    }
    texts.iter().map(|text| glob(key, text)).collect()
}

fn glob(key: &str, text: &Spanned<String>) -> Result<Glob, Flaw> {
    match Glob::parse(text.get_ref()) {
        Some(glob) => Ok(glob),
        None => {
            let form =
                format!("1 to {MAX_CONTAINER_TEXT_BYTES} bytes, in which `*` stands for anything");
            expected(key, text, &form)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(Path::new("p.toml"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn containers_are_read() {
        let config = parse(
            "[containers]\ndocker = [\"/run/podman/podman.sock\"]\n[[rule]]\nname = \"r\"\n\
             container = [\"a-*\", \"b\"]\nlabels = { \"io.x/y\" = \"z\", app = \"*\" }\n\
             to = [\":9042\"]\naction = \"deny\"\nfail = \"closed\"\n",
        );
        let config = config.unwrap();
        let shown = |glob: &Glob| glob.to_string();
        let of_rule = &config.policy.rules[0].containers;
        let names: Vec<_> = of_rule.names.iter().map(shown).collect();
        let labels = of_rule.labels.iter().map(|(k, v)| (k.as_str(), shown(v)));
        assert_eq!(names, ["a-*", "b"]);
        let expected = [("app", "*".to_owned()), ("io.x/y", "z".to_owned())];
        assert_eq!(labels.collect::<Vec<_>>(), expected);
        assert!(config.policy.names_containers());
        let [docker, cri @ ..] = config.containers.as_slice() else {
            panic!("no socket");
        };
        assert_eq!(docker.speaks, Speaks::Docker);
        assert_eq!(docker.path, Path::new("/run/podman/podman.sock"));
        assert!(cri.len() == 2 && cri.iter().all(|socket| socket.speaks == Speaks::Cri));
        let none = parse("[containers]\ndocker = []\ncri = []\n").unwrap();
        assert_eq!(none.containers, []);
        assert_eq!(parse("").unwrap().containers, default_sockets());
    }

    #[test]
    fn a_condition_that_nobody_tells_is_said() {
        let warned = |keys: &str| {
            let rule = "[[rule]]\nname = \"r\"\naction = \"bypass\"\nto = [\":9042\"]\n";
            let warnings = parse(&format!("{rule}{keys}")).unwrap().warnings;
            warnings
                .iter()
                .any(|said| said.contains("rule r: it holds for nobody"))
        };
        assert!(warned("service_account = [\"web\"]\n"));
        assert!(warned(
            "owner = [\"deploy/web\"]\n[policy]\nsource = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\n"
        ));
        assert!(!warned("namespace = [\"shop\"]\n"));
        let server = "[policy]\nsource = \"kubernetes\"\nserver = \"https://127.0.0.1:1\"\ntls = { ca = \"/c\" }\n";
        assert!(!warned(&format!("service_account = [\"web\"]\n{server}")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let rule = |key: &str| format!("[[rule]]\nname = \"r\"\naction = \"deny\"\n{key}\n");
        let many = |what: &str, n: usize| {
            let each = (0..n).map(|n| format!("\"/{n}\""));
            format!("{what} = [{}]", each.collect::<Vec<_>>().join(", "))
        };
        for (text, said) in [
            (
                rule("container = [\"\"]"),
                "4:14: rule.container: expected 1 to 256 bytes",
            ),
            (
                rule("labels = { a = \"\" }"),
                "4:16: rule.labels: expected 1 to 256 bytes",
            ),
            (
                rule("labels = { \"\" = \"x\" }"),
                "rule.labels: expected keys of 1 to 256",
            ),
            (rule("labels = [\"a=b\"]"), "4:10: "),
            (
                rule("namespace = [\"\"]"),
                "rule.namespace: expected 1 to 256 bytes",
            ),
            (
                rule("owner = [\"shop\"]"),
                "4:10: rule.owner: expected `KIND/NAME`",
            ),
            (
                rule(&many("service_account", 65)),
                "rule.service_account: expected at most 64",
            ),
            (
                rule(&many("container", 65)),
                "rule.container: expected at most 64 names",
            ),
            (
                "[containers]\ndocker = [\"run/docker.sock\"]\n".into(),
                "2:11: containers.docker: expected an absolute path",
            ),
            (
                "[containers]\ndocker = [\"/a\"]\ncri = [\"/b\", \"/a\"]\n".into(),
                "3:14: containers.cri: expected a socket that is not named yet",
            ),
            (
                format!("[containers]\n{}\n", many("cri", 9)),
                "containers.cri: expected at most 8 sockets",
            ),
            (
                "[containers]\npodman = []\n".into(),
                "unknown field `podman`",
            ),
        ] {
            let found = parse(&text).unwrap_err();
            assert!(found.contains(said), "{text:?}: {found}");
        }
    }
}
