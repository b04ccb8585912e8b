//! Facts that only the CQL handshake tells, and a rule's conditions on them.
//!
//! The kernel cannot look that far: it sends what meets a session rule to the agent, which
//! learns one fact after the other and asks [`Policy::decide`](crate::Policy::decide) each time.

use std::fmt;

/// The longest value that a session rule can name, and that is kept of a session: Cassandra
/// allows 48 bytes for a keyspace and drivers' names have a few dozen. Values longer than
/// this hold for no rule.
pub const MAX_FACT_BYTES: usize = 256;

/// A fact of a session that a rule can name, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Fact<T> {
    /// The fact is not known yet.
    #[default]
    Open,
    /// The session has no such fact: no rule that names it holds.
    Absent,
    /// The session may have such a fact, and nobody will know it. A rule for which that matters is met by
    /// its [`Fail`](crate::Fail).
    Unknowable,
    /// The fact is this value, for good.
    Is(T),
}

impl<T> Fact<T> {
    /// Turns a fact that is not known yet into one that never will be.
    fn close(&mut self) {
        if matches!(self, Fact::Open) {
            *self = Fact::Unknowable;
        }
    }

    /// Takes a fact that is not known for none.
    fn known(self) -> Self {
        match self {
            Fact::Open | Fact::Unknowable => Fact::Absent,
            known => known,
        }
    }

    /// The value, where there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            Fact::Is(value) => Some(value),
            _ => None,
        }
    }
}

/// The version of the CQL protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Cassandra 2.1
    V3,
    /// Cassandra 2.2
    V4,
    /// Cassandra 4.0
    V5,
}

impl Protocol {
    /// Every version.
    pub const ALL: [Self; 3] = [Self::V3, Self::V4, Self::V5];

    /// The version's name in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V3 => "v3",
            Self::V4 => "v4",
            Self::V5 => "v5",
        }
    }
}

/// The compression that STARTUP asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Nothing is compressed.
    None,
    /// LZ4
    Lz4,
    /// Snappy
    Snappy,
}

impl Compression {
    /// Every compression.
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Snappy];

    /// The compression's name in the policy file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Snappy => "snappy",
        }
    }
}

/// The facts that a flow's handshake has told so far.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Session {
    /// The user who logged in.
    pub user: Fact<String>,
    /// The keyspace in use.
    pub keyspace: Fact<String>,
    /// STARTUP's DRIVER_NAME.
    pub driver: Fact<String>,
    /// STARTUP's DRIVER_VERSION.
    pub driver_version: Fact<String>,
    /// STARTUP's APPLICATION_NAME.
    pub application: Fact<String>,
    /// The version that the database accepted.
    pub protocol: Fact<Protocol>,
    /// STARTUP's COMPRESSION.
    pub compression: Fact<Compression>,
    /// Whether the flow is encrypted.
    pub tls: Fact<bool>,
}

impl Session {
    /// The session with nothing but what is known of it: all other facts are absent.
    #[must_use]
    pub fn known(self) -> Self {
        Self {
            user: self.user.known(),
            keyspace: self.keyspace.known(),
            driver: self.driver.known(),
            driver_version: self.driver_version.known(),
            application: self.application.known(),
            protocol: self.protocol.known(),
            compression: self.compression.known(),
            tls: self.tls.known(),
        }
    }

    /// The facts that are not known, or not yet.
    pub fn unknown(&self) -> Vec<SessionKey> {
        fn is_unknown<T>(fact: &Fact<T>) -> bool {
            matches!(fact, Fact::Open | Fact::Unknowable)
        }
        let all = [
            (SessionKey::User, is_unknown(&self.user)),
            (SessionKey::Keyspace, is_unknown(&self.keyspace)),
            (SessionKey::Driver, is_unknown(&self.driver)),
            (SessionKey::DriverVersion, is_unknown(&self.driver_version)),
            (SessionKey::Application, is_unknown(&self.application)),
            (SessionKey::Protocol, is_unknown(&self.protocol)),
            (SessionKey::Compression, is_unknown(&self.compression)),
            (SessionKey::Tls, is_unknown(&self.tls)),
        ];
        let unknown = all.into_iter().filter(|(_, is_unknown)| *is_unknown);
        unknown.map(|(key, _)| key).collect()
    }

    /// The session once nothing more can become known of it.
    #[must_use]
    pub fn closed(mut self) -> Self {
        for text in [
            &mut self.user,
            &mut self.keyspace,
            &mut self.driver,
            &mut self.driver_version,
            &mut self.application,
        ] {
            text.close();
        }
        self.protocol.close();
        self.compression.close();
        self.tls.close();
        self
    }
}

/// A text, exact or a beginning (`spark*`).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TextPattern {
    text: String,
    prefix: bool,
}

impl TextPattern {
    /// `text`, or `beginning*`. None when it is empty, longer than [`MAX_FACT_BYTES`], or has
    /// a `*` anywhere else.
    pub fn parse(pattern: &str) -> Option<Self> {
        let (text, prefix) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let fits = text.len() <= MAX_FACT_BYTES && !text.contains('*');
        (fits && (prefix || !text.is_empty())).then(|| Self {
            text: text.to_owned(),
            prefix,
        })
    }

    /// Whether a value is this text, or begins with it.
    pub fn holds(&self, value: &str) -> bool {
        if self.prefix {
            value.starts_with(&self.text)
        } else {
            value == self.text
        }
    }
}

impl fmt::Display for TextPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.prefix { "*" } else { "" })
    }
}

/// A rule's conditions on the session. An empty list holds for every session.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionConditions {
    /// The users who may have logged in.
    pub users: Vec<TextPattern>,
    /// The keyspace, as the database stores its name.
    pub keyspaces: Vec<TextPattern>,
    /// The driver's name.
    pub drivers: Vec<TextPattern>,
    /// The driver's version.
    pub driver_versions: Vec<TextPattern>,
    /// The application's name.
    pub applications: Vec<TextPattern>,
    /// The protocol's version.
    pub protocols: Vec<Protocol>,
    /// The compression.
    pub compressions: Vec<Compression>,
    /// Whether the flow is encrypted.
    pub tls: Option<bool>,
}

/// A condition on the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionKey {
    /// The user (`user`).
    User,
    /// The keyspace (`keyspace`).
    Keyspace,
    /// The driver's name (`driver`).
    Driver,
    /// The driver's version (`driver_version`).
    DriverVersion,
    /// The application's name (`application`).
    Application,
    /// The protocol's version (`protocol`).
    Protocol,
    /// The compression (`compression`).
    Compression,
    /// Whether the client encrypts (`tls`).
    Tls,
}

impl SessionKey {
    /// The condition's key in the policy file.
    pub fn key(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Keyspace => "keyspace",
            Self::Driver => "driver",
            Self::DriverVersion => "driver_version",
            Self::Application => "application",
            Self::Protocol => "protocol",
            Self::Compression => "compression",
            Self::Tls => "tls",
        }
    }
}

/// Whether conditions hold, by what is known of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    /// All of them hold.
    Yes,
    /// One of them does not hold.
    No,
    /// Facts that are not known yet decide.
    Open,
    /// Facts that nobody will ever know would decide.
    Unknowable,
}

impl SessionConditions {
    /// Whether there is no condition.
    pub fn is_empty(&self) -> bool {
        self.named().next().is_none()
    }

    /// The conditions that the rule names, in the order of the documentation.
    pub fn named(&self) -> impl Iterator<Item = SessionKey> {
        let all = self.judged(&Session::default());
        all.into_iter()
            .filter_map(|(key, held)| (held == Held::Open).then_some(key))
    }

    /// The conditions that do not hold.
    pub fn missed(&self, session: &Session) -> impl Iterator<Item = SessionKey> {
        self.keys_that(session, Held::No)
    }

    /// The conditions on facts that are not known yet.
    pub fn open(&self, session: &Session) -> impl Iterator<Item = SessionKey> {
        self.keys_that(session, Held::Open)
    }

    /// The conditions on facts that nobody will know.
    pub fn unknowable(&self, session: &Session) -> impl Iterator<Item = SessionKey> {
        self.keys_that(session, Held::Unknowable)
    }

    fn keys_that(&self, session: &Session, wanted: Held) -> impl Iterator<Item = SessionKey> {
        self.judged(session)
            .into_iter()
            .filter_map(move |(key, held)| (held == wanted).then_some(key))
    }

    fn judged(&self, session: &Session) -> [(SessionKey, Held); 8] {
        use SessionKey as Key;
        let text = |patterns: &[TextPattern], fact: &Fact<String>| {
            one_of(patterns, fact, |pattern, value| pattern.holds(value))
        };
        [
            (Key::User, text(&self.users, &session.user)),
            (Key::Keyspace, text(&self.keyspaces, &session.keyspace)),
            (Key::Driver, text(&self.drivers, &session.driver)),
            (
                Key::DriverVersion,
                text(&self.driver_versions, &session.driver_version),
            ),
            (
                Key::Application,
                text(&self.applications, &session.application),
            ),
            (
                Key::Protocol,
                one_of(&self.protocols, &session.protocol, PartialEq::eq),
            ),
            (
                Key::Compression,
                one_of(&self.compressions, &session.compression, PartialEq::eq),
            ),
            (
                Key::Tls,
                one_of(self.tls.as_slice(), &session.tls, PartialEq::eq),
            ),
        ]
    }

    /// Whether all conditions hold.
    pub fn hold(&self, session: &Session) -> Held {
        let judged = self.judged(session);
        let weighty = [Held::No, Held::Open, Held::Unknowable];
        let mut found = weighty.into_iter();
        let found = found.find(|held| judged.iter().any(|(_, one)| one == held));
        found.unwrap_or(Held::Yes)
    }
}

fn one_of<P, T>(wanted: &[P], fact: &Fact<T>, holds: impl Fn(&P, &T) -> bool) -> Held {
    match fact {
        _ if wanted.is_empty() => Held::Yes,
        Fact::Open => Held::Open,
        Fact::Unknowable => Held::Unknowable,
        Fact::Absent => Held::No,
        Fact::Is(value) if wanted.iter().any(|wanted| holds(wanted, value)) => Held::Yes,
        Fact::Is(_) => Held::No,
    }
}
