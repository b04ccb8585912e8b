//! `underpass tail`: statements as they pass.

use std::{
    io::{self, ErrorKind, Write},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::bail;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::runtime;

use super::{
    filter, flows::shown, lines::Asking, table::time_of_day, top::time_taken, whereabouts::AdminArg,
};
use crate::{admin::tail, cli::values};

/// Bytes of a line: a statement's text with its values, names, and room to spare.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Arguments of `tail`.
#[derive(Debug, clap::Args)]
pub struct TailArgs {
    /// Show only statements that these conditions hold for: `process=web*,not user=etl`. Keys: process, pid, uid, client,
    /// to, rule, user, keyspace, table, kind, path, driver, application
    #[arg(long, value_name = "FILTER", value_parser = conditions)]
    filter: Option<String>,
    /// Show only statements that take longer: 20ms, 2s, 1m
    #[arg(long, value_name = "TIME", value_parser = latency)]
    slower_than: Option<String>,
    /// Show only statements that are answered by an error, refused or not answered
    #[arg(long)]
    errors: bool,
    /// Show only statements whose text without values fits this pattern, in which `*` stands for anything
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    statement: Option<String>,
    /// Show bound values, and the literals in texts. Needs `tail_values` in the policy file
    #[arg(long)]
    values: bool,
    /// End after this many statements
    #[arg(long, value_name = "N", value_parser = values::count)]
    count: Option<u64>,
    /// Print JSON, a line each
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArg,
}

fn conditions(text: &str) -> Result<String, String> {
    filter::of_tail(text).map(|_| text.to_owned())
}

fn latency(text: &str) -> Result<String, String> {
    tail::latency(text).map(|_| text.to_owned())
}

fn pattern(text: &str) -> Result<String, String> {
    tail::pattern(text).map(|_| text.to_owned())
}

impl TailArgs {
    /// The page that is asked for.
    fn path(&self) -> String {
        let mut path = "/tail?".to_owned();
        for (key, value) in [
            ("filter", &self.filter),
            ("slower_than", &self.slower_than),
            ("statement", &self.statement),
        ] {
            if let Some(value) = value {
                let value = utf8_percent_encode(value, NON_ALPHANUMERIC);
                path.push_str(&format!("{key}={value}&"));
            }
        }
        for (key, is_wanted) in [("errors", self.errors), ("values", self.values)] {
            if is_wanted {
                path.push_str(&format!("{key}&"));
            }
        }
        path
    }
}

/// Prints until there were enough, until ctrl-C, or until nobody reads any more.
///
/// # Errors
/// Nobody answers, the agent refuses, or it ends.
pub fn run(args: &TailArgs) -> anyhow::Result<ExitCode> {
    let admin = args.admin.find()?;
    let asking = Asking::begin(&admin)?;
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut printer = Printer::new(args);
    let followed = runtime.block_on(async {
        tokio::select! {
            followed = follow(args, asking, &mut printer) => followed,
            interrupted = tokio::signal::ctrl_c() => interrupted.map_err(Into::into),
        }
    });
    // Nobody reads what would be said.
    if !printer.is_closed {
        printer.sum_up();
    }
    followed.map(|()| ExitCode::SUCCESS)
}

async fn follow(args: &TailArgs, asking: Asking<'_>, printer: &mut Printer) -> anyhow::Result<()> {
    let mut lines = asking.ask(&args.path(), MAX_LINE_BYTES).await?;
    while let Some(line) = lines.next().await? {
        if !printer.takes(&line)? {
            return Ok(());
        }
    }
    bail!("the agent has ended the list");
}

/// The lines' way to standard output, and their number.
struct Printer {
    json: bool,
    most: u64,
    shown: u64,
    dropped: u64,
    /// Whether whoever has read standard output has gone.
    is_closed: bool,
}

/// Headings, and the least width of each column: lines come one by one.
const HEADINGS: [(&str, usize); 8] = [
    ("TIME (UTC)", 12),
    ("CLIENT", 16),
    ("USER", 8),
    ("TABLE", 16),
    ("KIND", 8),
    ("LATENCY", 7),
    ("ROWS", 5),
    ("STATEMENT", 0),
];

impl Printer {
    fn new(args: &TailArgs) -> Self {
        Self {
            json: args.json,
            most: args.count.unwrap_or(u64::MAX),
            shown: 0,
            dropped: 0,
            is_closed: false,
        }
    }

    /// Prints a line of the agent's. Returns whether there is to be a further one.
    fn takes(&mut self, line: &[u8]) -> anyhow::Result<bool> {
        let text = str::from_utf8(line)?;
        let of: Value = serde_json::from_str(text)?;
        match of.get("ended").and_then(|ended| ended.as_str()) {
            None => {}
            Some("taken_over") => {
                bail!("another agent has taken over, and what passes there is not shown: ask again")
            }
            Some(_) => bail!("the agent has stopped: start it, or ask again"),
        }
        let mut said = match (of.get("watching"), of.get("dropped")) {
            (None, None) => {
                self.shown += 1;
                row(&of)
            }
            (None, Some(dropped)) => {
                let dropped = dropped.as_u64().unwrap_or_default();
                self.dropped += dropped;
                format!("... {dropped} more had no room, because this was not read fast enough")
            }
            (Some(watching), _) => {
                eprintln!("{}", overview(watching));
                columns(&HEADINGS.map(|(heading, _)| heading.to_owned()))
            }
        };
        if self.json {
            said = text.to_owned();
        }
        match writeln!(io::stdout(), "{said}") {
            Ok(()) => Ok(self.shown < self.most),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.is_closed = true;
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Says how many there were, on standard error.
    fn sum_up(&self) {
        let mut said = format!("statements: {}", self.shown);
        if self.dropped > 0 {
            said += &format!("; that had no room: {}", self.dropped);
        }
        // Nobody may read that either.
        let _ = writeln!(io::stderr(), "{said}");
    }
}

/// The first line in words: how much is read, and how much is not and so is not shown.
fn overview(watching: &Value) -> String {
    let count = |key: &str| watching[key].as_u64().unwrap_or_default();
    let names = |key: &str| {
        let names = watching[key].as_array().into_iter().flatten();
        let names: Vec<&str> = names.filter_map(Value::as_str).collect();
        names.join(", ")
    };
    let (read, unread) = (count("flows"), count("flows_not_read"));
    let mut said =
        format!("Flows that are read: {read}; that are not, and so not shown: {unread}.");
    let (rules, shallow) = (names("rules_not_read"), names("rules_without_texts"));
    if !rules.is_empty() {
        said += &format!(" Not shown is what passes by these rules, which do not read: {rules}.");
    }
    if !shallow.is_empty() {
        said += &format!(" Without text and rows, because no step looks at them: {shallow}.");
    }
    said
}

fn row(of: &Value) -> String {
    let latency = of["latency_us"].as_u64().unwrap_or_default();
    let outcome = match (of["outcome"].as_str(), of["by"].as_str()) {
        (Some("error"), _) => format!("ERROR {}: ", shown(of, "error")),
        (Some("refused"), Some(by)) => format!("REFUSED by {by}, {}: ", shown(of, "reason")),
        (Some("unanswered"), _) => "NOT ANSWERED: ".to_owned(),
        _ => String::new(),
    };
    let values = of["values"].as_array().map(|values| {
        let values: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
        format!("  [{}]", values.join(", "))
    });
    let values = values.unwrap_or_default();
    let cells = [
        time_of_day(unix_time(of)),
        client(of),
        shown(of, "user"),
        table(of),
        shown(of, "kind"),
        time_taken(latency),
        shown(of, "rows"),
        format!("{outcome}{}{values}", shown(of, "statement")),
    ];
    columns(&cells).replace(char::is_control, "?")
}

fn unix_time(of: &Value) -> SystemTime {
    let ms = of["unix_ms"].as_u64().unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
}

/// The process and its container, or the address of a client on another host.
fn client(of: &Value) -> String {
    let who = match of.get("process") {
        Some(_) => super::flows::process(of),
        None => shown(of, "client"),
    };
    match of["container"].as_str() {
        Some(container) => format!("{who}@{container}"),
        None => who,
    }
}

fn table(of: &Value) -> String {
    match (of["keyspace"].as_str(), of["table"].as_str()) {
        (Some(keyspace), Some(table)) => format!("{keyspace}.{table}"),
        (Some(only), None) | (None, Some(only)) => only.to_owned(),
        (None, None) => "-".to_owned(),
    }
}

fn columns(cells: &[String; 8]) -> String {
    let mut line = String::new();
    for (cell, (_, width)) in cells.iter().zip(HEADINGS) {
        line.push_str(&format!("{cell:width$}  "));
    }
    line.truncate(line.trim_end().len());
    line
}
