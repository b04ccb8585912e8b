//! HAProxy in TCP mode, with splicing.

use std::{net::SocketAddr, ops::RangeInclusive};

use crate::{
    find::{Binary, Found},
    peer::Peer,
    plan::{Launch, MAX_CONNECTIONS, Plan, Ports},
    setup::{Setup, Traffic},
};

/// HAProxy: any TCP.
pub(crate) struct Haproxy;

impl Peer for Haproxy {
    fn name(&self) -> &'static str {
        "haproxy"
    }

    fn about(&self) -> &'static str {
        "mode tcp, splice-auto: copied in user space, spliced through a pipe when it streams; a thread per core"
    }

    fn may_splice(&self) -> bool {
        true
    }

    fn carries(&self, _traffic: Traffic) -> bool {
        true
    }

    fn cql_versions(&self) -> Option<RangeInclusive<u8>> {
        None
    }

    fn binary(&self) -> Binary {
        Binary {
            names: &["haproxy"],
            version_args: Some(&["-v"]),
            version_after: "HAProxy version ",
            from: "apt-get install haproxy",
        }
    }

    fn plan(&self, found: &Found, setup: &Setup, ports: &mut Ports) -> anyhow::Result<Plan> {
        let fronts = ports.take_for(&setup.backends)?;
        let file = setup.folder.join("haproxy.cfg");
        Ok(Plan {
            launches: vec![Launch {
                program: found.path.clone(),
                // It runs in the foreground, with nothing but the file's settings.
                args: vec!["-db".into(), "-f".into(), file.clone().into()],
                files: vec![(file, configuration(&fronts, &setup.backends))],
                ..Launch::default()
            }],
            fronts,
        })
    }
}

/// Threads are its default, one for each core; it logs nothing, and TCP_NODELAY is always on.
fn configuration(fronts: &[SocketAddr], backends: &[SocketAddr]) -> String {
    let mut text = format!(
        "global\n    maxconn {MAX_CONNECTIONS}\n\n\
         defaults\n    mode tcp\n    maxconn {MAX_CONNECTIONS}\n    option splice-auto\n    \
         timeout connect 5s\n    timeout client 1h\n    timeout server 1h\n"
    );
    for (index, (front, backend)) in fronts.iter().zip(backends).enumerate() {
        text.push_str(&format!(
            "\nlisten database{index}\n    bind {front}\n    server backend{index} {backend}\n"
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_for_each_backend() {
        let fronts = [
            "127.0.0.1:1001".parse().unwrap(),
            "127.0.0.1:1002".parse().unwrap(),
        ];
        let backends = [
            "127.0.0.1:9042".parse().unwrap(),
            "127.0.0.2:9042".parse().unwrap(),
        ];
        assert_eq!(
            configuration(&fronts, &backends),
            "\
global
    maxconn 2048

defaults
    mode tcp
    maxconn 2048
    option splice-auto
    timeout connect 5s
    timeout client 1h
    timeout server 1h

listen database0
    bind 127.0.0.1:1001
    server backend0 127.0.0.1:9042

listen database1
    bind 127.0.0.1:1002
    server backend1 127.0.0.2:9042
"
        );
    }
}
