//! Rows of the tables in which a node tells of the cluster, and the nodes in them.

use std::net::{IpAddr, SocketAddr};

use cql_client::{ByName as _, NoAnswer, Row, Rows};

/// A row of one of the tables. What is not there, or of another type, is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// The address for clients.
    pub(super) ip: Option<IpAddr>,
    /// The port for clients.
    pub(super) port: Option<i32>,
    /// The address for other nodes.
    pub(super) peer: Option<IpAddr>,
    pub(super) datacenter: Option<String>,
}

impl Node {
    /// Reads `system.peers_v2`, of Cassandra 4 and later.
    pub(super) fn of_peers_v2(rows: &Rows) -> Result<Vec<Self>, NoAnswer> {
        rows.read(|row| {
            Some(Self {
                ip: ip(row, "native_address"),
                port: row.by_name("native_port").ok().flatten(),
                peer: ip(row, "peer"),
                datacenter: row.by_name("data_center").ok().flatten(),
            })
        })
    }

    /// Reads `system.peers` or `system.local`, which all kinds of databases have.
    pub(super) fn of_peers(rows: &Rows) -> Result<Vec<Self>, NoAnswer> {
        rows.read(|row| {
            Some(Self {
                ip: ip(row, "rpc_address"),
                port: None,
                peer: ip(row, "peer"),
                datacenter: row.by_name("data_center").ok().flatten(),
            })
        })
    }

    /// The address that drivers dial; `port` is that of nodes that do not tell theirs. None: they do not dial it.
    pub(super) fn at(&self, port: u16) -> Option<SocketAddr> {
        let port = match self.port {
            None => port,
            Some(port) => u16::try_from(port).ok().filter(|port| *port != 0)?,
        };
        // A node that listens everywhere says so, and drivers take the address for nodes.
        let ip = self.ip.filter(|ip| !ip.is_unspecified()).or(self.peer)?;
        Some(SocketAddr::new(ip.to_canonical(), port))
    }
}

/// The name of the cluster in each row of `system.local`, which has one.
pub(super) fn cluster_names(rows: &Rows) -> Result<Vec<Option<String>>, NoAnswer> {
    rows.read(|row| Some(row.by_name("cluster_name").ok().flatten()))
}

fn ip(row: &Row, column: &str) -> Option<IpAddr> {
    row.by_name(column).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_where_drivers_dial_it() {
        let ip = |text: &str| Some(text.parse().unwrap());
        let node = |native: Option<IpAddr>, port, peer| Node {
            ip: native,
            port,
            peer,
            datacenter: None,
        };
        let at = |node: Node| node.at(9042).map(|at| at.to_string());
        let (one, two) = (ip("10.1.0.1"), ip("10.1.0.2"));
        assert_eq!(
            at(node(one, Some(9142), two)).as_deref(),
            Some("10.1.0.1:9142")
        );
        assert_eq!(at(node(one, None, two)).as_deref(), Some("10.1.0.1:9042"));
        assert_eq!(
            at(node(ip("0.0.0.0"), None, two)).as_deref(),
            Some("10.1.0.2:9042")
        );
        assert_eq!(at(node(ip("::"), None, None)), None);
        assert_eq!(at(node(None, None, two)).as_deref(), Some("10.1.0.2:9042"));
        for port in [0, -1, 65_536] {
            assert_eq!(at(node(one, Some(port), None)), None);
        }
    }
}
