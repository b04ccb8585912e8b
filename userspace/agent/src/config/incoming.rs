//! `[[incoming]]`: where connections from other hosts to databases on this one are steered.

use dataplane::{ClientAddress, IncomingOptions, MAX_INCOMING};
use policy::Policy;
use serde::Deserialize;
use toml::Spanned;

use super::bounds::{CLIENT_ADDRESSES, names};
use super::{
    error::Flaw,
    value::{absolute, one_of},
};

/// Connections from other hosts to databases on this host. The agent takes those that rules with `to` or `from` hold
/// for.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"netns": "/run/netns/db", "client_address": "keep"}]))]
pub(super) struct RawIncoming {
    /// Network namespace of the databases. Without this key: the agent's own.
    #[schemars(
        with = "Option<String>",
        extend("title" = "absolute path", "examples" = ["/run/netns/db"])
    )]
    pub netns: Option<Spanned<String>>,
    /// Address from which the database sees the connection. `keep`: the client's address and port; `agent`: the
    /// agent's.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&CLIENT_ADDRESSES), "default" = "keep")
    )]
    pub client_address: Option<Spanned<String>>,
}

pub(super) fn of(
    raw: Vec<Spanned<RawIncoming>>,
    policy: &Policy,
    warnings: &mut Vec<String>,
) -> Result<Vec<IncomingOptions>, Flaw> {
    if let Some(first_too_many) = raw.get(MAX_INCOMING) {
        let message = format!(
            "[[incoming]]: at most {MAX_INCOMING} network namespaces, found {}",
            raw.len()
        );
        return Err(Flaw::new(first_too_many.span(), message));
    }
    let mut all: Vec<IncomingOptions> = Vec::new();
    for one in raw {
        let span = one.span();
        let RawIncoming {
            netns,
            client_address,
        } = one.into_inner();
        let options = IncomingOptions {
            netns: netns
                .map(|text| absolute("incoming.netns", &text))
                .transpose()?,
            client_address: client_address.map_or(Ok(ClientAddress::default()), |text| {
                one_of("incoming.client_address", &text, &CLIENT_ADDRESSES)
            })?,
        };
        if all.iter().any(|other| other.netns == options.netns) {
            let message = "[[incoming]]: expected a `netns` that none above has";
            return Err(Flaw::new(span, message));
        }
        all.push(options);
    }
    let names_either = policy
        .rules
        .iter()
        .any(|rule| !rule.from.is_empty() || !rule.to.is_any());
    if !all.is_empty() && !names_either {
        warnings.push(
            "[[incoming]]: no rule has `from` or `to`, so none holds for a client on another host"
                .into(),
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{parse, refusal};

    #[test]
    fn incoming_namespaces_are_read() {
        let rule = "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\n";
        let config = parse(&format!(
            "{rule}[[incoming]]\n[[incoming]]\nnetns = \"/run/netns/db\"\nclient_address = \"agent\"\n"
        ));
        let config = config.unwrap();
        let expected = [
            IncomingOptions {
                netns: None,
                client_address: ClientAddress::Keep,
            },
            IncomingOptions {
                netns: Some("/run/netns/db".into()),
                client_address: ClientAddress::Agent,
            },
        ];
        assert_eq!(config.incoming, expected);
        assert_eq!(config.warnings, [""; 0]);
        let nobody = parse("[[incoming]]\n").unwrap();
        assert!(nobody.warnings[0].contains("no rule has `from` or `to`"));
        let many = (0..9).map(|n| format!("[[incoming]]\nnetns = \"/run/netns/{n}\"\n"));
        for (text, said) in [
            (
                "[[incoming]]\n[[incoming]]\n".to_owned(),
                "2:1: [[incoming]]: expected a `netns`",
            ),
            (
                "[[incoming]]\nnetns = \"db\"\n".to_owned(),
                "2:9: incoming.netns: expected an absolute",
            ),
            (
                "[[incoming]]\nclient_address = \"mine\"\n".to_owned(),
                "2:18: incoming.client_address: expected `keep` or `agent`; found \"mine\"",
            ),
            (
                "[[incoming]]\nport = 1\n".to_owned(),
                "unknown field `port`",
            ),
            (many.collect(), "at most 8 network namespaces, found 9"),
        ] {
            let refusal = refusal(&text);
            assert!(refusal.contains(said), "{refusal}");
        }
    }
}
