//! Networks in rules: where clients are, and what they dial.

use ipnet::IpNet;
use policy::{Target, check_network, parse_network};
use toml::Spanned;

use super::{error::Flaw, value::expected};

/// `NETWORK`, IPv4 or IPv6.
pub(super) fn client(text: &Spanned<String>) -> Result<IpNet, Flaw> {
    let network = parse_network(text.get_ref())
        .ok_or_else(|| "a network: `10.1.0.0/16`, `fd00::/8`".to_owned());
    let checked = network.and_then(|network| check_network(network).map(|()| network));
    checked.or_else(|what| expected("rule.from", text, &what))
}

/// `NETWORK:PORT` or `NETWORK:PORT-PORT`, as [`Target::parse_all`] reads it.
pub(super) fn targets(text: &Spanned<String>) -> Result<Vec<Target>, Flaw> {
    Target::parse_all(text.get_ref()).or_else(|what| expected("rule.to", text, &what))
}
