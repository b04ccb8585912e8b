//! The measured figures, as they are kept in `bench/results`, and the page that shows them.

use std::{fmt::Write as _, fs, path::PathBuf};

use sandbox::measured::file;
use serde::{Deserialize, Serialize};

pub const SCHEMA: u32 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    pub schema: u32,
    pub circumstances: Vec<(String, String)>,
    /// The bytes that each writer's ring has, whichever way is measured.
    pub ring_bytes: usize,
    pub throughput: Vec<Rate>,
    /// The median of two readings of the clock, which is in every time below.
    pub clock_ns: u64,
    pub own_time: Vec<OwnTime>,
}

/// Records in a second: Criterion's median, and its interval of confidence.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rate {
    pub way: String,
    pub writers: usize,
    pub bytes: usize,
    pub records_per_second: f64,
    pub low: f64,
    pub high: f64,
}

/// A writer's own time for a record: quantiles, each the median of the rounds.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnTime {
    pub way: String,
    pub writers: usize,
    pub bytes: usize,
    /// The pause between two records.
    pub gap_us: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
    pub p999_ns: u64,
    /// Records for which there was no room, because the reader got no processor.
    pub full: u64,
}

const LEGEND: &str = "\
| way | is |
| --- | --- |
| `export` | what the agent uses: a ring for each writer, a reader that dozes and sleeps (`userspace/export`) |
| `rtrb` | its rings alone, which are those of the crate `rtrb`, with a reader that looks every 2 ms |
| `words` | rings of our own, of atomic words, with the same reader |
| `mpsc` | one `tokio::sync::mpsc` for all writers, one send and one allocation for each record |
";

impl Results {
    pub fn page(&self) -> String {
        let mut page = String::from(
            "<!-- Rendered from exports.json by `UPDATE_RESULTS=1 cargo bench -p underpass-export`. -->\n\
             # Out of the I/O threads\n\n",
        );
        page += LEGEND;
        let _ = writeln!(
            page,
            "\nEach writer has room for {} KiB in any way. Why it is so: \
             [decision 15](../../docs/decisions/0015-ring.md).\n\n\
             ## Records in a second\n\n\
             Writers as fast as they can, one reader that takes records out and does nothing with them. \
             Criterion's median, with its 95 % interval; in millions.\n\n\
             | writers | bytes | way | M/s | interval | of `mpsc` |\n\
             | ---: | ---: | --- | ---: | --- | ---: |",
            self.ring_bytes >> 10
        );
        for rate in &self.throughput {
            let Rate {
                way,
                writers,
                bytes,
                ..
            } = rate;
            let of_mpsc = self.throughput.iter().find(|other| {
                other.way == "mpsc" && (other.writers, other.bytes) == (*writers, *bytes)
            });
            let ratio =
                of_mpsc.map_or(f64::NAN, |m| rate.records_per_second / m.records_per_second);
            let _ = writeln!(
                page,
                "| {writers} | {bytes} | `{way}` | {:.2} | {:.2} – {:.2} | {ratio:.1} |",
                rate.records_per_second / 1e6,
                rate.low / 1e6,
                rate.high / 1e6,
            );
        }
        let _ = writeln!(
            page,
            "\n## A writer's own time\n\n\
             For one record, in ns, while the writer has something else to do between two. Two readings of \
             the clock are in each: {} ns.\n\n\
             | writers | between | bytes | way | p50 | p99 | p99.9 | full |\n\
             | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
            self.clock_ns
        );
        for time in &self.own_time {
            let _ = writeln!(
                page,
                "| {} | {} µs | {} | `{}` | {} | {} | {} | {} |",
                time.writers,
                time.gap_us,
                time.bytes,
                time.way,
                time.p50_ns,
                time.p99_ns,
                time.p999_ns,
                time.full
            );
        }
        page += "\n## Where\n\n";
        for (what, value) in &self.circumstances {
            let _ = writeln!(page, "- {what}: {value}");
        }
        page
    }

    pub fn write(&self) {
        let json = serde_json::to_string_pretty(self).unwrap() + "\n";
        fs::write(file("exports.json"), json).unwrap();
        fs::write(file("exports.md"), self.page()).unwrap();
    }
}

/// Cargo's, where this runs from.
pub fn target() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    here.ancestors().nth(3).unwrap().to_owned()
}
