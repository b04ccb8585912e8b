//! Failures of requests, in the numbers of the native protocol (section 9).

/// An ERROR answer: its code, its message, and the fields some codes carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: i32,
    pub(super) message: String,
    pub(super) detail: Detail,
}

/// Fields that follow the message for some error codes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Detail {
    None,
    AlreadyExists {
        keyspace: String,
        table: String,
    },
    Unprepared {
        id: Vec<u8>,
    },
    /// ScyllaDB's.
    RateLimit {
        is_write: bool,
    },
}

pub(super) const PROTOCOL: i32 = 0x000A;
const SERVER: i32 = 0x0000;
const BAD_CREDENTIALS: i32 = 0x0100;
const OVERLOADED: i32 = 0x1001;
const SYNTAX: i32 = 0x2000;
const UNAUTHORIZED: i32 = 0x2100;
const INVALID: i32 = 0x2200;
const CONFIG: i32 = 0x2300;
const ALREADY_EXISTS: i32 = 0x2400;
const UNPREPARED: i32 = 0x2500;

pub(super) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    fn new(code: i32, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            detail: Detail::None,
        }
    }

    pub(super) fn protocol(message: impl Into<String>) -> Self {
        Self::new(PROTOCOL, message)
    }

    pub(super) fn server(message: impl Into<String>) -> Self {
        Self::new(SERVER, message)
    }

    pub(super) fn bad_credentials(message: impl Into<String>) -> Self {
        Self::new(BAD_CREDENTIALS, message)
    }

    pub(super) fn overloaded(message: impl Into<String>) -> Self {
        Self::new(OVERLOADED, message)
    }

    pub(super) fn syntax(message: impl Into<String>) -> Self {
        Self::new(SYNTAX, message)
    }

    pub(super) fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(UNAUTHORIZED, message)
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(INVALID, message)
    }

    /// `table` is empty when it is the keyspace that exists.
    pub(super) fn already_exists(keyspace: &str, table: &str) -> Self {
        let message = if table.is_empty() {
            format!("Cannot add existing keyspace \"{keyspace}\"")
        } else {
            format!("Cannot add already existing table \"{table}\" to keyspace \"{keyspace}\"")
        };
        let detail = Detail::AlreadyExists {
            keyspace: keyspace.to_owned(),
            table: table.to_owned(),
        };
        Self {
            code: ALREADY_EXISTS,
            message,
            detail,
        }
    }

    pub(super) fn unprepared(id: &[u8]) -> Self {
        let message = "Prepared query with this ID not found (either the query was not prepared \
                       on this host or it has been evicted from the cache)";
        Self {
            code: UNPREPARED,
            message: message.into(),
            detail: Detail::Unprepared { id: id.to_vec() },
        }
    }

    pub(super) fn config(message: impl Into<String>) -> Self {
        Self::new(CONFIG, message)
    }

    pub(super) fn rate_limit(code: i32, message: &str, is_write: bool) -> Self {
        Self {
            detail: Detail::RateLimit { is_write },
            ..Self::new(code, message)
        }
    }

    /// Whether the connection's framing can no longer be trusted.
    pub(super) fn is_protocol(&self) -> bool {
        self.code == PROTOCOL
    }
}
