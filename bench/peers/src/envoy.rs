//! Envoy's TCP proxy.

use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::{
    find::Binary,
    peer::{Launch, Peer},
};

/// "Disable circuit breaking", says its page on benchmarks: as high as the setting goes.
const NO_CIRCUIT_BREAKER: u32 = 1_000_000_000;

/// Envoy, `tcp_proxy`: any TCP.
pub(crate) const ENVOY: Peer = Peer {
    name: "envoy",
    about: "tcp_proxy: copied in user space through Envoy's buffers; a worker thread per core",
    is_cql_only: false,
    may_splice: false,
    binary: Binary {
        name: "envoy",
        version_args: &["--version"],
        version_after: "version: ",
        from: "cargo xtask setup --only peers",
    },
    examine: |mut found| {
        found.version = found.version.map(release);
        Ok(found)
    },
    launch: |_, setup, fronts| {
        let file = setup.folder.join("envoy.json");
        Ok(Launch {
            args: vec![
                "-c".into(),
                file.clone().into(),
                // Hot restart keeps files in /dev/shm and a name that is the host's.
                "--disable-hot-restart".into(),
                "--log-level".into(),
                "warn".into(),
            ],
            files: vec![(file, configuration(fronts, &setup.backends).to_string())],
        })
    },
};

/// Returns the number in `commit/1.40.0/Clean/RELEASE/BoringSSL`.
fn release(version: String) -> String {
    match version.split('/').nth(1) {
        Some(number) => number.to_owned(),
        None => version,
    }
}

/// Writes the configuration as Envoy's page on benchmarks recommends: threads by default (one for
/// each core), no circuit breaker; and as its page on threads recommends for few connections that
/// live long: balanced exactly. There is no access log; TCP_NODELAY is its default.
fn configuration(fronts: &[SocketAddr], backends: &[SocketAddr]) -> Value {
    let listeners: Vec<_> = fronts
        .iter()
        .enumerate()
        .map(|(index, front)| listener(index, *front))
        .collect();
    let clusters: Vec<_> = backends
        .iter()
        .enumerate()
        .map(|(index, backend)| cluster(index, *backend))
        .collect();
    json!({ "static_resources": { "listeners": listeners, "clusters": clusters } })
}

fn listener(index: usize, front: SocketAddr) -> Value {
    json!({
        "name": format!("front{index}"),
        "address": address(front),
        "connection_balance_config": { "exact_balance": {} },
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.tcp_proxy",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
                "stat_prefix": format!("front{index}"),
                "cluster": format!("backend{index}"),
            },
        }] }],
    })
}

fn cluster(index: usize, backend: SocketAddr) -> Value {
    let limits = json!({
        "max_connections": NO_CIRCUIT_BREAKER,
        "max_pending_requests": NO_CIRCUIT_BREAKER,
        "max_requests": NO_CIRCUIT_BREAKER,
    });
    json!({
        "name": format!("backend{index}"),
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": { "thresholds": [limits] },
        "load_assignment": {
            "cluster_name": format!("backend{index}"),
            "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address(backend) } }] }],
        },
    })
}

fn address(of: SocketAddr) -> Value {
    json!({ "socket_address": { "address": of.ip().to_string(), "port_value": of.port() } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_told_without_its_build() {
        assert_eq!(
            release("9e55/1.40.0/Clean/RELEASE/BoringSSL".into()),
            "1.40.0"
        );
        assert_eq!(release("dev".into()), "dev");
    }

    #[test]
    fn each_front_leads_to_its_backend() {
        let fronts = [
            "127.0.0.1:1001".parse().unwrap(),
            "127.0.0.1:1002".parse().unwrap(),
        ];
        let backends = [
            "127.0.0.1:9042".parse().unwrap(),
            "[::1]:9043".parse().unwrap(),
        ];
        let text = configuration(&fronts, &backends);
        let resources = &text["static_resources"];
        let listener = &resources["listeners"][1];
        assert_eq!(listener["address"]["socket_address"]["port_value"], 1002);
        let proxy = &listener["filter_chains"][0]["filters"][0]["typed_config"];
        let cluster = &resources["clusters"][1];
        assert_eq!(proxy["cluster"], cluster["name"]);
        let endpoint = &cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
        assert_eq!(
            endpoint["address"]["socket_address"],
            json!({ "address": "::1", "port_value": 9043 })
        );
        assert_eq!(resources["clusters"].as_array().unwrap().len(), 2);
    }
}
