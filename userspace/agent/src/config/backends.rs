//! The databases behind a rule's virtual addresses.

use std::{collections::HashSet, net::SocketAddr};

use dataplane::policy::{Action, MAX_BACKENDS, MAX_BALANCED, Target};
use toml::Spanned;

use super::{error::Flaw, parse::expected, raw::RawRule};
use crate::backends::MAX_CHECKED;

const KEY: &str = "rule.backends";

/// `to`: the rule's, each of which must then be one address and port that clients dial.
pub(super) fn of(
    raw: &[Spanned<String>],
    to: &[Target],
    action: Action,
) -> Result<Vec<SocketAddr>, Flaw> {
    let Some(first) = raw.first() else {
        return Ok(Vec::new());
    };
    let is_ipv6 = to.iter().map(virtual_is_ipv6).collect::<Option<Vec<_>>>();
    let is_ipv6 = match is_ipv6.as_deref() {
        Some([first, rest @ ..]) if rest.iter().all(|v6| v6 == first) => *first,
        _ => {
            return expected(
                KEY,
                first,
                "a rule whose `to` is virtual addresses of one family, each with its port: \
                 `10.9.0.10:9042`",
            );
        }
    };
    if action == Action::Deny {
        return expected(KEY, first, "an action other than `deny`");
    }
    if let Some(too_many) = raw.get(MAX_BACKENDS) {
        return expected(KEY, too_many, &format!("at most {MAX_BACKENDS} backends"));
    }
    let mut seen = HashSet::new();
    raw.iter()
        .map(|text| match text.get_ref().parse::<SocketAddr>() {
            Ok(at) if at.is_ipv6() != is_ipv6 => {
                expected(KEY, text, "an address of the same family as those in `to`")
            }
            Ok(at) if at.port() == 0 || at.ip().is_unspecified() => {
                expected(KEY, text, "an address and a port that can be dialled")
            }
            Ok(at) if to.iter().any(|target| is(target, at)) => {
                expected(KEY, text, "an address other than the virtual one")
            }
            Ok(at) if !seen.insert(at) => expected(KEY, text, "a backend that is not named yet"),
            Ok(at) => Ok(at),
            Err(_) => expected(
                KEY,
                text,
                "an address and port: `10.1.0.1:9042`, `[fd00::1]:9042`",
            ),
        })
        .collect()
}

/// Whether all rules together name no more than can be served.
pub(super) fn bounded(rules: &[Spanned<RawRule>]) -> Result<(), Flaw> {
    let balanced = rules.iter().map(|rule| (rule, &rule.get_ref().backends));
    let balanced = balanced.filter(|(_, backends)| !backends.is_empty());
    let mut named = HashSet::new();
    for (n, (rule, backends)) in balanced.enumerate() {
        if n >= MAX_BALANCED {
            let message = format!("[[rule]]: at most {MAX_BALANCED} rules with `backends`");
            return Err(Flaw::new(rule.span(), message));
        }
        for backend in backends {
            named.insert(backend.get_ref());
            if named.len() > MAX_CHECKED {
                let what = format!("at most {MAX_CHECKED} different backends in all rules");
                return expected(KEY, backend, &what);
            }
        }
    }
    Ok(())
}

/// None: it is more than one address, or has no port.
fn virtual_is_ipv6(target: &Target) -> Option<bool> {
    let network = target.network?;
    let is_one = network.prefix_len() == network.max_prefix_len();
    (is_one && target.port.is_some()).then(|| network.addr().is_ipv6())
}

fn is(target: &Target, at: SocketAddr) -> bool {
    target
        .network
        .is_some_and(|network| network.addr() == at.ip())
        && target.port == Some(at.port())
}
