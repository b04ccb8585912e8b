//! The settings of `fold`, and their check.

use serde::Deserialize;

use super::shared_connection::MAX_STREAMS;

/// Lets flows that are alike share connections to the database for plain reads and writes (connection multiplexing).
/// Stands behind all other steps.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"connections": 2}]))]
pub struct FoldSettings {
    /// Connections that flows of one identity share.
    #[serde(default = "connections")]
    #[schemars(range(min = 1, max = MOST_CONNECTIONS))]
    connections: usize,
    /// Requests that one flow may have pending on them. Further ones go by its own connection.
    #[serde(default = "share")]
    #[schemars(range(min = 1, max = MAX_STREAMS))]
    share: usize,
    /// Whether the rule requires TLS to the database. Set from the rule, not from these settings.
    #[serde(skip)]
    encrypts: bool,
}

fn connections() -> usize {
    1
}

fn share() -> usize {
    128
}

/// The most connections of one identity: more would be what the step is there to avoid.
const MOST_CONNECTIONS: usize = 16;

/// Settings that have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// The shared connections for flows that are alike.
    pub(super) connections: usize,
    /// The most requests that one flow may have out on them.
    pub(super) share: usize,
    /// Whether connections to the database have to be encrypted.
    pub(super) encrypts: bool,
}

impl FoldSettings {
    /// Marks the settings of a rule with `upstream_tls`: no connection is shared that is not
    /// encrypted.
    pub(crate) fn encrypting(self) -> Self {
        Self {
            encrypts: true,
            ..self
        }
    }

    pub(super) fn checked(self) -> Result<Checked, String> {
        let Self {
            connections,
            share,
            encrypts,
        } = self;
        if !(1..=MOST_CONNECTIONS).contains(&connections) {
            return Err(format!(
                "fold: connections: expected 1 to {MOST_CONNECTIONS}, which flows of one identity share; found \
                 {connections}"
            ));
        }
        if !(1..=MAX_STREAMS).contains(&share) {
            return Err(format!(
                "fold: share: expected 1 to {MAX_STREAMS}, the requests that one flow may have out on a shared \
                 connection; found {share}"
            ));
        }
        Ok(Checked {
            connections,
            share,
            encrypts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_is_said() {
        let of = |text: &str| toml::from_str::<FoldSettings>(text).unwrap().checked();
        let plain = of("").unwrap();
        assert_eq!((plain.connections, plain.share), (1, 128));
        for (text, expected) in [
            ("connections = 0", "connections: expected 1"),
            ("connections = 17", "connections: expected 1"),
            ("share = 0", "share: expected 1"),
            ("share = 1025", "share: expected 1"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
