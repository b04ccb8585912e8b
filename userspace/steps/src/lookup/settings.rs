//! The settings of `lookup`.

use std::{path::PathBuf, sync::Arc};

use cql_edit::{Transform, transforms};
use serde::Deserialize;

use super::{NAME, OwnLogin, OwnLookup};
use crate::{Reporter, login::LoginSettings};

/// Asks the database for the texts of statements that were prepared before the agent saw the flow, or past it.
#[derive(Clone, Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"connection": "own"}]))]
pub struct LookupSettings {
    /// Connection on which the database is asked.
    #[serde(default)]
    pub connection: Connection,
    /// User who logs in on the agent's own connection, by SASL PLAIN. Needs `password_file`.
    #[schemars(extend("examples" = ["underpass"]))]
    pub username: Option<String>,
    /// File whose one line is the password. Needs `username`. `${NAME}` in its path is a variable of the agent's environment.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/etc/underpass/lookup.password"]))]
    pub password_file: Option<PathBuf>,
}

/// The connection of the questions.
#[derive(Clone, Copy, Debug, Default, Deserialize, schemars::JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum Connection {
    /// The flow's, with the client's rights: the flow goes through the agent.
    #[default]
    Flow,
    /// One of the agent's own to the flow's database: the flow is left alone, and may be tapped.
    Own,
}

/// The step as it was asked for.
pub enum Built {
    /// The step that asks on the flow's connection.
    Transform(Arc<dyn Transform>),
    /// The step that asks on a connection of the agent's own.
    Reporter(Box<dyn Reporter>),
}

impl LookupSettings {
    /// Makes the step, and opens nothing. `encrypts`: the rule speaks TLS to its databases.
    ///
    /// # Errors
    /// Names the bad setting, and what it should be.
    pub fn build(self, encrypts: bool) -> Result<Built, String> {
        let settings = LoginSettings::of(self.username, self.password_file)?;
        match self.connection {
            Connection::Flow if settings.is_some() => Err(format!(
                "{NAME}: username: expected with `connection = \"own\"`: on the flow's connection the client has logged in"
            )),
            Connection::Flow => Ok(Built::Transform(transforms::lookup())),
            Connection::Own if encrypts => Err(format!(
                "{NAME}: connection: expected `flow` in a rule with `upstream_tls`: a connection of the agent's own is not encrypted; found \"own\""
            )),
            Connection::Own => Ok(Built::Reporter(Box::new(OwnLookup {
                settings,
                login: OwnLogin::default(),
            }))),
        }
    }
}
