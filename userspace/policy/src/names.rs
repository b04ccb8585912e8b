//! Names of destinations: hosts and services in DNS, and clusters of the policy file.

use std::{fmt, sync::Arc};

use crate::{MAX_PORTS_OF_A_RANGE, Target};

/// Bytes of a domain name, without the dot at its end (RFC 1035, 2.3.4: 255 with lengths).
pub const MAX_DOMAIN_BYTES: usize = 253;

/// Bytes of one label of a domain name (RFC 1035, 2.3.4).
const MAX_LABEL_BYTES: usize = 63;

/// Bytes of a cluster's name.
pub const MAX_CLUSTER_NAME_BYTES: usize = 63;

/// The beginning of an entry that names a cluster.
const CLUSTER: &str = "cluster:";

/// A name whose addresses are looked up, and followed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Name {
    /// A host: its A and AAAA records.
    Host(Domain),
    /// A service: its SRV records, which say the ports.
    Service(Domain),
    /// A `[[cluster]]` of the policy file: its nodes, which say the ports.
    Cluster(Arc<str>),
}

/// A domain name, in lower case; with a dot at its end, no search list applies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(Arc<str>);

/// A destination by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NamedTarget {
    /// The name.
    pub name: Name,
    /// The ports of a host; all, when there are none. Other names tell the ports themselves.
    pub ports: Vec<u16>,
}

/// An entry of `to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Addresses.
    Fixed(Vec<Target>),
    /// A name.
    Named(NamedTarget),
}

impl Destination {
    /// Reads an entry of `to`. What has a letter in the last label before its port, and neither `/` nor a bracket, is a name;
    /// everything else has to be a network or a port. So a misspelt address is never taken for a name.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(cluster) = text.strip_prefix(CLUSTER) {
            return cluster_name(cluster).map(Name::Cluster).map(named);
        }
        match text.starts_with('_') || looks_like_a_name(text) {
            true => NamedTarget::parse(text).map(Self::Named),
            false => Target::parse_all(text).map(Self::Fixed),
        }
    }
}

fn named(name: Name) -> Destination {
    let ports = Vec::new();
    Destination::Named(NamedTarget { name, ports })
}

/// Reads the name of a cluster, as `[[cluster]]` and the entry of a rule have it.
///
/// # Errors
/// Says what was expected.
pub fn cluster_name(text: &str) -> Result<Arc<str>, String> {
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_name = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.len() <= MAX_CLUSTER_NAME_BYTES
        && text.chars().all(legal);
    match is_name {
        true => Ok(text.into()),
        false => Err(format!(
            "a cluster's name: a letter, and up to {} letters, digits, `-`, `_`, `.`, without a port \
             (a host that is called `cluster` is `cluster.:9042`)",
            MAX_CLUSTER_NAME_BYTES - 1
        )),
    }
}

fn looks_like_a_name(text: &str) -> bool {
    let host = text.split_once(':').map_or(text, |(host, _)| host);
    let last = host.trim_end_matches('.').rsplit('.').next();
    let has_letter = last.is_some_and(|last| last.contains(|c: char| c.is_alphabetic()));
    // IPv6 without brackets has colons and hexadecimal letters.
    let is_address = text.contains(['/', '[', ']']) || text.matches(':').count() > 1;
    has_letter && !is_address
}

impl NamedTarget {
    /// Reads `HOST:PORT`, `HOST:PORT-PORT`, `HOST` or `_SERVICE._tcp.DOMAIN`.
    fn parse(text: &str) -> Result<Self, String> {
        let (domain, ports) = match text.split_once(':') {
            Some((domain, ports)) => (domain, Some(ports)),
            None => (text, None),
        };
        if domain.starts_with('_') {
            let parts: Vec<&str> = domain.splitn(3, '.').collect();
            let is_service = matches!(parts.as_slice(), [service, protocol, domain]
                if service.len() > 1 && protocol.eq_ignore_ascii_case("_tcp") && !domain.is_empty());
            return match (is_service, ports) {
                (true, None) => Ok(Self {
                    name: Name::Service(Domain::parse(domain)?),
                    ports: Vec::new(),
                }),
                (true, Some(_)) => {
                    Err("a service without a port, which its SRV records say".into())
                }
                (false, _) => Err("a service in DNS: `_cql._tcp.shop.example`".into()),
            };
        }
        let name = Name::Host(Domain::parse(domain)?);
        let Some(ports) = ports else {
            // One word is more often a slip than a host that is meant with all its ports.
            return match domain.contains('.') {
                true => Ok(Self {
                    name,
                    ports: Vec::new(),
                }),
                false => Err(format!(
                    "an address, a host with its port (`{domain}:9042`), or a cluster (`{CLUSTER}{domain}`)"
                )),
            };
        };
        let any = Target::parse_all(&format!(":{ports}")).map_err(|_| {
            format!(
                "a port behind the host, or at most {MAX_PORTS_OF_A_RANGE}, the lowest first: \
                 `{domain}:9042`, `{domain}:9042-9044`"
            )
        })?;
        Ok(Self {
            name,
            ports: any.iter().filter_map(|target| target.port).collect(),
        })
    }
}

impl Domain {
    /// Reads a domain name of letters, digits, `-` and `_`.
    ///
    /// # Errors
    /// Says what was expected.
    pub fn parse(text: &str) -> Result<Self, String> {
        let labels = text.strip_suffix('.').unwrap_or(text);
        let is_label = |label: &str| {
            let legal = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            (1..=MAX_LABEL_BYTES).contains(&label.len())
                && label.chars().all(legal)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        match labels.len() <= MAX_DOMAIN_BYTES && labels.split('.').all(is_label) {
            true => Ok(Self(text.to_ascii_lowercase().into())),
            false => Err(format!(
                "a domain name: labels of 1 to {MAX_LABEL_BYTES} letters, digits, `-` and `_` (others as `xn--…`), with \
                 dots between them, {MAX_DOMAIN_BYTES} bytes at most"
            )),
        }
    }

    /// The name as it was written, in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Name {
    /// The kind of the name, as metrics and lists say it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Service(_) => "service",
            Self::Cluster(_) => "cluster",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(domain) | Self::Service(domain) => f.write_str(&domain.0),
            Self::Cluster(name) => write!(f, "{CLUSTER}{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn name(text: &str) -> Option<String> {
        match Destination::parse(text) {
            Ok(Destination::Named(target)) => Some(format!(
                "{} {} {:?}",
                target.name.kind(),
                target.name,
                target.ports
            )),
            Ok(Destination::Fixed(_)) => Some("fixed".to_owned()),
            Err(_) => None,
        }
    }

    #[test]
    fn an_entry_is_an_address_a_host_a_service_or_a_cluster() {
        for (text, says) in [
            ("10.1.0.0/16:9042", "fixed"),
            (":9042-9044", "fixed"),
            ("[fd00::1]:9042", "fixed"),
            ("Cassandra.shop.svc:9042", "host cassandra.shop.svc [9042]"),
            ("db:9042-9043", "host db [9042, 9043]"),
            ("my_db.shop.", "host my_db.shop. []"),
            ("fd00:9042", "host fd00 [9042]"),
            ("1a.example:9042", "host 1a.example [9042]"),
            (
                "_CQL._tcp.shop.example",
                "service _cql._tcp.shop.example []",
            ),
            ("cluster:shop", "cluster cluster:shop []"),
            ("cluster.:9042", "host cluster. [9042]"),
        ] {
            assert_eq!(name(text).as_deref(), Some(says), "{text}");
        }
    }

    #[test]
    fn a_slip_is_no_name() {
        for text in [
            "10.1.2.300:9042",
            "10.1.2",
            "10.1.2.3.4:9042",
            "10.1.0.0/33",
            "db.shop/24:9042",
            "fd00::1:9042",
            "[fd00::1",
            "[db]:9042",
            "shop",
            "db.shop:",
            "db.shop:0",
            "db.shop:cql",
            "db.shop:9044-9042",
            "db..shop:9042",
            "-db.shop:9042",
            "db shop:9042",
            "dä.shop:9042",
            "cluster:9042",
            "cluster:",
            "cluster:shop:9042",
            "cluster: shop",
            "_cql._tcp.shop:9042",
            "_cql._udp.shop",
            "_cql.shop",
            "_._tcp.shop",
            "_cql._tcp.",
            "010.1.0.0/16",
            "010.1.0.1",
            "10.1.0.0/016",
            "[fd00::/008]",
            ":09042",
            ":+9042",
            "db.shop:+9042",
            ":9042-09044",
            "*.shop:9042",
            "http://db.shop:9042",
            "",
        ] {
            assert_eq!(name(text), None, "{text}");
        }
        let long = "a.".repeat(126) + "aa";
        assert!(
            name(&format!("{long}:1")).is_none() && name(&format!("{}:1", &long[2..])).is_some()
        );
    }

    proptest! {
        /// A text that an address parser takes, or would take but for one character, is no name.
        #[test]
        fn digits_dots_and_slashes_are_never_a_name(text in "[0-9./:]{0,24}") {
            let is_name = matches!(Destination::parse(&text), Ok(Destination::Named(_)));
            prop_assert!(!is_name);
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}") {
            if let Ok(Destination::Named(target)) = Destination::parse(&text) {
                // What is shown of it is read as the same again.
                let ports = target.ports.first().map_or(String::new(), |port| format!(":{port}"));
                let again = Destination::parse(&format!("{}{ports}", target.name));
                let Ok(Destination::Named(again)) = again else {
                    return Err(TestCaseError::fail(text));
                };
                prop_assert_eq!(again.name, target.name);
            }
        }

        #[test]
        fn labels_with_letters_are_hosts(
            labels in proptest::collection::vec("[a-z]([a-z0-9_-]{0,10}[a-z0-9])?", 1..5), port in 1..=u16::MAX,
        ) {
            let domain = labels.join(".");
            let parsed = Destination::parse(&format!("{domain}:{port}"));
            let is_cluster = domain == "cluster";
            match parsed {
                Ok(Destination::Named(target)) => {
                    prop_assert!(!is_cluster);
                    prop_assert_eq!(target.name.to_string(), domain);
                    prop_assert_eq!(target.ports, vec![port]);
                }
                other => prop_assert!(is_cluster, "{:?}", other),
            }
        }
    }
}
