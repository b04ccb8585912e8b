//! Networks and names in rules: where clients are, and what they dial.

use std::{collections::HashSet, sync::Arc};

use ipnet::IpNet;
use names::{ClusterSettings, MAX_NAMES};
use policy::{Destination, Destinations, Name, check_network, did_you_mean, parse_network};
use toml::Spanned;

use super::{error::Flaw, raw::RawRule, value::expected};

const TO: &str = "rule.to";

/// `NETWORK`, IPv4 or IPv6.
pub(super) fn client(text: &Spanned<String>) -> Result<IpNet, Flaw> {
    let network = parse_network(text.get_ref())
        .ok_or_else(|| "a network: `10.1.0.0/16`, `fd00::/8`".to_owned());
    let checked = network.and_then(|network| check_network(network).map(|()| network));
    checked.or_else(|what| expected("rule.from", text, &what))
}

/// Addresses and names, as [`Destination::parse`] reads them.
pub(super) fn destinations(texts: &[Spanned<String>]) -> Result<Destinations, Flaw> {
    let (mut fixed, mut named) = (Vec::new(), Vec::new());
    for text in texts {
        match destination(text)? {
            Destination::Fixed(targets) => fixed.extend(targets),
            Destination::Named(target) => named.push(target),
        }
    }
    Ok(Destinations::new(fixed, named))
}

/// Whether all rules together name no more than can be followed, and only clusters that there are.
pub(super) fn bounded(
    rules: &[Spanned<RawRule>],
    clusters: &[Arc<ClusterSettings>],
) -> Result<(), Flaw> {
    let mut seen = HashSet::new();
    for text in rules.iter().flat_map(|rule| &rule.get_ref().to) {
        let Ok(Destination::Named(target)) = Destination::parse(text.get_ref()) else {
            continue;
        };
        if let Name::Cluster(name) = &target.name
            && !clusters.iter().any(|cluster| cluster.name == *name)
        {
            let names = clusters.iter().map(|cluster| &*cluster.name);
            let meant = did_you_mean(name, names);
            let what = "the name of a `[[cluster]]` in the main file";
            return expected(TO, text, what).map_err(|flaw: Flaw| Flaw {
                message: flaw.message + &meant,
                ..flaw
            });
        }
        seen.insert(target.name);
        if seen.len() > MAX_NAMES {
            let what = format!("at most {MAX_NAMES} different names in all rules");
            return expected(TO, text, &what);
        }
    }
    Ok(())
}

fn destination(text: &Spanned<String>) -> Result<Destination, Flaw> {
    Destination::parse(text.get_ref()).or_else(|what| expected(TO, text, &what))
}
