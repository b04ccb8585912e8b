//! The agent's log, on standard error or in systemd's journal: its format, chosen at the start, and its level, which can change.
//!
//! The level is `RUST_LOG`'s, if that is set, and the file's otherwise. `underpass log` changes it until the file says
//! another, or the agent ends.

mod journald;

use std::{
    env, fmt, io,
    path::Path,
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
};

use nix::sys::stat::fstat;
use prometheus::Registry;
use tracing_subscriber::{
    EnvFilter, fmt as lines, fmt::Subscriber, layer::SubscriberExt as _, reload,
    util::SubscriberInitExt as _,
};

use journald::Journald;

/// The formats by their names.
pub const FORMATS: [(&str, LogFormat); 3] = [
    ("text", LogFormat::Text),
    ("json", LogFormat::Json),
    ("journald", LogFormat::Journald),
];

/// The variable by which systemd says that standard error is a stream of its journal.
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// The levels, from the one that says least.
const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// The longest level: a dozen parts of the program, each with its own.
pub const MAX_LEVEL_BYTES: usize = 1024;

/// The form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object on each line, for collectors of logs.
    Json,
    /// Records with fields and priorities in systemd's journal. Without a journal: text.
    Journald,
}

impl LogFormat {
    /// Returns the format's name, as the command line and the file have it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
            Self::Journald => "journald",
        }
    }

    /// Returns the format for a process that was not told one: the journal's own where standard error would come to the
    /// journal anyway.
    pub fn usual() -> Self {
        let stream = env::var(JOURNAL_STREAM).unwrap_or_default();
        let stderr = fstat(io::stderr()).map(|found| (found.st_dev, found.st_ino));
        match stderr {
            Ok(stderr) if journald::is_stream(&stream, stderr) => Self::Journald,
            _ => Self::Text,
        }
    }
}

/// How much is said: by all parts of the program, or by some of them more or less.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

/// A text that is no level.
#[derive(Debug, thiserror::Error)]
#[error(
    "expected off, error, warn, info, debug or trace, or such a level for parts of the program, as in `info,proxy=debug`; \
     found {0:?}"
)]
pub struct NoLevel(String);

impl Default for LogLevel {
    fn default() -> Self {
        Self("info".into())
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for LogLevel {
    type Err = NoLevel;

    /// Reads `LEVEL` and `PART=LEVEL`, separated by commas. A word that is no level would be taken for a part that
    /// says everything, so it is refused.
    fn from_str(text: &str) -> Result<Self, NoLevel> {
        let is_part = |part: &str| {
            let legal = |c: char| c.is_ascii_alphanumeric() || "_:".contains(c);
            !part.is_empty() && part.chars().all(legal)
        };
        let is_right = |rule: &str| match rule.split_once('=') {
            Some((part, level)) => is_part(part) && LEVELS.contains(&level),
            None => LEVELS.contains(&rule),
        };
        match text.len() <= MAX_LEVEL_BYTES && text.split(',').all(is_right) {
            true => Ok(Self(text.to_owned())),
            false => Err(NoLevel(text.to_owned())),
        }
    }
}

/// The log of this process.
#[derive(Clone)]
pub struct Log(Arc<Inner>);

struct Inner {
    format: LogFormat,
    /// The level in force, in words.
    level: Mutex<String>,
    change: Box<dyn Fn(EnvFilter) -> anyhow::Result<()> + Send + Sync>,
}

impl Log {
    /// Begins the log of this process, once.
    pub fn begin(format: LogFormat, level: &LogLevel) -> Self {
        // As it stands: `RUST_LOG` can say more than a level does.
        let (shown, filter) = match EnvFilter::try_from_default_env() {
            Ok(filter) => (filter.to_string(), filter),
            Err(_) => (level.0.clone(), EnvFilter::new(&level.0)),
        };
        let builder = |filter| {
            Subscriber::builder()
                .with_env_filter(filter)
                .with_writer(io::stderr)
                .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        };
        let change: Box<dyn Fn(EnvFilter) -> anyhow::Result<()> + Send + Sync> = match format {
            LogFormat::Text => {
                let builder = builder(filter).with_filter_reloading();
                let handle = builder.reload_handle();
                builder.init();
                Box::new(move |filter| Ok(handle.reload(filter)?))
            }
            LogFormat::Json => {
                let builder = builder(filter).json().flatten_event(true);
                let builder = builder.with_filter_reloading();
                let handle = builder.reload_handle();
                builder.init();
                Box::new(move |filter| Ok(handle.reload(filter)?))
            }
            LogFormat::Journald => {
                let (filter, handle) = reload::Layer::new(filter);
                let text = lines::layer().with_writer(io::stderr).with_ansi(false);
                let journald = Journald::new(Path::new(journald::SOCKET), text);
                tracing_subscriber::registry()
                    .with(filter)
                    .with(journald)
                    .init();
                Box::new(move |filter| Ok(handle.reload(filter)?))
            }
        };
        Self(Arc::new(Inner {
            format,
            level: Mutex::new(shown),
            change,
        }))
    }

    /// Registers the log's metrics.
    ///
    /// # Errors
    /// Two metrics of one name.
    pub fn register(registry: &Registry) -> prometheus::Result<()> {
        journald::register(registry)
    }

    /// The format of each line.
    pub fn format(&self) -> LogFormat {
        self.0.format
    }

    /// The level in force, in words.
    pub fn level(&self) -> String {
        let level = self.0.level.lock();
        level.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts a level into force, and returns the one of before. The log says so while that is still in force.
    pub fn change_level(&self, level: &LogLevel) -> String {
        let mut shown = self.0.level.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *shown, level.0.clone());
        tracing::info!(%level, before, "log level changed");
        // It fails without a log alone, and this is one.
        if let Err(error) = (self.0.change)(EnvFilter::new(&level.0)) {
            tracing::error!("the level of the log stays as it was: {error:#}");
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_words_that_mean_one() {
        for right in [
            "info",
            "off",
            "info,proxy=debug",
            "warn,agent::control=trace,dataplane=off",
        ] {
            assert_eq!(LogLevel::from_str(right).unwrap().to_string(), right);
        }
        let long = "info,".repeat(MAX_LEVEL_BYTES) + "info";
        for wrong in [
            "",
            "INFO",
            "debgu",
            "proxy",
            "proxy=",
            "=info",
            "info,",
            "a[b]=info",
            &long,
        ] {
            let said = LogLevel::from_str(wrong).unwrap_err().to_string();
            assert!(said.contains("proxy=debug"), "{said}");
        }
    }
}
