//! The databases behind a rule's virtual addresses.

use std::{collections::HashSet, net::SocketAddr};

use policy::{Action, Destinations, MAX_BACKENDS, MAX_BALANCED, Target};
use toml::Spanned;

use super::{error::Flaw, raw::RawRule, value::expected};
use crate::backends::MAX_CHECKED;

const KEY: &str = "rule.backends";

/// `to`: the rule's, each of which must then be one address and port that clients dial.
pub(super) fn of(
    raw: &[Spanned<String>],
    to: &Destinations,
    action: Action,
) -> Result<Vec<SocketAddr>, Flaw> {
    let Some(first) = raw.first() else {
        return Ok(Vec::new());
    };
    // A name stands for addresses that are somebody's already.
    let fixed = Some(to.fixed()).filter(|_| to.named().is_empty());
    let fixed = fixed.unwrap_or_default();
    let is_ipv6 = fixed
        .iter()
        .map(virtual_is_ipv6)
        .collect::<Option<Vec<_>>>();
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
            Ok(at) if fixed.iter().any(|target| is(target, at)) => {
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

/// Tells whether a virtual address is an IPv6 one. None: the target is more than one address, or has no port.
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

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    #[test]
    fn clients_and_backends_are_read() {
        let config = parse(
            r#"
            [[rule]]
            name = "cluster"
            from = ["10.2.0.0/16", "2001:db8::/32", "192.0.2.1"]
            to = ["10.9.0.10:9042", "10.9.0.11:9042"]
            backends = ["10.1.0.1:9042", "10.1.0.2:9142"]
            action = "bypass"
            "#,
        )
        .unwrap();
        let rule = &config.policy.rules[0];
        assert_eq!(rule.from.len(), 3);
        assert_eq!(rule.from[2].prefix_len(), 32);
        assert_eq!(
            rule.backends,
            ["10.1.0.1:9042", "10.1.0.2:9142"].map(|b| b.parse().unwrap())
        );
    }

    #[test]
    fn backends_that_cannot_be_are_refused() {
        let with = |to: &str, backends: &str, action: &str| {
            refusal(&format!(
                "[[rule]]\nname = \"r\"\nto = {to}\nbackends = {backends}\naction = \"{action}\""
            ))
        };
        let (to, one) = (r#"["10.9.0.10:9042"]"#, r#"["10.1.0.1:9042"]"#);
        for (to, backends, action, said) in [
            (
                r#"["10.9.0.0/24:9042"]"#,
                one,
                "bypass",
                "virtual addresses of one family",
            ),
            (r#"["10.9.0.10"]"#, one, "bypass", "each with its port"),
            (
                r#"["10.9.0.10:9042", "[fd00::1]:9042"]"#,
                one,
                "bypass",
                "of one family",
            ),
            ("[]", one, "bypass", "a rule whose `to`"),
            (to, one, "deny", "other than `deny`"),
            (to, r#"["[fd00::2]:9042"]"#, "bypass", "of the same family"),
            (to, r#"["10.1.0.1"]"#, "bypass", "an address and port"),
            (to, r#"["10.1.0.1:0"]"#, "bypass", "that can be dialled"),
            (
                to,
                r#"["10.9.0.10:9042"]"#,
                "bypass",
                "other than the virtual one",
            ),
            (
                to,
                r#"["10.1.0.1:1", "10.1.0.1:1"]"#,
                "bypass",
                "not named yet",
            ),
        ] {
            let refusal = with(to, backends, action);
            assert!(refusal.contains(said), "{refusal}");
            assert!(refusal.starts_with("policy.toml:4:"), "{refusal}");
        }
        let many: Vec<_> = (1..=129).map(|n| format!("\"10.1.0.{n}:9042\"")).collect();
        let refusal = with(to, &format!("[{}]", many.join(",")), "bypass");
        assert!(refusal.contains("at most 128 backends"), "{refusal}");
    }

    #[test]
    fn checked_backends_are_bounded() {
        let rules: String = (0..9)
            .map(|n| {
                let backends: Vec<_> = (1..=128)
                    .map(|b| format!("\"10.{n}.0.{b}:9042\""))
                    .collect();
                format!(
                    "[[rule]]\nname = \"r{n}\"\nto = [\"10.9.0.{n}:9042\"]\nbackends = [{}]\n\
                     action = \"bypass\"\n",
                    backends.join(",")
                )
            })
            .collect();
        let refusal = refusal(&rules);
        assert!(
            refusal.contains("at most 1024 different backends"),
            "{refusal}"
        );
        assert!(refusal.starts_with("policy.toml:44:"), "{refusal}");
    }

    #[test]
    fn rules_with_backends_are_bounded() {
        let rules = |n: usize| -> String {
            let rule = |n| {
                format!(
                    "[[rule]]\nname = \"r{n}\"\nto = [\"10.9.0.{n}:9042\"]\n\
                     backends = [\"10.1.0.1:9042\"]\naction = \"bypass\"\n"
                )
            };
            (1..=n).map(rule).collect()
        };
        assert_eq!(parse(&rules(64)).unwrap().policy.rules.len(), 64);
        let refusal = refusal(&rules(65));
        assert!(
            refusal.contains("at most 64 rules with `backends`"),
            "{refusal}"
        );
        assert!(refusal.starts_with("policy.toml:321:"), "{refusal}");
    }
}
