//! `[[cluster]]`: clusters whose nodes rules may name.

use std::sync::Arc;

use names::{
    ClusterSettings, ContactPoint, Login, MAX_CLUSTERS, MAX_CONTACT_POINTS, MAX_DATACENTERS,
};
use policy::{Name, Policy, cluster_name};
use serde::Deserialize;
use toml::Spanned;

use super::{error::Flaw, value::expected};

/// A cluster of databases. `to = ["cluster:NAME"]` of a rule stands for its nodes, which the agent reads from one of them by a
/// connection of its own, and follows (`docs/names.md`). Read again with the rules.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{
    "name": "shop", "contact_points": ["10.1.0.1:9042", "db.shop:9042"], "user": "underpass",
    "password_file": "/etc/underpass/shop.password"
}]))]
pub(super) struct RawCluster {
    /// Name of the cluster in rules: a letter, and then letters, digits, `-`, `_` and `.`.
    #[schemars(with = "String", regex(pattern = "^[A-Za-z][A-Za-z0-9._-]{0,62}$"))]
    pub name: Spanned<String>,
    /// Nodes that are asked first: addresses or hosts, and their ports.
    #[schemars(
        with = "Vec<String>",
        length(min = 1, max = MAX_CONTACT_POINTS),
        extend("title" = "list of HOST:PORT")
    )]
    pub contact_points: Vec<Spanned<String>>,
    /// User who logs in, by SASL PLAIN, and may read `system.local`, `system.peers` and `system.peers_v2`. Needs
    /// `password_file`.
    #[schemars(with = "Option<String>", extend("examples" = ["underpass"]))]
    pub user: Option<Spanned<String>>,
    /// File whose one line is the password. `${NAME}` in its path is a variable of the agent's environment. Needs `user`.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "examples" = ["/etc/underpass/shop.password"])
    )]
    pub password_file: Option<Spanned<String>>,
    /// TLS towards the nodes, with the keys of `upstream_tls`.
    pub tls: Option<tls::RawDialling>,
    /// Data centres whose nodes count. Without this key: all.
    #[serde(default)]
    #[schemars(
        with = "Vec<String>",
        length(max = MAX_DATACENTERS),
        extend("examples" = [["dc1"]])
    )]
    pub datacenters: Vec<Spanned<String>>,
}

/// Reads the clusters.
pub(super) fn of(
    raw: Vec<Spanned<RawCluster>>,
    warnings: &mut Vec<String>,
) -> Result<Vec<Arc<ClusterSettings>>, Flaw> {
    if let Some(too_many) = raw.get(MAX_CLUSTERS) {
        let message = format!("[[cluster]]: at most {MAX_CLUSTERS}, found {}", raw.len());
        return Err(Flaw::new(too_many.span(), message));
    }
    let mut all = Vec::<Arc<ClusterSettings>>::new();
    for raw in raw {
        let cluster = one(raw.into_inner(), &all)?;
        if cluster.login.is_some() && cluster.tls.is_none() {
            warnings.push(format!(
                "cluster {}: without `tls`, the password passes the network in the clear",
                cluster.name
            ));
        }
        all.push(Arc::new(cluster));
    }
    Ok(all)
}

/// Clusters that no rule names. `is_alone`: all rules are known, none comes from elsewhere later.
pub(super) fn doubts(
    clusters: &[Arc<ClusterSettings>],
    policy: &Policy,
    is_alone: bool,
) -> Vec<String> {
    let names = policy.destination_names();
    let is_named = |cluster: &ClusterSettings| {
        let mut names = names.iter();
        names.any(|name| matches!(name, Name::Cluster(name) if *name == cluster.name))
    };
    let without = clusters
        .iter()
        .filter(|cluster| is_alone && !is_named(cluster));
    without
        .map(|cluster| {
            format!(
                "cluster {0}: no rule here has `to = [\"cluster:{0}\"]`, so nobody asks it for its nodes",
                cluster.name
            )
        })
        .collect()
}

fn one(raw: RawCluster, above: &[Arc<ClusterSettings>]) -> Result<ClusterSettings, Flaw> {
    let name = cluster_name(raw.name.get_ref());
    let name = name.or_else(|what| expected("cluster.name", &raw.name, &what))?;
    if above.iter().any(|cluster| cluster.name == name) {
        return expected(
            "cluster.name",
            &raw.name,
            "a name that no cluster above has",
        );
    }
    let count = raw.contact_points.len();
    if !(1..=MAX_CONTACT_POINTS).contains(&count) {
        let message = format!(
            "cluster.contact_points: expected 1 to {MAX_CONTACT_POINTS} nodes; found {count}"
        );
        return Err(Flaw::new(raw.name.span(), message));
    }
    let point = |text: &Spanned<String>| {
        let point = text.get_ref().parse::<ContactPoint>();
        point.or_else(|what| expected("cluster.contact_points", text, &what))
    };
    let contact_points = raw.contact_points.iter().map(point);
    if let Some(too_many) = raw.datacenters.get(MAX_DATACENTERS) {
        let what = format!("at most {MAX_DATACENTERS} data centres");
        return expected("cluster.datacenters", too_many, &what);
    }
    let login = match (raw.user, raw.password_file) {
        (None, None) => None,
        (Some(user), Some(file)) => {
            let span = file.span();
            let path = tls::secret("cluster.password_file", file.into_inner());
            Some(Login {
                user: user.into_inner(),
                password_file: path.map_err(|why| Flaw::new(span, why))?,
            })
        }
        (Some(one), None) | (None, Some(one)) => {
            let what = "both `user` and `password_file`, or neither; found one of them";
            return Err(Flaw::new(one.span(), format!("cluster: expected {what}")));
        }
    };
    let tls = raw.tls.map(tls::RawDialling::read).transpose();
    Ok(ClusterSettings {
        contact_points: contact_points.collect::<Result<_, _>>()?,
        login,
        tls: tls.map_err(|why| Flaw::new(raw.name.span(), format!("cluster.tls: {why}")))?,
        datacenters: raw
            .datacenters
            .into_iter()
            .map(Spanned::into_inner)
            .collect(),
        name,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    const RULE: &str = "[[rule]]\nname = \"r\"\nto = [\"cluster:shop\"]\naction = \"bypass\"\n";
    const CLUSTER: &str =
        "[[cluster]]\nname = \"shop\"\ncontact_points = [\"10.1.0.1:9042\", \"db.shop:9042\"]\n";

    #[test]
    fn a_cluster_is_read_and_named() {
        let config = parse(&format!("{RULE}{CLUSTER}datacenters = [\"dc1\"]\n")).unwrap();
        let cluster = &config.clusters[0];
        assert_eq!((&*cluster.name, cluster.contact_points.len()), ("shop", 2));
        assert_eq!(config.policy.destination_names().len(), 1);
    }

    #[test]
    fn a_cluster_that_no_rule_names_is_said() {
        let warned = |file: &str| {
            let warnings = parse(file).unwrap().warnings;
            warnings
                .iter()
                .any(|said| said.contains("cluster shop: no rule here"))
        };
        let other = RULE.replace("cluster:shop", "10.1.0.1:9042");
        assert!(warned(&format!("{other}{CLUSTER}")));
        assert!(!warned(&format!("{RULE}{CLUSTER}")));
        let fleet = "[policy]\nsource = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\n";
        assert!(!warned(&format!("{other}{CLUSTER}{fleet}")));
    }

    #[test]
    fn what_is_wrong_with_a_cluster_is_said() {
        for (file, says) in [
            (
                RULE.to_owned(),
                "rule.to: expected the name of a `[[cluster]]`",
            ),
            (RULE.replace("shop", "shopp") + CLUSTER, "did you mean"),
            (
                CLUSTER.replace("\"shop\"", "\"9042\""),
                "cluster.name: expected a cluster's name",
            ),
            (
                format!("{CLUSTER}{CLUSTER}"),
                "cluster.name: expected a name that no cluster above has",
            ),
            (
                CLUSTER.replace("10.1.0.1:9042", "10.1.0.1"),
                "cluster.contact_points: expected an address or a host",
            ),
            (format!("{CLUSTER}user = \"u\"\n"), "cluster: expected both"),
            (
                "[[cluster]]\nname = \"shop\"\ncontact_points = []\n".to_owned(),
                "expected 1 to 16 nodes",
            ),
        ] {
            let said = refusal(&file);
            assert!(said.contains(says), "{says}: {said}");
        }
    }
}
