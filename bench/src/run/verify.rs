//! The check whether each of our paths was taken: without it, a flow that slipped past the agent
//! would be measured as a very fast proxy.

use sandbox::Metric;

use crate::paths::{Ours, Topology};

/// Flows that are carried without being understood.
const UNDECODABLE: &str = "underpass_undecodable_flows_total";
const CONNECTIONS: &str = "underpass_connections_total";
const AT_THE_EDGE: &str = "underpass_edge_connections_total";
const INTERCEPTED: &str = "outcome=\"intercepted\"";

/// Returns what was otherwise than it should be. None: the path was taken by all of its
/// connections, except for this number of introductions to the agent.
pub fn taken(path: &Ours, introductions: usize, metrics: &Metric) -> Option<String> {
    let rule = format!("rule=\"{}\"", path.name);
    let wanted = format!("outcome=\"{}\"", path.outcome);
    let counter = match path.at {
        Topology::Host => CONNECTIONS,
        Topology::Gateway => AT_THE_EDGE,
    };
    let of_rule = metrics
        .iter()
        .filter(|(name, count)| name.starts_with(counter) && name.contains(&rule) && **count > 0.0);
    let (right, wrong): (Vec<_>, Vec<_>) = of_rule.partition(|(name, _)| name.contains(&wanted));
    let is_introduction = |name: &str, count: f64| {
        path.introduces && name.contains(INTERCEPTED) && count == introductions as f64
    };
    let mut slipped = wrong.iter();
    let slipped = slipped.find(|(name, count)| !is_introduction(name, **count));
    if let Some((name, count)) = slipped {
        return Some(format!("{count} connections did not take the path: {name}"));
    }
    if right.is_empty() {
        return Some("the agent saw none of its connections".into());
    }
    let connections = right.iter().map(|(_, count)| **count).sum();
    if let Some(why) = (path.slipped)(connections, metrics) {
        return Some(why);
    }
    let undecodable = metrics
        .iter()
        .find(|(name, count)| name.starts_with(UNDECODABLE) && **count > 0.0);
    let (name, count) = undecodable.filter(|_| path.is_copied == Some(true))?;
    Some(format!(
        "{count} flows were carried without being decoded: {name}"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paths::OURS;

    fn of(path: &str, lines: &[(&str, f64)]) -> Option<String> {
        let path = OURS.into_iter().find(|ours| ours.name == path).unwrap();
        let metrics = lines
            .iter()
            .map(|(name, count)| ((*name).to_owned(), *count))
            .collect();
        // An introduction is a flow.
        taken(path, 2, &metrics)
    }

    #[test]
    fn every_connection_must_take_the_path() {
        let ours = (
            "underpass_connections_total{outcome=\"untouched\",rule=\"bypass\"}",
            3.0,
        );
        let others = (
            "underpass_connections_total{outcome=\"intercepted\",rule=\"enrich\"}",
            4.0,
        );
        assert_eq!(of("bypass", &[ours, others]), None);
        assert_eq!(of("enrich", &[ours, others]), None);
        assert!(of("bypass", &[others]).unwrap().contains("none"));
        let slipped = (
            "underpass_connections_total{outcome=\"failed_open\",rule=\"enrich\"}",
            1.0,
        );
        let why = of("enrich", &[others, slipped]).unwrap();
        assert!(why.contains("failed_open"), "{why}");
        let blind = ("underpass_undecodable_flows_total{reason=\"tls\"}", 2.0);
        assert!(of("enrich", &[others, blind]).unwrap().contains("tls"));
        assert_eq!(of("bypass", &[ours, blind]), None);
        let untouched = (
            "underpass_connections_total{outcome=\"untouched\",rule=\"shortcut\"}",
            3.0,
        );
        let way = |way: &str, messages: f64| {
            let name = format!("underpass_shortcut_messages_total{{way=\"{way}\"}}");
            let name: &'static str = name.leak();
            (name, messages)
        };
        let taken = [untouched, way("shortcut", 97.0), way("alone", 3.0)];
        assert_eq!(of("shortcut", &taken), None);
        let missed = [untouched, way("shortcut", 50.0), way("alone", 50.0)];
        let why = of("shortcut", &missed).unwrap();
        assert!(why.contains("50 of 100"), "{why}");
        assert!(of("shortcut", &[untouched]).is_some());
    }

    #[test]
    fn introductions_and_nothing_else_are_the_agents() {
        let remembered = (
            "underpass_connections_total{outcome=\"remembered\",rule=\"remembered\"}",
            8.0,
        );
        let seen = |count| {
            (
                "underpass_connections_total{outcome=\"intercepted\",rule=\"remembered\"}",
                count,
            )
        };
        assert_eq!(of("remembered", &[remembered, seen(2.0)]), None);
        for wrong in [&[remembered, seen(3.0)][..], &[seen(2.0)]] {
            assert!(of("remembered", wrong).is_some());
        }
    }
}
