//! cql-proxy: it logs in to the cluster itself and shares few connections among its clients.

use std::{net::SocketAddr, ops::RangeInclusive};

use crate::{
    find::{Binary, Found},
    peer::Peer,
    plan::{Launch, Plan, Ports},
    setup::{Setup, Traffic},
};

/// cql-proxy, a process for each backend: an instance serves one cluster.
pub(crate) struct CqlProxy;

impl Peer for CqlProxy {
    fn name(&self) -> &'static str {
        "cql-proxy"
    }

    fn about(&self) -> &'static str {
        "frames are decoded, and sent on over one connection that all clients share; Go, all cores"
    }

    fn carries(&self, traffic: Traffic) -> bool {
        traffic == Traffic::Cql
    }

    /// The versions up to the default of `--max-protocol-version`.
    fn cql_versions(&self) -> Option<RangeInclusive<u8>> {
        Some(3..=4)
    }

    fn binary(&self) -> Binary {
        Binary {
            names: &["cql-proxy"],
            version_args: None,
            version_after: "",
            from: "cql-proxy's releases",
        }
    }

    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan> {
        let fronts = ports.take_for(&setup.backends)?;
        let launches = fronts
            .iter()
            .zip(&setup.backends)
            .map(|(front, backend)| launch(found, setup, *front, *backend))
            .collect();
        Ok(Plan { fronts, launches })
    }
}

/// Launches it with its defaults otherwise; no log of requests, no health check. The login goes by
/// environment, because a command line is for everyone to see.
fn launch(found: &Found, setup: &Setup, front: SocketAddr, backend: SocketAddr) -> Launch {
    let mut env = vec![("DATABASE_TYPE", "cassandra".to_owned())];
    if let Some((user, password)) = &setup.credentials {
        env.push(("USERNAME", user.clone()));
        env.push(("PASSWORD", password.clone()));
    }
    Launch {
        program: found.path.clone(),
        args: vec![
            "--contact-points".into(),
            backend.ip().to_string().into(),
            "--port".into(),
            backend.port().to_string().into(),
            "--bind".into(),
            front.to_string().into(),
        ],
        env,
        ..Launch::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_password_is_not_on_the_command_line() {
        let found = Found {
            path: "/x/cql-proxy".into(),
            version: None,
        };
        let setup = Setup {
            host: std::net::Ipv4Addr::LOCALHOST,
            backends: vec![
                "127.0.0.1:9042".parse().unwrap(),
                "127.0.0.2:9043".parse().unwrap(),
            ],
            credentials: Some(("someone".into(), "secret".into())),
            traffic: Traffic::Cql,
            folder: "/x".into(),
        };
        let plan = CqlProxy
            .plan(
                &found,
                &setup,
                &mut Ports::of(std::net::Ipv4Addr::LOCALHOST),
            )
            .unwrap();
        let [_, second] = &plan.launches[..] else {
            panic!("{plan:?}");
        };
        assert_eq!(
            second.args,
            [
                "--contact-points",
                "127.0.0.2",
                "--port",
                "9043",
                "--bind",
                &plan.fronts[1].to_string()
            ]
        );
        assert!(second.env.contains(&("USERNAME", "someone".into())));
        assert!(second.env.contains(&("PASSWORD", "secret".into())));
        assert!(!format!("{plan:?} {setup:?}").contains("secret"));
    }
}
