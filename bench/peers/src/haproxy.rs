//! HAProxy in TCP mode, with splicing.

use std::net::SocketAddr;

use crate::{
    find::Binary,
    peer::{Launch, MAX_CONNECTIONS, Peer},
};

/// HAProxy: any TCP.
pub(crate) const HAPROXY: Peer = Peer {
    name: "haproxy",
    about: "mode tcp, splice-auto: copied in user space, spliced through a pipe when it streams; a thread per core",
    is_cql_only: false,
    may_splice: true,
    binary: Binary {
        name: "haproxy",
        version_args: &["-v"],
        version_after: "HAProxy version ",
        from: "apt-get install haproxy",
    },
    examine: Ok,
    launch: |_, setup, fronts| {
        let file = setup.folder.join("haproxy.cfg");
        Ok(Launch {
            // It runs in the foreground, with nothing but the file's settings.
            args: vec!["-db".into(), "-f".into(), file.clone().into()],
            files: vec![(file, configuration(fronts, &setup.backends))],
        })
    },
};

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
