//! Results, for `bench/results`.

use super::cases::{Case, Compression, FRAME_BYTES, OPERATIONS};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// Frames in a second, on one core, without compression.
const BAR: f64 = 1e6;

pub struct Row {
    pub case: Case,
    /// For a frame, the median of criterion's samples.
    pub ns: f64,
    /// For a frame.
    pub allocations: f64,
}

/// The median of a round, as criterion has written it; `None` if it has not.
pub fn median_ns(name: &str) -> Option<f64> {
    let folder = match env::var_os("CRITERION_HOME") {
        Some(home) => PathBuf::from(home),
        None => Path::new(env!("CARGO_TARGET_TMPDIR"))
            .parent()?
            .join("criterion"),
    };
    let file = folder.join("frames").join(name).join("new/estimates.json");
    let estimates: Value = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    estimates.pointer("/median/point_estimate")?.as_f64()
}

/// # Panics
/// The files cannot be written.
pub fn write(rows: &[Row]) {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    let here = circumstances();
    let json = json!({
        "schema": 1,
        "unit": "for a frame",
        "frame_bytes": FRAME_BYTES,
        "circumstances": here,
        "cases": rows.iter().map(Row::json).collect::<Vec<_>>(),
    });
    let json = format!("{json:#}\n");
    for (name, text) in [("frames.json", json), ("frames.md", page(rows, &here))] {
        if let Err(error) = fs::write(results.join(name), text) {
            unreachable!("{name} is in the project: {error}");
        }
    }
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "name": self.case.name,
            "ns": (self.ns * 10.0).round() / 10.0,
            "frames_per_second": (1e9 / self.ns).round(),
            "allocations": self.allocations,
        })
    }

    fn line(&self) -> String {
        let Case {
            version,
            compression,
            is_query,
            details,
            pipelined,
            ..
        } = self.case;
        let per_second = 1e9 / self.ns;
        let verdict = match (compression, per_second >= BAR && self.allocations == 0.0) {
            (Compression::None, true) => "met",
            (Compression::None, false) => "**missed**",
            _ => "",
        };
        format!(
            "| {} | v{version} | {} | {} | {} | {:.0} | {:.2} | {} | {verdict} |\n",
            if is_query {
                "QUERY, RESULT"
            } else {
                "EXECUTE, RESULT"
            },
            match compression {
                Compression::None => "none",
                Compression::Lz4 => "LZ4",
                Compression::Snappy => "Snappy",
            },
            if details { "yes" } else { "no" },
            if pipelined { OPERATIONS } else { 1 },
            self.ns,
            per_second / 1e6,
            self.allocations,
        )
    }
}

fn page(rows: &[Row], here: &Value) -> String {
    let mut page = String::from("# Frames through the decoder, measured\n\n");
    let said = |what: &str| here.get(what).and_then(Value::as_str).unwrap_or("?");
    _ = write!(
        page,
        "Frames of {FRAME_BYTES} bytes, header included, through `cql::FlowDecoder` and into statistics as the agent \
         keeps them, in one process and on one core; without reading, writing or the clock. Medians of \
         criterion's samples, in the thread's own time on its core. {}, {}, {}. Commit {}. `UPDATE_RESULTS=1 cargo bench -p underpass-cql \
         --bench frames` writes this page.\n\n\
         The bars: {:.0} million frames in a second, and no allocation for a frame. They are for flows \
         that are not compressed.\n\n",
        said("cpu"),
        said("kernel"),
        said("rustc"),
        said("commit"),
        BAR / 1e6,
    );
    page.push_str(
        "| frames | version | compression | details | frames in a chunk | ns a frame | million frames a second | \
         allocations a frame | bars |\n| --- | --- | --- | --- | --: | --: | --: | --: | --- |\n",
    );
    page.extend(rows.iter().map(Row::line));
    page
}

fn circumstances() -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map(|rest| rest.trim_start_matches([' ', '\t', ':']));
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    json!({
        "cpu": model.unwrap_or("?"),
        "kernel": format!("Linux {}", kernel.trim()),
        "rustc": output("rustc", &["-V"]),
        "commit": output("git", &["rev-parse", "--short=12", "HEAD"]),
    })
}

fn output(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let said = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    said.unwrap_or_else(|_| "?".into())
}
