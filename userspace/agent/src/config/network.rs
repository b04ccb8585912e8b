//! Networks in rules: where clients are, and what they dial.

use std::net::IpAddr;

use ipnet::IpNet;
use policy::Target;
use toml::Spanned;

use super::{error::Flaw, value::expected};

/// `NETWORK`, IPv4 or IPv6.
pub(super) fn client(text: &Spanned<String>) -> Result<IpNet, Flaw> {
    match parse_network(text.get_ref()) {
        Some(network) => plain("rule.from", text, network),
        None => expected("rule.from", text, "a network: `10.1.0.0/16`, `fd00::/8`"),
    }
}

/// `NETWORK:PORT`, `NETWORK`, `:PORT`; IPv6 networks in brackets: `[fd00::/8]:9042`.
pub(super) fn target(text: &Spanned<String>) -> Result<Target, Flaw> {
    const EXPECTED: &str = "network and port, either of which may be left out: \
                            `10.1.0.0/16:9042`, `[fd00::/8]:9042`, `10.1.2.3`, `:9042`";
    let wrong = || expected("rule.to", text, EXPECTED);
    let given = text.get_ref().as_str();
    let (network, port) = match given.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((network, port)) => (network, port),
            None => return wrong(),
        },
        None => given.split_at(given.find(':').unwrap_or(given.len())),
    };
    let port = match port.strip_prefix(':').map(str::parse::<u16>) {
        Some(Ok(port)) if port != 0 => Some(port),
        None if port.is_empty() => None,
        _ => return wrong(),
    };
    let network = match network {
        "" if port.is_some() && !given.starts_with('[') => None,
        _ => match parse_network(network) {
            Some(network) if network.addr().is_ipv6() == given.starts_with('[') => Some(network),
            _ => return wrong(),
        },
    };
    if let Some(network) = network {
        plain("rule.to", text, network)?;
    }
    Ok(Target { network, port })
}

fn parse_network(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

/// One that says what it holds.
fn plain(key: &str, text: &Spanned<String>, network: IpNet) -> Result<IpNet, Flaw> {
    if network.addr() != network.network() {
        let meant = network.trunc();
        return expected(key, text, &format!("a network's first address: `{meant}`"));
    }
    if let IpAddr::V6(v6) = network.addr()
        && v6.to_ipv4_mapped().is_some()
    {
        return expected(key, text, "the IPv4 form of an IPv4-mapped address");
    }
    Ok(network)
}
