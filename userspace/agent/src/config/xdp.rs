//! `[[xdp]]`: interfaces that are guarded, and forwarded from.

use std::collections::HashSet;

use dataplane::edge::{self, Forward, Interface, MAX_INTERFACES, SynRate, WantedMode};
use serde::Deserialize;
use toml::Spanned;

use super::bounds::{FORWARDS, MAX_NAME_BYTES, MAX_SYN_RATE, MODES, names};
use super::{
    error::Flaw,
    value::{expected, one_of, whole},
};

/// Network interfaces on which an XDP program applies the rules that have `from` or `to`, before the kernel's own
/// network stack sees a packet (`docs/decisions/0008-edge.md`).
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"interface": "eth0", "forward": "dsr", "syn_rate": 100}]))]
pub(super) struct RawXdp {
    /// Name of the interface.
    #[schemars(with = "String", length(min = 1, max = MAX_NAME_BYTES))]
    pub interface: Spanned<String>,
    /// Where the program is attached. `native`: in the driver; `generic`: behind it, which every driver can; `auto`:
    /// in the driver if it can.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&MODES), "default" = "auto")
    )]
    pub mode: Option<Spanned<String>>,
    /// Forwards connections to the backends of a rule that has some. `snat`: answers come back through this host;
    /// `dsr`: the database answers the client directly; `off`: nothing is forwarded.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&FORWARDS), "default" = "off")
    )]
    pub forward: Option<Spanned<String>>,
    /// Connections that one source address may open in a second. Without this key: no limit.
    #[schemars(with = "Option<i64>", range(min = 1, max = MAX_SYN_RATE))]
    pub syn_rate: Option<Spanned<i64>>,
    /// Connections that one source address may open at once. Needs `syn_rate`, which is the default.
    #[schemars(with = "Option<i64>", range(min = 1, max = MAX_SYN_RATE))]
    pub syn_burst: Option<Spanned<i64>>,
}

pub(super) fn interfaces(raw: Vec<RawXdp>) -> Result<Vec<Interface>, Flaw> {
    if let Some(too_many) = raw.get(MAX_INTERFACES) {
        let message = format!("[[xdp]]: at most {MAX_INTERFACES} interfaces");
        return Err(Flaw::new(too_many.interface.span(), message));
    }
    let last = raw.last().map(|raw| raw.interface.span());
    let mut seen = HashSet::new();
    let interfaces = raw.into_iter().map(|raw| one(raw, &mut seen));
    let interfaces = interfaces.collect::<Result<Vec<_>, _>>()?;
    if let Err(unlike) = edge::alike(&interfaces) {
        return Err(Flaw::new(
            last.unwrap_or_default(),
            format!("[[xdp]]: {unlike}"),
        ));
    }
    Ok(interfaces)
}

fn one(raw: RawXdp, seen: &mut HashSet<String>) -> Result<Interface, Flaw> {
    const KEY: &str = "xdp.interface";
    let name = raw.interface.get_ref();
    let plain = |c: char| !c.is_whitespace() && c != '/' && !c.is_control();
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(plain) {
        return expected(KEY, &raw.interface, "an interface's name: `eth0`");
    }
    if !seen.insert(name.clone()) {
        let meant = "an interface that no [[xdp]] above names";
        return expected(KEY, &raw.interface, meant);
    }
    Ok(Interface {
        name: name.clone(),
        mode: raw.mode.map_or(Ok(WantedMode::Auto), |text| {
            one_of("xdp.mode", &text, &MODES)
        })?,
        forward: raw.forward.map_or(Ok(Forward::Off), |text| {
            one_of("xdp.forward", &text, &FORWARDS)
        })?,
        syn_rate: syn_rate(raw.syn_rate.as_ref(), raw.syn_burst.as_ref())?,
    })
}

/// A burst is what a source sends in a second at its rate, unless the file says otherwise.
fn syn_rate(
    rate: Option<&Spanned<i64>>,
    burst: Option<&Spanned<i64>>,
) -> Result<Option<SynRate>, Flaw> {
    let Some(rate) = rate else {
        return match burst {
            Some(burst) => expected("xdp.syn_burst", burst, "`syn_rate` beside it"),
            None => Ok(None),
        };
    };
    let per_second = whole("xdp.syn_rate", rate, MAX_SYN_RATE)? as u32;
    let burst = burst.map(|burst| whole("xdp.syn_burst", burst, MAX_SYN_RATE));
    Ok(Some(SynRate {
        per_second,
        burst: burst.transpose()?.map_or(per_second, |burst| burst as u32),
    }))
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    #[test]
    fn an_interface_that_is_guarded_is_named_once_with_settings_that_go_together() {
        let text = "[[xdp]]\ninterface = \"eth0\"\nforward = \"snat\"\nsyn_rate = 100\n\
                    [[xdp]]\ninterface = \"eth0.7\"\nmode = \"generic\"\nsyn_rate = 5\nsyn_burst = 9\n";
        let config = parse(text).unwrap();
        let rates: Vec<(u32, u32)> = config
            .xdp
            .iter()
            .filter_map(|one| one.syn_rate.map(|rate| (rate.per_second, rate.burst)))
            .collect();
        assert_eq!(rates, [(100, 100), (5, 9)]);
        let of = |rest: &str| refusal(&format!("[[xdp]]\ninterface = \"eth0\"\n{rest}\n"));
        for (rest, expected) in [
            (
                "mode = \"fast\"",
                "policy.toml:3:8: xdp.mode: expected `auto`, ",
            ),
            (
                "mode = \"native\"\nforward = \"snat\"\n[[xdp]]\ninterface = \"eth1\"\n\
                 mode = \"generic\"\nforward = \"snat\"",
                "policy.toml:6:13: [[xdp]]: eth0 is to be guarded in native mode and eth1 in generic",
            ),
            (
                "forward = \"nat\"",
                "policy.toml:3:11: xdp.forward: expected `off`, ",
            ),
            (
                "syn_burst = 5",
                "policy.toml:3:13: xdp.syn_burst: expected `syn_rate` ",
            ),
            (
                "syn_rate = 0",
                "policy.toml:3:12: xdp.syn_rate: expected a whole ",
            ),
            (
                "[[xdp]]\ninterface = \"eth0\"",
                "policy.toml:4:13: xdp.interface: expected an interface that no ",
            ),
            (
                "[[xdp]]\ninterface = \"a/b\"",
                "policy.toml:4:13: xdp.interface: expected an interface's name",
            ),
        ] {
            let refused = of(rest);
            assert!(refused.starts_with(expected), "{rest}: {refused}");
        }
    }
}
