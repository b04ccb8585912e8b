//! The settings of `cache`, and their check.

use std::{fmt, io, net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::statements::{MAX_TABLES, Tables};
use crate::duration;

/// Answers reads of chosen tables from a Redis. Stands behind all transforms.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"redis": "10.1.0.9:6379", "tables": ["shop.products"], "ttl": "30s"}]))]
pub struct CacheSettings {
    /// Address and port of the Redis.
    #[schemars(extend("title" = "IP:PORT"))]
    pub redis: String,
    /// Tables whose reads are cached, as `keyspace.table`.
    #[schemars(length(min = 1, max = MAX_TABLES))]
    pub tables: Vec<String>,
    /// Time for which an answer may be given again.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "x-min" = "1ms", "x-max" = "1440m")
    )]
    pub ttl: String,
    /// Longest answer that is kept, in bytes of its body.
    #[serde(default = "max_bytes")]
    #[schemars(range(min = 1, max = LARGEST_BYTES))]
    pub max_bytes: usize,
    /// Time that a read waits for Redis before it goes to the database.
    #[serde(default = "timeout")]
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m)$"),
        extend("title" = "duration", "x-min" = "1ms", "x-max" = "10s")
    )]
    pub timeout: String,
    /// Text before every key in Redis. Rules and addresses of one database may share one. Without this key each rule
    /// has its own answers, and each address.
    #[schemars(length(min = 1, max = MAX_PREFIX_BYTES), extend("examples" = ["shop"]))]
    pub prefix: Option<String>,
    /// User who logs in at Redis. Needs `password_file`.
    #[schemars(extend("examples" = ["underpass"]))]
    pub username: Option<String>,
    /// File whose one line is the password for Redis. `${NAME}` in its path is a variable of the agent's environment.
    #[schemars(with = "Option<String>", extend("title" = "absolute path", "examples" = ["/etc/underpass/redis.password"]))]
    pub password_file: Option<PathBuf>,
}

fn max_bytes() -> usize {
    64 << 10
}

fn timeout() -> String {
    "20ms".to_owned()
}

/// The largest `max_bytes`. For a longer answer Redis saves little: transferring the bytes takes
/// most of the time.
const LARGEST_BYTES: usize = 1 << 20;

/// The longest `timeout`: after that, drivers have given up.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest `ttl`. A write that the agent does not see shows after the TTL, so that should not
/// take days.
const LONGEST_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest prefix. It is part of every key.
const MAX_PREFIX_BYTES: usize = 128;

/// The longest password.
const MAX_PASSWORD_BYTES: usize = 4_096;

/// The longest file of a password: line ends stand behind it.
const MAX_PASSWORD_FILE_BYTES: u64 = MAX_PASSWORD_BYTES as u64 + 2;

/// Settings that have been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) redis: SocketAddr,
    pub(super) tables: Tables,
    pub(super) ttl: Duration,
    pub(super) max_bytes: usize,
    pub(super) timeout: Duration,
    pub(super) prefix: Option<String>,
    username: Option<String>,
    password_file: Option<PathBuf>,
}

/// The credentials for Redis.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    pub(super) user: Option<String>,
    pub(super) password: String,
}

impl fmt::Debug for Login {
    /// Leaves the password out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut login = f.debug_struct("Login");
        login.field("user", &self.user).finish_non_exhaustive()
    }
}

impl CacheSettings {
    pub(super) fn checked(self) -> Result<Checked, String> {
        let redis = self.redis.parse().ok();
        let redis = redis.filter(|redis: &SocketAddr| redis.port() > 0);
        let redis = redis.ok_or_else(|| {
            let found = &self.redis;
            format!("redis: expected `IP:PORT`; found {found:?}")
        })?;
        let ttl = within("ttl", &self.ttl, LONGEST_TTL, "`1440m`")?;
        let timeout = within("timeout", &self.timeout, LONGEST_TIMEOUT, "`10s`")?;
        if !(1..=LARGEST_BYTES).contains(&self.max_bytes) {
            let found = self.max_bytes;
            return Err(format!(
                "max_bytes: expected 1 to {LARGEST_BYTES}; found {found}"
            ));
        }
        let is_prefix = |prefix: &String| !prefix.is_empty() && prefix.len() <= MAX_PREFIX_BYTES;
        if let Some(prefix) = self.prefix.as_ref().filter(|prefix| !is_prefix(prefix)) {
            let found = prefix.len();
            return Err(format!(
                "prefix: expected 1 to {MAX_PREFIX_BYTES} bytes; found {found}"
            ));
        }
        if self.username.is_some() && self.password_file.is_none() {
            return Err("username: expected with `password_file`".to_owned());
        }
        let password_file = self.password_file.as_deref().map(trusted::secret_path);
        let password_file = password_file.transpose();
        Ok(Checked {
            redis,
            tables: tables(self.tables)?,
            ttl,
            max_bytes: self.max_bytes,
            timeout,
            prefix: self.prefix,
            username: self.username,
            password_file: password_file.map_err(|why| format!("password_file: {why}"))?,
        })
    }
}

fn within(key: &str, text: &str, longest: Duration, named: &str) -> Result<Duration, String> {
    let found = duration(text).filter(|found| !found.is_zero() && *found <= longest);
    found.ok_or_else(|| format!("{key}: expected `1ms` to {named}; found {text:?}"))
}

fn tables(found: Vec<String>) -> Result<Tables, String> {
    if !(1..=MAX_TABLES).contains(&found.len()) {
        let found = found.len();
        return Err(format!(
            "tables: expected 1 to {MAX_TABLES} of `keyspace.table`; found {found}"
        ));
    }
    let mut tables = Vec::new();
    for name in found {
        match name.split_once('.') {
            Some((keyspace, table))
                if !keyspace.is_empty() && !table.is_empty() && !table.contains('.') =>
            {
                if cql::is_system_keyspace(keyspace) {
                    return Err(format!(
                        "tables: expected none of the server's own; found {name:?}"
                    ));
                }
                tables.push((keyspace.to_owned(), table.to_owned()));
            }
            _ => {
                return Err(format!(
                    "tables: expected `keyspace.table`, as the database stores them; found {name:?}"
                ));
            }
        }
    }
    Ok(Tables(tables))
}

impl Checked {
    /// Reads the password. Line ends at the end of its file are not part of it.
    pub(super) fn login(&self) -> io::Result<Option<Login>> {
        let Some(file) = &self.password_file else {
            return Ok(None);
        };
        let cannot = |what: &dyn fmt::Display| {
            io::Error::other(format!("password_file: {}: {what}", file.display()))
        };
        let text = trusted::read_text(file, MAX_PASSWORD_FILE_BYTES).map_err(|e| cannot(&e))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() || password.len() > MAX_PASSWORD_BYTES {
            return Err(cannot(&"expected a password in one line"));
        }
        Ok(Some(Login {
            user: self.username.clone(),
            password: password.to_owned(),
        }))
    }
}
