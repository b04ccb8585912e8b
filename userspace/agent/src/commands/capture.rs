//! `underpass capture`: requests of a flow, or of a rule's flows, into a file.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use ::capture::{End, Ended, Header, Line, MAX_LINE_BYTES, Record, Unread};
use anyhow::Context as _;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tokio::{runtime, signal, time};

use super::{flows::no_agent, lines::Asking, out_file, whereabouts::AdminArg};
use crate::{admin::capture, cli::values};

/// Bytes of a file, unless another number is named.
const USUAL_BYTES: u64 = 64 << 20;

/// The most that may be named: `replay` reads a file as a whole.
pub(super) const MAX_BYTES: u64 = 256 << 20;

/// Bytes that are kept for the last line: its longest reason and numbers.
const END_BYTES: u64 = 128;

/// The time beyond that of the capture in which its last line has to come: the agent tells for a second what waits, and what is
/// on its way by then is read in less.
const SLACK: Duration = Duration::from_secs(10);

/// Arguments of `capture`.
#[derive(Debug, clap::Args)]
pub struct CaptureArgs {
    /// Flow to capture: a number, as `underpass flows` lists it
    #[arg(value_name = "FLOW", value_parser = values::flow, required_unless_present = "rule")]
    flow: Option<String>,
    /// Capture all flows of this rule instead
    #[arg(long, value_name = "RULE", conflicts_with = "flow")]
    rule: Option<String>,
    /// Time to capture for, up to 1h: 10s, 2m
    #[arg(long = "for", value_name = "TIME", default_value = "10s", value_parser = for_time)]
    time: String,
    /// File to write, which must not exist. Without it: capture-FLOW-SECONDS.jsonl in this folder
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// End after so many bytes, up to 268435456
    #[arg(long, value_name = "BYTES", default_value_t = USUAL_BYTES, value_parser = bytes)]
    max_bytes: u64,
    /// Write literals and bound values as they are, so that rows can be compared. For root; for others where the policy file has
    /// `tail_values`. The agent's log says who did
    #[arg(long)]
    with_values: bool,
    #[command(flatten)]
    admin: AdminArg,
}

fn bytes(text: &str) -> Result<u64, String> {
    let bytes = text
        .parse()
        .ok()
        .filter(|bytes| (1..=MAX_BYTES).contains(bytes));
    bytes
        .ok_or_else(|| format!("expected a number of bytes from 1 to {MAX_BYTES}, such as 1000000"))
}

fn for_time(text: &str) -> Result<String, String> {
    capture::time(text).map(|_| text.to_owned())
}

impl CaptureArgs {
    /// The page that is asked for.
    fn path(&self) -> String {
        let mut path = format!("/capture?for={}", self.time);
        for (key, value) in [("flow", &self.flow), ("rule", &self.rule)] {
            if let Some(value) = value {
                let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
                path.push_str(&format!("&{key}={value}"));
            }
        }
        if self.with_values {
            path.push_str("&values");
        }
        path
    }

    fn out(&self) -> anyhow::Result<PathBuf> {
        if let Some(out) = &self.out {
            return Ok(out.clone());
        }
        let of = self.flow.as_deref().or(self.rule.as_deref());
        // A rule's name may be anything; a file's may not.
        let of = of.unwrap_or_default().replace(
            |c: char| !c.is_ascii_alphanumeric() && c != '-' && c != '_',
            "_",
        );
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        Ok(format!("capture-{of}-{now}.jsonl").into())
    }
}

/// Captures until the time is over, or ctrl-C.
///
/// # Errors
/// Nobody answers, the agent refuses, or the file cannot be written.
pub fn run(args: &CaptureArgs) -> anyhow::Result<ExitCode> {
    let admin = args.admin.find()?;
    let asking = Asking::begin(&admin)?;
    let out = args.out()?;
    let file = out_file::make(&out)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let longest = capture::time(&args.time).map_err(anyhow::Error::msg)? + SLACK;
    let mut writing = Writing::new(file, args.max_bytes);
    let ended = runtime.block_on(async {
        let mut lines = asking.ask(&args.path(), MAX_LINE_BYTES).await?;
        let first = lines.next().await?.ok_or_else(|| no_agent(&admin))?;
        serde_json::from_slice::<Header>(&first).map_err(|_| no_agent(&admin))?;
        writing.line(&first)?;
        let (interrupted, late) = (signal::ctrl_c(), time::sleep(longest));
        tokio::pin!(interrupted, late);
        loop {
            let line = tokio::select! {
                biased;
                interrupt = &mut interrupted => {
                    interrupt?;
                    return Ok(Ended::Interrupted);
                }
                () = &mut late => return Ok(Ended::Agent),
                line = lines.next() => line,
            };
            // Without a last line, what there is until then is good.
            let Ok(Some(line)) = line else {
                return Ok(Ended::Agent);
            };
            match read(&line)? {
                Line::End(end) => return Ok(end.end),
                _ if !writing.is_room_for(&line) => return Ok(Ended::Bytes),
                what => writing.takes(&what, &line)?,
            }
        }
    });
    match ended {
        Ok(ended) => writing.finish(ended, &out),
        Err(error) => {
            if writing.is_empty() {
                let _ = fs::remove_file(&out);
            }
            Err(error)
        }
    }
}

fn read(line: &[u8]) -> anyhow::Result<Line> {
    serde_json::from_slice(line)
        .context("the agent says something that is no capture: it is of another version")
}

/// The file, and what is counted of it.
struct Writing {
    /// Each line is there as soon as it has come, whatever becomes of this process.
    file: File,
    bytes: u64,
    most: u64,
    end: End,
    unread: BTreeMap<Unread, u64>,
}

impl Writing {
    fn new(file: File, most: u64) -> Self {
        Self {
            file,
            bytes: 0,
            most,
            end: End {
                end: Ended::Time,
                requests: 0,
                dropped: 0,
                gaps: 0,
            },
            unread: BTreeMap::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn is_room_for(&self, line: &[u8]) -> bool {
        // And the line's end, and the last line.
        self.bytes + line.len() as u64 + 1 + END_BYTES <= self.most
    }

    fn line(&mut self, line: &[u8]) -> anyhow::Result<()> {
        let line = [line, b"\n"].concat();
        self.bytes += line.len() as u64;
        self.file
            .write_all(&line)
            .context("the file cannot be written: what is in it is good up to there")
    }

    /// Writes a line of the agent's, and counts what it says.
    fn takes(&mut self, what: &Line, line: &[u8]) -> anyhow::Result<()> {
        match what {
            Line::Record(record) => {
                self.end.requests += 1;
                for unread in unread(record) {
                    *self.unread.entry(unread).or_default() += 1;
                }
            }
            Line::Missed(missed) => {
                self.end.dropped += missed.dropped;
                self.end.gaps += missed.gaps;
            }
            Line::End(_) => return Ok(()),
        }
        self.line(line)
    }

    /// Writes the last line, and says what is in the file and what is not.
    fn finish(mut self, ended: Ended, out: &Path) -> anyhow::Result<ExitCode> {
        self.end.end = ended;
        let last = ::capture::line(&self.end)?;
        self.line(last.as_bytes())?;
        self.file.sync_all()?;
        let End {
            requests,
            dropped,
            gaps,
            ..
        } = self.end;
        say!(
            "requests: {requests}; not told: {dropped}; gaps: {gaps}; file: {}",
            out.display()
        );
        for (why, count) in &self.unread {
            say!("without the text of a statement, {}: {count}", why.as_str());
        }
        if self.unread.contains_key(&Unread::Unprepared) {
            say!(
                "the step `{{ transform = \"lookup\", connection = \"own\" }}` in the rule asks the database for the texts of such statements"
            );
        }
        match ended {
            Ended::Time | Ended::Interrupted => Ok(ExitCode::SUCCESS),
            Ended::Bytes => {
                say!("ended before its time, because the file is as long as --max-bytes allows");
                Ok(ExitCode::SUCCESS)
            }
            Ended::TakenOver => anyhow::bail!(
                "another agent has taken over, and what passes there is not in the file: it is good up to there; capture again for the \
                 rest"
            ),
            Ended::Agent => anyhow::bail!(
                "the agent has stopped, did not end the capture in time, or others needed the room at its admin socket: what is in \
                 the file is good up to there"
            ),
        }
    }
}

/// Why statements of a request are without text.
fn unread(record: &Record) -> impl Iterator<Item = Unread> {
    let of_statements = record.statements.iter().filter_map(|one| one.unread);
    record.unread.into_iter().chain(of_statements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_longer_than_it_may_be_with_its_last_line() {
        const MOST: u64 = 2_000;
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("file");
        for length in 1..40 {
            let mut writing = Writing::new(File::create(&out).unwrap(), MOST);
            let line = vec![b'x'; length];
            while writing.is_room_for(&line) {
                writing.line(&line).unwrap();
            }
            writing.finish(Ended::Bytes, &out).unwrap();
            let bytes = fs::metadata(&out).unwrap().len();
            assert!(bytes <= MOST && bytes > MOST - END_BYTES, "{bytes}");
        }
    }

    #[test]
    fn the_longest_last_line_has_room() {
        let longest = End {
            end: Ended::Interrupted,
            requests: u64::MAX,
            dropped: u64::MAX,
            gaps: u64::MAX,
        };
        let line = ::capture::line(&longest).unwrap();
        assert!((line.len() as u64) < END_BYTES, "{line}");
    }
}
