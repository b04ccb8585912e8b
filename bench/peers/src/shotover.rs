//! shotover-proxy with nothing but its Cassandra sink: its own passthrough example.

use std::net::SocketAddr;

use crate::{
    find::Binary,
    peer::{Launch, MAX_CONNECTIONS, Peer},
};

/// No metrics, and only what goes wrong in the log.
const CONFIG: &str = "---\nmain_log_level: \"warn\"\nobservability_interface: null\n";

/// shotover-proxy, `CassandraSinkSingle`. CQL v5 is behind a feature that its releases are built without.
pub(crate) const SHOTOVER: Peer = Peer {
    name: "shotover",
    about: "Cassandra source to CassandraSinkSingle: frames are cut in user space and stay raw; a thread per core",
    is_cql_only: true,
    may_splice: false,
    binary: Binary {
        name: "shotover-proxy",
        version_args: &["--version"],
        version_after: " ",
        from: "cargo xtask setup --only peers",
    },
    examine: Ok,
    launch: |_, setup, fronts| {
        let topology = setup.folder.join("topology.yaml");
        let config = setup.folder.join("config.yaml");
        Ok(Launch {
            args: vec![
                "--topology-file".into(),
                topology.clone().into(),
                "--config-file".into(),
                config.clone().into(),
            ],
            files: vec![
                (topology, sources(fronts, &setup.backends)),
                (config, CONFIG.to_owned()),
            ],
        })
    },
};

fn sources(fronts: &[SocketAddr], backends: &[SocketAddr]) -> String {
    let mut text = "---\nsources:\n".to_owned();
    for (index, (front, backend)) in fronts.iter().zip(backends).enumerate() {
        text.push_str(&format!(
            "  - Cassandra:\n      name: \"database{index}\"\n      listen_addr: \"{front}\"\n      \
             connection_limit: {MAX_CONNECTIONS}\n      chain:\n        \
             - CassandraSinkSingle:\n            remote_address: \"{backend}\"\n            \
             connect_timeout_ms: 5000\n"
        ));
    }
    text
}
