//! Networks and names in rules: where clients are, and what they dial.

use std::{collections::HashSet, sync::Arc};

use ipnet::IpNet;
use names::{ClusterSettings, MAX_NAMES};
use policy::{Destination, Destinations, Name, check_network, did_you_mean, parse_network};
use toml::Spanned;

use super::{error::Flaw, raw::RawRule, value::expected};

const TO: &str = "rule.to";

/// Destinations of one rule, of which each port of a range is one: rules are compared with each other destination by destination.
pub(super) const MAX_RULE_DESTINATIONS: usize = 1024;

/// Destinations of all rules together, also those that several of them have. Different ones are fewer
/// ([`MAX_DESTINATIONS`](policy::MAX_DESTINATIONS)).
const MAX_ALL_DESTINATIONS: usize = 16_384;

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

/// Whether all rules together name no more than can be followed and compared, and only clusters that there are.
pub(super) fn bounded(
    rules: &[Spanned<RawRule>],
    clusters: &[Arc<ClusterSettings>],
) -> Result<(), Flaw> {
    let mut seen = HashSet::new();
    let mut of_all = 0;
    for rule in rules {
        let mut of_rule = 0;
        for text in &rule.get_ref().to {
            // What is no destination is told with its rule.
            let Ok(destination) = Destination::parse(text.get_ref()) else {
                continue;
            };
            let count = match &destination {
                Destination::Fixed(targets) => targets.len(),
                Destination::Named(target) => target.ports.len().max(1),
            };
            of_rule += count;
            of_all += count;
            for (found, most, of) in [
                (of_rule, MAX_RULE_DESTINATIONS, "a rule"),
                (of_all, MAX_ALL_DESTINATIONS, "all rules together"),
            ] {
                if found > most {
                    let what = format!(
                        "at most {most} destinations in {of}, of which each port of a range is one"
                    );
                    return expected(TO, text, &what);
                }
            }
            if let Destination::Named(target) = destination {
                there_is(text, &target.name, clusters)?;
                seen.insert(target.name);
            }
            if seen.len() > MAX_NAMES {
                let what = format!("at most {MAX_NAMES} different names in all rules");
                return expected(TO, text, &what);
            }
        }
    }
    Ok(())
}

/// Whether a name is no cluster, or one that there is.
fn there_is(
    text: &Spanned<String>,
    name: &Name,
    clusters: &[Arc<ClusterSettings>],
) -> Result<(), Flaw> {
    let Name::Cluster(name) = name else {
        return Ok(());
    };
    if clusters.iter().any(|cluster| cluster.name == *name) {
        return Ok(());
    }
    let names = clusters.iter().map(|cluster| &*cluster.name);
    let meant = did_you_mean(name, names);
    let what = "the name of a `[[cluster]]` in the main file";
    expected(TO, text, what).map_err(|flaw: Flaw| Flaw {
        message: flaw.message + &meant,
        ..flaw
    })
}

fn destination(text: &Spanned<String>) -> Result<Destination, Flaw> {
    Destination::parse(text.get_ref()).or_else(|what| expected(TO, text, &what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{parse, refusal};

    fn rules(count: usize, to: &str) -> String {
        let rule = |n| format!("[[rule]]\nname = \"r{n}\"\nto = [{to}]\naction = \"bypass\"\n");
        (0..count).map(rule).collect()
    }

    fn ranges(count: usize) -> String {
        let range = |n| format!("\"10.0.0.{n}:1-128\", ");
        (0..count).map(range).collect()
    }

    #[test]
    fn destinations_are_bounded() {
        let whole = MAX_RULE_DESTINATIONS / 128;
        let all = MAX_ALL_DESTINATIONS / MAX_RULE_DESTINATIONS;
        assert!(parse(&rules(all, &ranges(whole))).is_ok());
        let refused = refusal(&rules(1, &(ranges(whole) + "\"db.x:1\"")));
        assert!(
            refused.contains("rule.to: expected at most 1024 destinations in a rule"),
            "{refused}"
        );
        let refused = refusal(&(rules(all, &ranges(whole)) + &rules(1, "\":1\"")));
        assert!(
            refused.contains("rule.to: expected at most 16384 destinations in all rules"),
            "{refused}"
        );
    }
}
