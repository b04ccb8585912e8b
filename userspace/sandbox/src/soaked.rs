//! Results of soaks of the tap: kept in a file of the benchmark's results, from which a page is made.

#![expect(
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "only tests call it, which fail by panicking"
)]

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

/// The folder of a result and its page.
fn file(extension: &str) -> PathBuf {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/results");
    results.join("tapped").with_extension(extension)
}

/// Keeps what a soak has measured under this key, where `UPDATE_DOCS` is set, and writes the page anew. `measured` is an object; the
/// kernel, the number of processors, and the kind of build are added to it.
///
/// # Panics
/// The files cannot be read or written.
pub fn keep(key: &str, mut measured: Value) {
    if env::var_os("UPDATE_DOCS").is_none() {
        return;
    }
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a kernel");
    measured["kernel"] = kernel.trim().into();
    measured["processors"] = std::thread::available_parallelism()
        .map_or(1, usize::from)
        .into();
    let is_debug = cfg!(debug_assertions);
    measured["build"] = (if is_debug { "debug" } else { "release" }).into();
    let mut all = read().unwrap_or_else(|_| Map::new().into());
    all[key] = measured;
    let text = serde_json::to_string_pretty(&all).expect("JSON") + "\n";
    fs::write(file("json"), text).expect("the result is written");
    fs::write(file("md"), page(&all)).expect("the page is written");
}

fn read() -> anyhow::Result<Value> {
    Ok(serde_json::from_str(&fs::read_to_string(file("json"))?)?)
}

/// The page of these results. A soak that was not run has a row of dashes.
fn page(all: &Value) -> String {
    let number = |key: &str, name: &str| {
        let value = &all[key][name];
        value
            .as_f64()
            .map_or_else(|| "–".to_owned(), |v| format!("{v}"))
    };
    let ms = |key: &str, name: &str| {
        let us = all[key][name].as_f64();
        us.map_or_else(|| "–".to_owned(), |us| format!("{:.2} ms", us / 1e3))
    };
    let ratio = |key: &str, of: &str, to: &str| {
        let both = all[key][of].as_f64().zip(all[key][to].as_f64());
        both.map_or_else(|| "–".to_owned(), |(of, to)| format!("{:.2}", of / to))
    };
    let off = |clock: &Value, truth: f64| match clock["kernel_us"].as_f64() {
        Some(kernel) => format!("{:+.2} %", 100.0 * (kernel / truth - 1.0)),
        None => "–".to_owned(),
    };
    let clocks = all["requests"]["clocks"].as_array().into_iter().flatten();
    let clocks: String = clocks
        .map(|clock| {
            let us = |name: &str| clock[name].as_f64().unwrap_or(f64::NAN);
            let truth = us("driver_us") - us("driver_adds_us");
            format!(
                "| {} | {:.0} | {:.0} | {:.0} | {} | {} |\n",
                clock["quantile"].as_str().unwrap_or("–"),
                us("kernel_us"),
                truth,
                us("database_us"),
                off(clock, truth),
                off(clock, us("database_us")),
            )
        })
        .collect();
    let machine = &all["deaths"];
    format!(
        "# The tap, soaked\n\n\
         Made by `UPDATE_DOCS=1 cargo xtask soak --only observe_truth`, `--only adopted` and `--only thousands`, whose assertions are the bars; from \
         `tapped.json`. {}, {} processors, which the agent (a debug build but where it is said), clients and database share.\n\n\
         ## An agent that dies\n\n\
         It was killed (SIGKILL) {} times while {} requests were asked on connections that it reads, and as many connections \
         went past it at the same time. No byte was missing or wrong.\n\n\
         | connections | p99 | slowest |\n| --- | --: | --: |\n\
         | read | {} | {} |\n| not read | {} | {} |\n\n\
         The p99 of those that are read is {} of that of the others.\n\n\
         ## Connections that were there before\n\n\
         {} running connections were read {} after their rule (the bar is 2 s), by an agent \
         (a {} build) with {} MiB of memory besides its program and its rings.\n\n\
         ## Every statement counted\n\n\
         A driver asked {} times, and the agent's rows have each statement, its errors apart; none was lost. Latencies in µs, by the \
         clock of the kernel, of the driver (less what it adds by itself) and of the database:\n\n\
         | | agent | driver | database | to driver's | to database's |\n| --- | --: | --: | --: | --: | --: |\n{clocks}",
        machine["kernel"].as_str().unwrap_or("–"),
        number("deaths", "processors"),
        number("deaths", "deaths"),
        number("deaths", "requests"),
        ms("deaths", "p99_us"),
        ms("deaths", "slowest_us"),
        ms("deaths", "unseen_p99_us"),
        ms("deaths", "unseen_slowest_us"),
        ratio("deaths", "p99_us", "unseen_p99_us"),
        number("running", "connections"),
        ms("running", "adopted_us"),
        all["running"]["build"].as_str().unwrap_or("–"),
        number("running", "rss_mib"),
        number("requests", "requests"),
    )
}

/// A result of what three clocks say, of one quantile.
pub fn clock(quantile: &str, kernel: f64, [driver, adds, database]: [f64; 3]) -> Value {
    json!({
        "quantile": quantile, "kernel_us": kernel, "driver_us": driver, "driver_adds_us": adds, "database_us": database,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_what_the_results_say() {
        let all = read().unwrap();
        for key in ["deaths", "running", "requests"] {
            assert!(all[key].is_object(), "{key}");
        }
        assert_eq!(fs::read_to_string(file("md")).unwrap(), page(&all));
    }
}
