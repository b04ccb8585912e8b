//! Log records for systemd's journal, by its own protocol, so that they have fields and priorities
//! (<https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>): `journalctl -u underpass UNDERPASS_RULE=reports -p warning`.
//!
//! A record that the journal cannot get goes to standard error instead, or is dropped if the journal is only slow: nobody waits
//! for it. Both are counted.

use std::{
    fmt::{self, Debug, Write as _},
    io::{self, ErrorKind, Write as _},
    os::unix::net::UnixDatagram,
    path::Path,
    sync::{
        LazyLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use prometheus::{IntCounterVec, Opts, Registry};
use tracing::{
    Event, Level, Metadata, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

/// The journal's socket.
pub(super) const SOCKET: &str = "/run/systemd/journal/socket";

/// The program's name in the journal.
const IDENTIFIER: &str = "underpass";

/// The beginning of names of a record's own fields; the journal's have none.
const PREFIX: &str = "UNDERPASS_";

/// The longest record, in bytes: less than a socket's buffer holds, and more than any line of the slow log.
const MAX_RECORD_BYTES: usize = 128 << 10;

/// Records that the journal did not get.
static MISSED: LazyLock<Option<IntCounterVec>> = LazyLock::new(|| {
    let options = Opts::new(
        "underpass_journald_missed_total",
        "Log records that systemd's journal did not get, by what became of them: `stderr` (its socket is gone), `dropped` (it is \
         slow), `too_long`.",
    );
    let missed = IntCounterVec::new(options, &["outcome"]).ok()?;
    for outcome in [Outcome::Stderr, Outcome::Dropped, Outcome::TooLong] {
        missed.with_label_values(&[outcome.label()]);
    }
    Some(missed)
});

/// Registers the counter of records that the journal did not get.
///
/// # Errors
/// Another metric has its name.
pub(super) fn register(registry: &Registry) -> prometheus::Result<()> {
    let missed = MISSED.clone();
    missed.map_or(Ok(()), |missed| registry.register(Box::new(missed)))
}

/// The outcomes of a record that the journal does not get.
#[derive(Clone, Copy)]
enum Outcome {
    Stderr,
    Dropped,
    TooLong,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Self::Stderr => "stderr",
            Self::Dropped => "dropped",
            Self::TooLong => "too_long",
        }
    }
}

/// Whether a process's standard error is a stream of the journal, as `$JOURNAL_STREAM` says it: device and inode.
pub(super) fn is_stream(variable: &str, (device, inode): (u64, u64)) -> bool {
    let named = variable.split_once(':');
    named.is_some_and(|(of, number)| of.parse() == Ok(device) && number.parse() == Ok(inode))
}

/// The log that goes to the journal.
pub(super) struct Journald<T> {
    /// None: this process can have no socket.
    socket: Option<UnixDatagram>,
    path: Box<Path>,
    /// The log on standard error, for when the journal is away.
    text: T,
    is_away: AtomicBool,
}

impl<T> Journald<T> {
    pub(super) fn new(path: &Path, text: T) -> Self {
        let socket = UnixDatagram::unbound();
        let socket = socket.and_then(|socket| socket.set_nonblocking(true).map(|()| socket));
        Self {
            socket: socket.ok(),
            path: path.into(),
            text,
            is_away: AtomicBool::new(false),
        }
    }

    /// Sends a record. `Some`: what has to become of it instead.
    fn send(&self, record: &[u8]) -> Option<Outcome> {
        let sent = match &self.socket {
            Some(socket) => socket.send_to(record, &self.path),
            None => Err(ErrorKind::Unsupported.into()),
        };
        let error = match sent {
            Ok(_) => {
                self.is_away.store(false, Relaxed);
                return None;
            }
            Err(error) => error,
        };
        match error.kind() {
            // Standard error would only wait for the same journal.
            ErrorKind::WouldBlock => Some(Outcome::Dropped),
            _ => {
                if !self.is_away.swap(true, Relaxed) {
                    let path = self.path.display();
                    // There is nobody left to tell if this fails.
                    let _ = writeln!(
                        io::stderr(),
                        "log records go to standard error until systemd's journal takes them again: {path}: {error}"
                    );
                }
                Some(Outcome::Stderr)
            }
        }
    }
}

impl<S, T> Layer<S> for Journald<T>
where
    S: Subscriber + for<'l> LookupSpan<'l>,
    T: Layer<S>,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let record = record(event);
        let missed = match record.len() {
            ..=MAX_RECORD_BYTES => self.send(&record),
            _ => Some(Outcome::TooLong),
        };
        let Some(outcome) = missed else {
            return;
        };
        if let Some(missed) = &*MISSED {
            missed.with_label_values(&[outcome.label()]).inc();
        }
        if !matches!(outcome, Outcome::Dropped) {
            self.text.on_event(event, context);
        }
    }
}

/// Makes the journal's form of an event.
fn record(event: &Event<'_>) -> Vec<u8> {
    let mut record = Record::default();
    record.describes(event.metadata());
    event.record(&mut record);
    put(&mut record.bytes, "MESSAGE", &record.message);
    record.bytes
}

/// The priority of syslog(3).
fn priority(level: &Level) -> &'static str {
    match *level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// A record that is being put together.
#[derive(Default)]
struct Record {
    bytes: Vec<u8>,
    /// The message, and the fields as the log on standard error has them: `journalctl` shows nothing else.
    message: String,
}

impl Record {
    fn describes(&mut self, of: &Metadata<'_>) {
        put(&mut self.bytes, "PRIORITY", priority(of.level()));
        put(&mut self.bytes, "SYSLOG_IDENTIFIER", IDENTIFIER);
        put(&mut self.bytes, "UNDERPASS_TARGET", of.target());
        if let (Some(file), Some(line)) = (of.file(), of.line()) {
            put(&mut self.bytes, "CODE_FILE", file);
            put(&mut self.bytes, "CODE_LINE", &line.to_string());
        }
    }

    fn field(&mut self, field: &Field, value: &str, shown: fmt::Arguments<'_>) {
        if field.name() == "message" {
            // The message is visited first, whatever its place.
            self.message.insert_str(0, value);
            return;
        }
        put(&mut self.bytes, &name(field.name()), value);
        // Writing to memory does not fail.
        let _ = write!(self.message, " {}={shown}", field.name());
    }
}

impl Visit for Record {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.field(field, &format!("{value:?}"), format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.field(field, value, format_args!("{value:?}"));
    }
}

/// Makes a name that the journal accepts: capitals, digits and underscores, 64 at most.
fn name(field: &str) -> String {
    let legal = |c: char| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_uppercase(),
        false => '_',
    };
    let name = PREFIX.chars().chain(field.chars().map(legal));
    name.take(64).collect()
}

/// Appends a field. A value of several lines stands behind its length.
fn put(to: &mut Vec<u8>, name: &str, value: &str) {
    to.extend_from_slice(name.as_bytes());
    match value.contains('\n') {
        false => to.push(b'='),
        true => {
            to.push(b'\n');
            to.extend((value.len() as u64).to_le_bytes());
        }
    }
    to.extend_from_slice(value.as_bytes());
    to.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::prelude::*;

    use super::*;

    /// A log on standard error that only counts.
    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<usize>>);

    impl<S: Subscriber> Layer<S> for Text {
        fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
            *self.0.lock().unwrap() += 1;
        }
    }

    fn missed(outcome: Outcome) -> u64 {
        let missed = MISSED.as_ref().unwrap();
        missed.with_label_values(&[outcome.label()]).get()
    }

    #[test]
    fn a_record_has_its_fields_and_its_message_all_that_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let journal = UnixDatagram::bind(&path).unwrap();
        let text = Text::default();
        let log = tracing_subscriber::registry().with(Journald::new(&path, text.clone()));
        let mut bytes = [0; 4096];
        tracing::subscriber::with_default(log, || {
            tracing::warn!(rule = "r", flow = 7, error = %"two\nlines", "it {}", "failed");
        });
        let length = journal.recv(&mut bytes).unwrap();
        let found = String::from_utf8_lossy(&bytes[..length]);
        for line in [
            "PRIORITY=4\n",
            "SYSLOG_IDENTIFIER=underpass\n",
            "UNDERPASS_TARGET=agent::log::journald::tests\n",
            "UNDERPASS_RULE=r\n",
            "UNDERPASS_FLOW=7\n",
            "UNDERPASS_ERROR\n\u{9}\0\0\0\0\0\0\0two\nlines\n",
            "MESSAGE\n",
            "it failed rule=\"r\" flow=7 error=two\nlines\n",
        ] {
            assert!(found.contains(line), "{line:?} is not in {found:?}");
        }
        assert_eq!(*text.0.lock().unwrap(), 0);
    }

    #[test]
    fn what_the_journal_does_not_take_goes_to_standard_error_unless_it_is_slow() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let text = Text::default();
        let journald = Journald::new(&path, text.clone());
        let said = || *text.0.lock().unwrap();
        let log = tracing_subscriber::registry().with(journald);
        tracing::subscriber::with_default(log, || {
            let before = missed(Outcome::Stderr);
            tracing::info!("nobody is there");
            assert_eq!((said(), missed(Outcome::Stderr) - before), (1, 1));
            let journal = UnixDatagram::bind(&path).unwrap();
            tracing::info!("somebody is there");
            assert_eq!(said(), 1);
            journal.recv(&mut [0; 4096]).unwrap();
            let before = missed(Outcome::TooLong);
            tracing::info!("{}", "x".repeat(MAX_RECORD_BYTES));
            assert_eq!((said(), missed(Outcome::TooLong) - before), (2, 1));
            // It does not read: its queue is full some time.
            let before = missed(Outcome::Dropped);
            let is_full = (0..100_000).any(|_| {
                tracing::info!("again");
                missed(Outcome::Dropped) > before
            });
            assert!(is_full && said() == 2);
        });
    }

    #[test]
    fn a_stream_of_the_journal_is_known_by_its_numbers() {
        assert!(is_stream("8:123", (8, 123)));
        for other in ["", "8", "8:", "8:124", "9:123", "8:123:4", "a:123"] {
            assert!(!is_stream(other, (8, 123)), "{other}");
        }
    }

    #[test]
    fn names_are_those_that_the_journal_accepts() {
        assert_eq!(name("rule"), "UNDERPASS_RULE");
        assert_eq!(name("log.target-ü"), "UNDERPASS_LOG_TARGET__");
        assert_eq!(name(&"x".repeat(99)).len(), 64);
    }
}
