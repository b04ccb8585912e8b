//! shotover-proxy with nothing but its Cassandra sink: its own passthrough example.

use std::{fmt::Write as _, net::SocketAddr, ops::RangeInclusive};

use crate::{
    find::{Binary, Found},
    peer::Peer,
    plan::{Launch, MAX_CONNECTIONS, Plan, Ports},
    setup::{Setup, Traffic},
};

/// No metrics, and only what goes wrong in the log.
const CONFIG: &str = "---\nmain_log_level: \"warn\"\nobservability_interface: null\n";

/// shotover-proxy, `CassandraSinkSingle`.
pub(crate) struct Shotover;

impl Peer for Shotover {
    fn name(&self) -> &'static str {
        "shotover"
    }

    fn about(&self) -> &'static str {
        "Cassandra source to CassandraSinkSingle: frames are cut in user space and stay raw; a thread per core"
    }

    fn carries(&self, traffic: Traffic) -> bool {
        traffic == Traffic::Cql
    }

    /// v5 is behind a feature that its releases are built without.
    fn cql_versions(&self) -> Option<RangeInclusive<u8>> {
        Some(3..=4)
    }

    fn binary(&self) -> Binary {
        Binary {
            names: &["shotover-proxy"],
            version_args: Some(&["--version"]),
            version_after: " ",
            from: "cargo xtask setup --only peers",
        }
    }

    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan> {
        let fronts = ports.take_for(&setup.backends)?;
        let topology = setup.folder.join("topology.yaml");
        let config = setup.folder.join("config.yaml");
        Ok(Plan {
            launches: vec![Launch {
                program: found.path.clone(),
                args: vec![
                    "--topology-file".into(),
                    topology.clone().into(),
                    "--config-file".into(),
                    config.clone().into(),
                ],
                files: vec![
                    (topology, sources(&fronts, &setup.backends)),
                    (config, CONFIG.to_owned()),
                ],
                ..Launch::default()
            }],
            fronts,
        })
    }
}

fn sources(fronts: &[SocketAddr], backends: &[SocketAddr]) -> String {
    let mut text = "---\nsources:\n".to_owned();
    for (index, (front, backend)) in fronts.iter().zip(backends).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "  - Cassandra:\n      name: \"database{index}\"\n      listen_addr: \"{front}\"\n      \
             connection_limit: {MAX_CONNECTIONS}\n      chain:\n        \
             - CassandraSinkSingle:\n            remote_address: \"{backend}\"\n            \
             connect_timeout_ms: 5000\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_for_each_backend() {
        let fronts = [
            "127.0.0.1:1001".parse().unwrap(),
            "127.0.0.1:1002".parse().unwrap(),
        ];
        let backends = [
            "127.0.0.1:9042".parse().unwrap(),
            "127.0.0.2:9042".parse().unwrap(),
        ];
        assert_eq!(
            sources(&fronts, &backends),
            "\
---
sources:
  - Cassandra:
      name: \"database0\"
      listen_addr: \"127.0.0.1:1001\"
      connection_limit: 2048
      chain:
        - CassandraSinkSingle:
            remote_address: \"127.0.0.1:9042\"
            connect_timeout_ms: 5000
  - Cassandra:
      name: \"database1\"
      listen_addr: \"127.0.0.1:1002\"
      connection_limit: 2048
      chain:
        - CassandraSinkSingle:
            remote_address: \"127.0.0.2:9042\"
            connect_timeout_ms: 5000
"
        );
    }
}
