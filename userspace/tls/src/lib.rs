//! TLS that ends in the agent: the rules with TLS, and their certificates.
//!
//! - `common.rs`: the settings that several rules have in common.
//! - `settings.rs`: a rule's settings.
//! - `files.rs`: certificates and keys, read and checked.
//! - `made.rs`: configurations, and whether their files are still the same.
//! - `failure.rs`: the reasons why TLS fails, for metrics and the log.
//! - `handshakes.rs`: the counts of handshakes.
//! - `outward.rs`: connections that the agent makes for itself; `endpoint.rs`: where to.
//! - `seen.rs`: the view of an encrypted connection.
//! - `towards.rs`: a flow's encryption towards its database, for another connection that has to be
//!   the same.
//!
//! `proxy/tls.rs` and `proxy/legs.rs` carry the bytes.

#![forbid(unsafe_code)]

mod common;
mod endpoint;
mod failure;
mod files;
mod handshakes;
mod made;
mod opaque;
mod outward;
mod seen;
mod settings;
mod towards;

use std::{collections::HashMap, sync::Arc};

pub use common::Common;
pub use endpoint::{Endpoint, Service};
pub use failure::Failure;
pub use handshakes::Handshakes;
use made::Hears;
pub use made::Made;
pub use opaque::Opaque;
pub use outward::Outward;
use policy::RuleName;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::{TLS12, TLS13},
};
pub use seen::{Seen, SeenBy};
pub use settings::{Accepting, Dialling, RawDialling, TlsSettings, file, secret};
pub use towards::Towards;

/// The protocol versions: all that rustls has.
const VERSIONS: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];

/// The number of tickets that a client gets, each for one later connection. A ticket holds
/// everything that is needed of its session, so that the agent keeps nothing.
const TICKETS: usize = 2;

/// The side of a flow on which TLS is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The agent is the server.
    Client,
    /// The agent is the client.
    Database,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Client, Self::Database];

    /// Returns the side's name in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Database => "database",
        }
    }
}

/// The TLS configurations that a rule's files make.
#[derive(Debug)]
pub struct RuleTls {
    /// The rule's settings.
    pub settings: TlsSettings,
    /// The configuration towards clients.
    pub accept: Option<Made<ServerConfig>>,
    /// The configuration towards databases.
    pub dial: Option<Made<ClientConfig>>,
}

/// The rules with certificates. Rules with the same settings share their configurations.
#[derive(Clone, Debug, Default)]
pub struct TlsRules {
    rules: HashMap<RuleName, Arc<RuleTls>>,
    /// The rules of the policy file before that are not in this one: connections that they have
    /// decided are still being made.
    gone: HashMap<RuleName, Arc<RuleTls>>,
}

impl TlsRules {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the rule, the key and the file, and the mistake in it, in one line.
    pub fn load(wanted: &[(RuleName, TlsSettings)]) -> anyhow::Result<Self> {
        Self::default().reload(wanted)
    }

    /// Reads the files again. **Invariant**: for the same settings and the same file contents there
    /// is one configuration, and it stays the one that there was.
    ///
    /// # Errors
    /// The same as for [`Self::load`].
    pub fn reload(&self, wanted: &[(RuleName, TlsSettings)]) -> anyhow::Result<Self> {
        let mut rules: HashMap<RuleName, Arc<RuleTls>> = HashMap::new();
        for (rule, settings) in wanted {
            let alike = rules.values().find(|other| other.settings == *settings);
            let tls = match alike {
                Some(tls) => tls.clone(),
                None => {
                    let tls = RuleTls::load(settings);
                    let mut tls = tls.map_err(|e| anyhow::anyhow!("rule {rule}: {e}"))?;
                    let before = self.rules.values().chain(self.gone.values());
                    before.chain(rules.values()).for_each(|known| tls.or(known));
                    Arc::new(tls)
                }
            };
            rules.insert(rule.clone(), tls);
        }
        Ok(Self {
            rules,
            gone: HashMap::new(),
        })
    }

    /// Puts these rules in the place of others. `stays`: whether a rule of theirs is still there,
    /// whatever its settings are now.
    pub fn replacing(mut self, others: &Self, stays: impl Fn(&RuleName) -> bool) -> Self {
        let gone = others.rules.iter().filter(|(rule, _)| !stays(rule));
        self.gone = gone
            .map(|(rule, tls)| (rule.clone(), tls.clone()))
            .collect();
        self
    }

    /// Returns this rule's configurations.
    pub fn of(&self, rule: &RuleName) -> Option<&Arc<RuleTls>> {
        self.rules.get(rule).or_else(|| self.gone.get(rule))
    }

    /// Whether no rule has any configurations.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.gone.is_empty()
    }
}

impl RuleTls {
    /// Whether clients that do not encrypt are refused.
    pub fn wants_encrypted(&self) -> bool {
        self.settings.accept.as_ref().is_some_and(|a| a.required)
    }

    /// Takes over, for each side, the other's configuration if both have the same settings there
    /// and were made from the same files.
    fn or(&mut self, other: &Self) {
        let (own, others) = (&self.settings, &other.settings);
        if let (Some(made), Some(known)) = (&mut self.accept, &other.accept)
            && own.accept == others.accept
        {
            made.or(known);
        }
        if let (Some(made), Some(known)) = (&mut self.dial, &other.dial)
            && own.dial == others.dial
        {
            made.or(known);
        }
    }

    fn load(settings: &TlsSettings) -> Result<Self, String> {
        let accept = settings.accept.as_ref().map(accept).transpose();
        let dial = settings.dial.as_ref().map(dial).transpose();
        Ok(Self {
            settings: settings.clone(),
            accept: accept.map_err(|e| format!("tls.{e}"))?,
            dial: dial.map_err(|e| format!("upstream_tls.{e}"))?,
        })
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn accept(settings: &Accepting) -> Result<Made<ServerConfig>, String> {
    let mut hears = Hears::new();
    let (chain, key) = files::own(&mut hears, "cert", &settings.cert, "key", &settings.key)?;
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder
        .with_protocol_versions(VERSIONS)
        .map_err(|e| format!("cert: {e}"))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let roots = Arc::new(files::roots(&mut hears, "client_ca", ca)?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
            let verifier = verifier.build().map_err(|e| format!("client_ca: {e}"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| files::mismatch(&e, &settings.cert, &settings.key))?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    // A client that has to show a certificate shows it each time: a ticket would outlive the
    // certificate.
    config.send_tls13_tickets = match settings.client_ca {
        Some(_) => 0,
        None => {
            let tickets = ring::Ticketer::new().map_err(|e| format!("cert: {e}"))?;
            config.ticketer = tickets;
            TICKETS
        }
    };
    Ok(hears.made(config))
}

fn dial(settings: &Dialling) -> Result<Made<ClientConfig>, String> {
    let mut hears = Hears::new();
    let roots: RootCertStore = files::roots(&mut hears, "ca", &settings.ca)?;
    let builder = ClientConfig::builder_with_provider(provider());
    let builder = builder
        .with_protocol_versions(VERSIONS)
        .map_err(|e| format!("ca: {e}"))?
        .with_root_certificates(roots);
    let config = match &settings.own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let (chain, secret) = files::own(&mut hears, "cert", cert, "key", key)?;
            let with_own = builder.with_client_auth_cert(chain, secret);
            with_own.map_err(|e| files::mismatch(&e, cert, key))?
        }
    };
    Ok(hears.made(config))
}

#[cfg(test)]
mod tests;
