//! `underpass top`: who asks what, how often and how slowly, as it happens.

pub(crate) mod rates;
mod screen;
mod view;

use std::{
    io::{self, IsTerminal},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use self::rates::{Rates, Row, Sample, Sort};
pub(super) use self::view::time as time_taken;
use super::{
    filter,
    flows::{get, no_agent},
    table,
    whereabouts::{Admin, AdminArg, ControlArg},
};

/// Arguments of `top`.
#[derive(Debug, clap::Args)]
pub struct TopArgs {
    /// Seconds between two looks at the agent
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Order of the lines, the largest first
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Show only lines with this text: who asks, the table, the rule, the kind or the statement; or those that conditions
    /// hold for: `process=web*,not kind=select`, with the keys of `statements --top`
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// Print the lines of one interval, and end
    #[arg(long)]
    once: bool,
    /// Print the lines of one interval as JSON, and end
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    admin: AdminArg,
    #[command(flatten)]
    control: ControlArg,
}

impl TopArgs {
    fn every(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok();
    let fits = |seconds: &f64| (0.1..=60.0).contains(seconds);
    seconds
        .filter(fits)
        .ok_or_else(|| "expected seconds from 0.1 to 60".to_owned())
}

/// Asks the agent until the user has seen enough.
///
/// # Errors
/// Nobody answers, or there is no terminal.
pub fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let mut rates = Rates::default();
    let admin = args.admin.find()?;
    rates.add(look(&admin)?);
    if !args.once && !args.json {
        anyhow::ensure!(
            io::stdout().is_terminal() && io::stdin().is_terminal(),
            "there is no terminal to draw on: --once prints a table, --json JSON"
        );
        return screen::run(args, admin, rates);
    }
    thread::sleep(args.every());
    rates.add(look(&admin)?);
    let rows = chosen(&rates, &args.filter, args.sort);
    match args.json {
        true => say!("{}", serde_json::to_string(&rows)?),
        false => say_text!("{}", lines(&rows)),
    }
    Ok(ExitCode::SUCCESS)
}

fn look(admin: &Admin) -> anyhow::Result<Sample> {
    let text = get(admin, "/statements/top?latencies")?;
    Sample::parse(&text, Instant::now()).map_err(|_| no_agent(admin))
}

/// The lines to be shown, in their order.
fn chosen(rates: &Rates, filter: &str, sort: Sort) -> Vec<Row> {
    let mut rows = rates.rows();
    match filter::of_statements(filter, true) {
        Ok(conditions) => rows.retain(|row| conditions.takes(&row.asked)),
        // A text to look for.
        Err(_) => rows.retain(|row| row.asked.has(filter)),
    }
    sort.sort(&mut rows);
    rows
}

fn lines(rows: &[Row]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| view::cells(row).into()).collect();
    table::render(&view::HEADINGS, &cells)
}
