//! The result of a run, and the page that is made of it.

use std::{collections::BTreeMap, env, fs, sync::atomic::Ordering::Relaxed, time::Duration};

use integrity::Report;
use sandbox::measured;
use serde_json::{Value, json};

use super::{
    driver,
    faults::Fault,
    log::TroubleKind,
    routes::ROUTES,
    run::Run,
    watch::{Sample, growth as growth_of, minima, settled},
};
use crate::common::ways::WAYS;

/// The growth of the agent's memory, in MiB an hour, from which on it is a finding, if it is by twice its standard error.
const MOST_GROWTH: f64 = 1.0;

/// The shortest run that is judged by it: what grows at first is no leak.
const JUDGED_HOURS: f64 = 1.0;

/// The findings that the page shows, at most.
const MOST_SHOWN: usize = 20;

const MIB: f64 = (1 << 20) as f64;

/// Makes the result of a run, but for its findings.
pub fn result(run: &Run<'_>, samples: &[Sample], streams: &[Report], hours: Option<f64>) -> Value {
    let (_, explained) = run.log.judge();
    let troubles = |route: &'static str| {
        let of_kind = |kind| explained.get(&(route, kind)).copied().unwrap_or(0);
        [TroubleKind::Cut, TroubleKind::Refused, TroubleKind::Waited].map(of_kind)
    };
    let routes = ROUTES.iter().enumerate().map(|(place, route)| {
        let [cut, refused, waited] = troubles(route.name);
        json!({
            "name": route.name,
            "answers": run.answers[place].load(Relaxed),
            "longest_ms": run.longest_us[place].load(Relaxed) / 1000,
            "cut": cut, "refused": refused, "waited": waited,
        })
    });
    let ways = WAYS.iter().zip(streams).map(|(way, report)| {
        let [_, not_begun, waited] = troubles(way.name);
        json!({
            "name": way.name,
            "connections": report.connections,
            "bytes": report.bytes_up + report.bytes_down,
            "not_begun": not_begun, "waited": waited,
        })
    });
    let mut faults: BTreeMap<Fault, (u64, Duration, u64)> = BTreeMap::new();
    for window in run.log.windows() {
        let (count, longest, carried) = faults.entry(window.fault).or_default();
        *count += 1;
        *longest = (*longest).max(window.to - window.from - window.fault.recovery());
        *carried += u64::from(window.kernel_carries);
    }
    let faults = faults.iter().map(|(fault, (count, longest, carried))| {
        let (name, description) = fault.described();
        json!({
            "name": name, "description": description, "count": count, "longest_ms": longest.as_millis() as u64,
            "while_kernel_carried": carried,
        })
    });
    let settled = settled(samples);
    let of = |get: fn(&Sample) -> u64| {
        let growth = growth_of(settled, get);
        let least = minima(settled, get).into_iter().map(|(_, least)| least);
        json!({
            "first": settled.first().map(get),
            "last": settled.last().map(get),
            "most": samples.iter().map(get).max(),
            "least": least.collect::<Vec<_>>(),
            "growth_per_hour": growth.per_hour,
            "growth_error": growth.error,
        })
    };
    json!({
        "seed": run.seed,
        "hours": hours,
        "limit_ms": run.log.limit.as_millis() as u64,
        "seconds": run.log.now().as_secs(),
        "circumstances": measured::circumstances().into_iter().collect::<BTreeMap<_, _>>(),
        "routes": routes.collect::<Vec<_>>(),
        "streams": ways.collect::<Vec<_>>(),
        "visits": run.visits.load(Relaxed),
        "driver_rounds": run.driver_rounds.load(Relaxed),
        "driver_cut": troubles(driver::NAME)[0],
        "faults": faults.collect::<Vec<_>>(),
        "settled_seconds": settled.len(),
        "resident_bytes": of(|s| s.resident),
        "descriptors": of(|s| s.descriptors),
        "kernel_bytes": of(|s| s.kernel),
        "sockets": of(|s| s.sockets[0]),
        "closed_sockets": of(|s| s.sockets[1]),
    })
}

/// Returns a finding if the memory grows. Short runs have none.
pub fn growth(result: &Value) -> Option<String> {
    let of = |key: &str| Some(result["resident_bytes"][key].as_f64()? / MIB);
    let (growth, error) = (of("growth_per_hour")?, of("growth_error")?);
    let is_judged = result["hours"].as_f64()? >= JUDGED_HOURS;
    let is_growing = growth - 2.0 * error >= MOST_GROWTH;
    (is_judged && is_growing).then(|| {
        let error = 2.0 * error;
        format!("the agent's memory grows by {growth:.2} ± {error:.2} MiB in an hour")
    })
}

/// Writes the result and its page.
pub fn write(result: &Value, found: &[String]) {
    let mut result = result.clone();
    result["found"] = json!(found);
    let text = serde_json::to_string_pretty(&result).unwrap() + "\n";
    fs::write(measured::file("soak.json"), text).unwrap();
    fs::write(measured::file("soak.md"), page(&result)).unwrap();
}

fn page(result: &Value) -> String {
    let rows = |of: &str, row: &dyn Fn(&Value) -> String| -> String {
        let of = result[of].as_array().unwrap();
        of.iter().map(|each| row(each) + "\n").collect()
    };
    let text = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let cells = |of: &Value, names: &[&str]| {
        let cells = names.iter().map(|name| text(&of[*name]));
        format!("| {} |", cells.collect::<Vec<_>>().join(" | "))
    };
    let routes = rows("routes", &|route| {
        cells(
            route,
            &["name", "answers", "longest_ms", "cut", "refused", "waited"],
        )
    });
    let streams = rows("streams", &|way| {
        cells(
            way,
            &["name", "connections", "bytes", "not_begun", "waited"],
        )
    });
    let faults = rows("faults", &|fault| {
        cells(
            fault,
            &[
                "name",
                "description",
                "count",
                "longest_ms",
                "while_kernel_carried",
            ],
        )
    });
    let figure = |name: &str, key: &str, unit: f64| {
        let of = &result[key];
        let [first, last, most, growth] = ["first", "last", "most", "growth_per_hour"]
            .map(|key| of[key].as_f64().unwrap_or(0.0) / unit);
        // None: the run was too short, or of an earlier version.
        let error = of["growth_error"].as_f64();
        let error = error.map_or(String::new(), |error| {
            format!(" ± {:.2}", 2.0 * error / unit)
        });
        format!("| {name} | {first:.1} | {last:.1} | {most:.1} | {growth:+.2}{error} |\n")
    };
    let figures = figure("resident memory, MiB", "resident_bytes", MIB)
        + &figure(
            "kernel memory of agents and keepers, MiB",
            "kernel_bytes",
            MIB,
        )
        + &figure("descriptors", "descriptors", 1.0)
        + &figure("TCP sockets of the namespace", "sockets", 1.0)
        + &figure("of which in TIME_WAIT", "closed_sockets", 1.0);
    let least = result["resident_bytes"]["least"].as_array();
    let least = least.into_iter().flatten();
    let least = least.map(|bytes| format!("{:.1}", bytes.as_f64().unwrap_or(0.0) / MIB));
    let least = match least.collect::<Vec<_>>().join(", ") {
        least if least.is_empty() => String::new(),
        least => format!(
            "The least of resident memory in each twelfth of that time, one after the other, in MiB: {least}. Growth is that of these values (what load takes for\n\
             a moment is no leak), with twice its standard error.\n\n"
        ),
    };
    let found = result["found"].as_array().unwrap();
    let verdict = match found.is_empty() {
        true => "Nothing was found: no wrong byte, no wrong answer, nobody who waited for more than a second without a fault that explains it, \
                 nothing left behind."
            .to_owned(),
        false => {
            let lines = found.iter().take(MOST_SHOWN);
            let lines = lines.map(|found| format!("- {}\n", text(found)));
            let lines: String = lines.collect();
            format!("**{} findings**, of which the first are:\n\n{lines}", found.len())
        }
    };
    let hours = result["hours"].as_f64().unwrap_or(0.0);
    let memory = match hours >= JUDGED_HOURS {
        true => format!("must not be above {MOST_GROWTH} MiB by more than its error"),
        false => "is judged in runs of an hour or more".to_owned(),
    };
    format!(
        "# Soak\n\n\
         Made by `UPDATE_DOCS=1 cargo xtask soak --hours {hours} --seed {seed}`, from `soak.json`. The seed repeats the faults: which, in which order,\n\
         for how long. {machine}. Builds are debug builds, and all of it, with Cassandra, is on one machine.\n\n\
         For {seconds} s one agent after the other served all paths at once, while one fault followed another. {verdict}\n\n\
         ## Clients\n\n\
         Two clients of each route, one of version 4 and one of version 5, ask an embedded database, four requests at a time, and know each answer.\n\
         Columns count what a fault explains: connections that were cut, connections that were refused, and waits of more than {long} s. Anything\n\
         else is a finding. A kill ends flows that go through the agent (`changed`, `audited`, `marked`, `mortal`), and new ones are refused until\n\
         it is back. Likewise without memory or descriptors; while the agent is stopped, they wait. A full file system lets `audited` wait, a mark\n\
         denies `marked`, and the database of `mortal` dies. Nothing may disturb the first four, nor `spliced` where the kernel carried its flows and a\n\
         keeper held them when the fault came. After an upgrade a keeper alone has those of the agent before: they end with it.\n\n\
         | route | answers | longest, ms | cut | refused | waited |\n| --- | --: | --: | --: | --: | --: |\n{routes}\n\
         {visits} connections came, asked once and went. All cases of a driver (Rust) on Cassandra passed {rounds} times, and {driver_cut} times a fault cut them short.\n\n\
         ## Streams\n\n\
         Each byte is known by its position. Streams that go through the agent may be cut by what ends it, and not begin meanwhile.\n\
         Those of `shortcut` may wait while it is stopped, or gets no descriptor, for an edge that it tells of.\n\n\
         | path | connections | bytes | not begun | waited |\n| --- | --: | --: | --: | --: |\n{streams}\n\
         ## Faults\n\n\
         | fault | | times | longest, ms | while the kernel carried all of `spliced` |\n| --- | --- | --: | --: | --: |\n{faults}\n\
         ## Memory\n\n\
         No fault ends the agent or its keeper in the second half of the run. These figures are of that agent's life without its first quarter ({settled} s); the\n\
         highest are those of all agents. The growth of resident memory {memory}.\n\n\
         | | first | last | highest | growth in an hour |\n| --- | --: | --: | --: | --: |\n{figures}\n\
         {least}\
         ## What is not done\n\n\
         - The clock does not jump: nothing shifts the wall clock of some processes alone (time namespaces shift the monotonic one), and the host's is not touched.\n\
         - Collectors, Redis, etcd and key servers do not die: their own tests do that.\n\
         - The fill of maps is not watched: it would have to be counted entry by entry. A full one shows as a fallback, which is counted.\n",
        seed = result["seed"],
        machine = text(&result["circumstances"]["kernel"])
            + ", "
            + &text(&result["circumstances"]["cores"])
            + " cores",
        seconds = result["seconds"],
        long = result["limit_ms"].as_f64().unwrap_or(0.0) / 1000.0,
        visits = result["visits"],
        rounds = result["driver_rounds"],
        driver_cut = result["driver_cut"],
        settled = result["settled_seconds"],
    )
}

#[test]
fn the_page_is_what_the_result_says() {
    let result = fs::read_to_string(measured::file("soak.json")).unwrap();
    let page = page(&serde_json::from_str(&result).unwrap());
    let file = measured::file("soak.md");
    if env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&file, &page).unwrap();
    }
    assert_eq!(fs::read_to_string(file).unwrap(), page);
}
