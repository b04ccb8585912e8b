//! `demo`: release binaries, and the bench's demo on top of them; recorded, if that is asked for.

mod cast;
mod svg;

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, ExitCode, Stdio},
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use cast::Line;

use crate::{bench, paths, run::require_root};

/// The recording, and the picture that is drawn from it.
const RECORDING: [&str; 2] = ["docs/demo.cast", "docs/demo.svg"];

/// The title of both.
const TITLE: &str = "cargo xtask demo";

/// Options of `demo`.
#[derive(clap::Args)]
pub struct Args {
    /// Against a real Cassandra, which is started if need be, instead of the embedded node
    #[arg(long)]
    cassandra: bool,
    /// Write the session that this run shows to docs/demo.cast, and draw it as docs/demo.svg
    #[arg(long, conflicts_with = "cassandra")]
    record: bool,
    /// Passed to `underpass-bench demo`
    #[arg(last = true)]
    args: Vec<String>,
}

/// The command; the demo's own exit code.
pub fn run(args: &Args) -> Result<ExitCode> {
    require_root("demo", "loads BPF programs and makes cgroups")?;
    match args.record {
        false => bench::with_database("demo", args.cassandra, &args.args),
        true => record(&args.args),
    }
}

/// Runs the demo, shows what it says and keeps it.
fn record(args: &[String]) -> Result<ExitCode> {
    let program = bench::release()?;
    let mut demo = Command::new(program);
    demo.arg("demo").args(args).current_dir(paths::root());
    let mut demo = demo.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let said = demo.stdout.take().context("a child without its output")?;
    let begin = Instant::now();
    let mut lines = Vec::new();
    for text in BufReader::new(said).lines() {
        let text = text?;
        println!("{text}");
        let at = begin.elapsed().as_secs_f64();
        lines.push(Line { at, text });
    }
    let status = demo.wait()?;
    ensure!(
        status.success(),
        "the demo failed ({status}): nothing was recorded"
    );
    let [recording, picture] = RECORDING.map(|file| paths::root().join(file));
    let text = cast::write(TITLE, &lines);
    fs::write(&picture, svg::draw(TITLE, &cast::read(&text)?))?;
    fs::write(&recording, text)?;
    println!("recorded: {}, {}", RECORDING[0], RECORDING[1]);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_picture_is_what_the_recording_says() {
        let [recording, picture] =
            RECORDING.map(|file| fs::read_to_string(paths::root().join(file)).unwrap());
        let lines = cast::read(&recording).unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let drawn = svg::draw(TITLE, &lines);
            fs::write(paths::root().join(RECORDING[1]), drawn).unwrap();
            return;
        }
        assert!(
            picture == svg::draw(TITLE, &lines),
            "{} is stale: run `cargo xtask demo --record`",
            RECORDING[1]
        );
        assert!(
            lines.iter().any(|line| line.text.starts_with("ok ")),
            "a demo that verified nothing"
        );
    }
}
