//! zdm-proxy, with the same database as origin and as target.
//!
//! Reads go to the origin; a write goes to both and is answered when both have it: with one
//! database it does every write twice. A migration through it costs that, too, and it has to be
//! said beside its figures.

use std::{net::SocketAddr, ops::RangeInclusive};

use crate::{
    find::{Binary, Found},
    peer::Peer,
    plan::{Launch, MAX_CONNECTIONS, Plan, Ports},
    setup::{Setup, Traffic},
};

/// The user of a login, without which it refuses to start. It sends none to a database that asks
/// for none.
const NOBODY: &str = "cassandra";

/// zdm-proxy, a process for each backend: an instance serves one pair of clusters.
pub(crate) struct ZdmProxy;

impl Peer for ZdmProxy {
    fn name(&self) -> &'static str {
        "zdm-proxy"
    }

    fn about(&self) -> &'static str {
        "frames are decoded; reads go to one cluster, writes to both (here the same, so twice); Go, all cores"
    }

    fn carries(&self, traffic: Traffic) -> bool {
        traffic == Traffic::Cql
    }

    /// v5 came with 2.4.0; what every release speaks is said here.
    fn cql_versions(&self) -> Option<RangeInclusive<u8>> {
        Some(3..=4)
    }

    fn binary(&self) -> Binary {
        Binary {
            names: &["zdm-proxy"],
            version_args: Some(&["--version"]),
            version_after: "version ",
            from: "zdm-proxy's releases",
        }
    }

    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan> {
        let fronts = ports.take_for(&setup.backends)?;
        let mut launches = Vec::new();
        for (front, backend) in fronts.iter().zip(&setup.backends) {
            launches.push(Launch {
                program: found.path.clone(),
                env: environment(setup, *front, *backend, ports.take()?),
                ..Launch::default()
            });
        }
        Ok(Plan { fronts, launches })
    }
}

/// Returns the environment, with its defaults otherwise, metrics included: health checks are on the
/// same port.
fn environment(
    setup: &Setup,
    front: SocketAddr,
    backend: SocketAddr,
    metrics: SocketAddr,
) -> Vec<(&'static str, String)> {
    let (user, password) = setup
        .credentials
        .clone()
        .unwrap_or_else(|| (NOBODY.to_owned(), NOBODY.to_owned()));
    let (ip, port) = (backend.ip().to_string(), backend.port().to_string());
    vec![
        ("ZDM_ORIGIN_CONTACT_POINTS", ip.clone()),
        ("ZDM_ORIGIN_PORT", port.clone()),
        ("ZDM_ORIGIN_USERNAME", user.clone()),
        ("ZDM_ORIGIN_PASSWORD", password.clone()),
        ("ZDM_TARGET_CONTACT_POINTS", ip),
        ("ZDM_TARGET_PORT", port),
        ("ZDM_TARGET_USERNAME", user),
        ("ZDM_TARGET_PASSWORD", password),
        ("ZDM_PROXY_LISTEN_ADDRESS", front.ip().to_string()),
        ("ZDM_PROXY_LISTEN_PORT", front.port().to_string()),
        (
            "ZDM_PROXY_MAX_CLIENT_CONNECTIONS",
            MAX_CONNECTIONS.to_string(),
        ),
        ("ZDM_METRICS_ADDRESS", metrics.ip().to_string()),
        ("ZDM_METRICS_PORT", metrics.port().to_string()),
        // At INFO it logs each connection.
        ("ZDM_LOG_LEVEL", "WARN".to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_is_origin_and_target() {
        let found = Found {
            path: "/x/zdm-proxy".into(),
            version: None,
        };
        let setup = Setup {
            host: std::net::Ipv4Addr::LOCALHOST,
            backends: vec!["127.0.0.3:9043".parse().unwrap()],
            credentials: None,
            traffic: Traffic::Cql,
            folder: "/x".into(),
        };
        let plan = ZdmProxy
            .plan(
                &found,
                &setup,
                &mut Ports::of(std::net::Ipv4Addr::LOCALHOST),
            )
            .unwrap();
        let env = &plan.launches[0].env;
        let value = |name| env.iter().find(|(key, _)| *key == name).unwrap().1.clone();
        for side in ["ORIGIN", "TARGET"] {
            let of = |what| {
                let name = format!("ZDM_{side}_{what}");
                env.iter().find(|(key, _)| *key == name).unwrap().1.clone()
            };
            assert_eq!(of("CONTACT_POINTS"), "127.0.0.3");
            assert_eq!(of("PORT"), "9043");
            assert_eq!(of("USERNAME"), "cassandra");
        }
        assert_eq!(
            value("ZDM_PROXY_LISTEN_PORT"),
            plan.fronts[0].port().to_string()
        );
        assert_ne!(value("ZDM_METRICS_PORT"), value("ZDM_PROXY_LISTEN_PORT"));
    }
}
