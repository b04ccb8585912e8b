//! The commands on result files: render them, compare two, list what can be measured. The crate
//! `report` renders; this file reads and writes.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use peers::Overrides;
use report::{Run, headline, overview::Runs, page, pages, paths};

use crate::{others, run::WORKLOADS, ways::Ways};

/// Options of `report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// The result file of everything that is compared
    #[arg(default_value = "bench/results/full.json.gz")]
    results: PathBuf,
    /// The result file of the kernel paths; its page goes beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/kernel-paths.json.gz"
    )]
    paths: PathBuf,
    /// The result file of the tap; its page goes beside it
    #[arg(long, value_name = "FILE", default_value = "bench/results/tap.json.gz")]
    tap: PathBuf,
    /// The result file of other proxies; its page goes beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/peers.json.gz"
    )]
    peers: PathBuf,
    /// The result file of the paths through a gateway; its page goes beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/gateway.json.gz"
    )]
    gateway: PathBuf,
    /// The result file of what enrichment costs; its page goes beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/enrichment.json.gz"
    )]
    enrichment: PathBuf,
    /// The result file of the bars; without it their page says that there is none
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/bars.json.gz"
    )]
    bars: PathBuf,
    /// The result file of the headline; without it its page says that there is none
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/headline.json.gz"
    )]
    headline: PathBuf,
    /// The page that shows one table between its markers
    #[arg(long, value_name = "FILE", default_value = "README.md")]
    page: PathBuf,
    /// The page that explains profiles, with such markers as well
    #[arg(long, value_name = "FILE", default_value = "docs/where-time-goes.md")]
    profiles: PathBuf,
    /// The index of all results; the bars and the experiments' pages go beside it
    #[arg(long, value_name = "FILE", default_value = "bench/results/README.md")]
    tables: PathBuf,
    /// Only the tables of the result file, all in one file
    #[arg(long)]
    tables_only: bool,
    /// Change nothing; exit 1 when a committed file is out of date
    #[arg(long)]
    check: bool,
}

/// The pages that the index names besides the experiments' own.
const OTHER_PAGES: &str = "\
- **[The headline](headline.md)**: what a user sees first. Latency at rates that leave room, CPU per operation, the maximum; with all cores shared, and with one for the proxy.
- **[By generators of others](generators.md)**: latte and YCSB on a real Cassandra.
- [Bars](bars.md): the bounds that must hold on any machine, with their verdicts.
- [Kernel paths](kernel-paths.md): bypass, observe, shortcut, splice, relay and enrich beside haproxy and nginx.
- [The tap](tap.md): observe and tap beside direct, in more rounds.
- [Other proxies](peers.md): haproxy, nginx, envoy and shotover.
- [Through a gateway](gateway.md): packets that the edge forwards, beside nftables, haproxy and nginx.
- [Enrichment](enrichment.md): what it costs to decode, to take statistics and to multiplex connections (`fold`).
- [A packet at the edge](edge.md): the cost of a packet that is denied or forwarded, and packets dropped per second.
- [Backends](maglev.md): how connections spread over backends, beside a consistent-hash ring.
- [Frames](frames.md): frames per second through the decoder, and their allocations.
- [Exports](exports.md): the ways out of the I/O threads.
- [Where the time goes](../../docs/where-time-goes.md): profiles, with flame graphs.
- [full.json.gz](full.json.gz): the raw data, with every round and a histogram of each path.
";

/// Options of `compare`.
#[derive(clap::Args)]
pub struct CompareArgs {
    /// The result file before
    first: PathBuf,
    /// The result file after
    second: PathBuf,
}

/// Options of `list`.
#[derive(clap::Args)]
pub struct ListArgs {
    /// A peer's binary: its path, or another name on PATH
    #[arg(long = "peer-bin", value_name = "NAME=PATH")]
    peer_bins: Vec<String>,
}

/// The command `report`.
pub fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let run = report::read(&args.results)?;
    let mut stale = Vec::new();
    for (file, text) in committed(args, &run)? {
        let old = fs::read_to_string(&file).unwrap_or_default();
        if old != text {
            if !args.check {
                put(&file, &text)?;
            }
            stale.push(file);
        }
    }
    if args.check {
        stale.extend(orphans(args, &run)?);
        for file in &stale {
            eprintln!(
                "{} is out of date: run `cargo xtask bench report`",
                file.display()
            );
        }
        return Ok(ExitCode::from(u8::from(!stale.is_empty())));
    }
    for file in orphans(args, &run)? {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        println!("removed: {}", file.display());
    }
    for file in &stale {
        println!("written: {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Every file that is committed, with the text that it should have.
fn committed(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<(PathBuf, String)>> {
    if args.tables_only {
        return Ok(vec![(args.tables.clone(), report::markdown::full(run))]);
    }
    let host = report::read(&args.paths)?;
    let tap = report::read(&args.tap)?;
    let peers = report::read(&args.peers)?;
    let gateway = report::read(&args.gateway)?;
    let enrichment = report::read(&args.enrichment)?;
    let runs = Runs {
        host: &host,
        tap: &tap,
        peers: &peers,
    };
    let mut files = vec![
        between(&args.page, &report::markdown::readme(runs))?,
        between(&args.profiles, &report::markdown::profiles(run))?,
        (args.tables.clone(), pages::index(run, OTHER_PAGES)),
    ];
    for (results, run, scene) in [
        (&args.paths, &host, paths::HOST),
        (&args.tap, &tap, paths::HOST),
        (&args.peers, &peers, paths::PEERS),
        (&args.gateway, &gateway, paths::GATEWAY),
        (&args.enrichment, &enrichment, paths::ENRICHMENT),
    ] {
        let page = report::markdown::of_scene(run, scene);
        files.push((page_of(results), page));
    }
    let read = |file: &Path| file.exists().then(|| report::read(file)).transpose();
    let bars = pages::bars(read(&args.bars)?.as_ref());
    files.push((args.tables.with_file_name("bars.md"), bars));
    let headline = read(&args.headline)?;
    let picture = headline.as_ref().and_then(headline::picture);
    files.extend(picture.map(|svg| (args.tables.with_file_name(headline::PICTURE), svg)));
    let headline = headline::page(headline.as_ref());
    files.push((args.tables.with_file_name("headline.md"), headline));
    let mut by_others = Vec::new();
    for other in others::ALL {
        let file = args
            .tables
            .with_file_name(format!("{}.json.gz", other.name()));
        by_others.extend(read(&file)?);
    }
    let by_others = report::others::page(&by_others);
    files.push((args.tables.with_file_name("generators.md"), by_others));
    let folder = experiments(args);
    let each = pages::experiments(run).into_iter();
    files.extend(each.map(|(name, page)| (folder.join(name), page)));
    Ok(files)
}

/// The page beside a result file, compressed or not.
fn page_of(results: &Path) -> PathBuf {
    results.with_extension("").with_extension("md")
}

/// The folder of the experiments' pages.
fn experiments(args: &ReportArgs) -> PathBuf {
    args.tables.with_file_name(pages::FOLDER)
}

/// Pages in the experiments' folder whose experiment the run does not have.
fn orphans(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<PathBuf>> {
    if args.tables_only {
        return Ok(Vec::new());
    }
    let known: BTreeSet<String> = pages::experiments(run)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    let mut orphans = Vec::new();
    let Ok(entries) = fs::read_dir(experiments(args)) else {
        return Ok(orphans);
    };
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") && !known.contains(&name) {
            orphans.push(entry.path());
        }
    }
    orphans.sort();
    Ok(orphans)
}

/// A page, and its text with these results between its markers.
fn between(file: &Path, results: &str) -> anyhow::Result<(PathBuf, String)> {
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let text = page::replaced(&text, results)
        .with_context(|| format!("{} has no {} … {}", file.display(), page::BEGIN, page::END))?;
    Ok((file.to_owned(), text))
}

fn put(file: &Path, text: &str) -> anyhow::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// The command `compare`.
pub fn compare(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let (first, second) = (report::read(&args.first)?, report::read(&args.second)?);
    let comparison = report::compare(&first, &second);
    print!("{comparison}");
    Ok(ExitCode::from(u8::from(comparison.is_regression())))
}

/// The command `list`.
pub fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    println!("Workloads ({WORKLOADS}), with their experiments:");
    for workload in load::workload::read(Path::new(WORKLOADS))? {
        println!(
            "  {}: {} [{}]",
            workload.name, workload.title, workload.origin.name
        );
        for planned in crate::run::planned(&workload) {
            let quick = if planned.variant.quick {
                " (quick)"
            } else {
                ""
            };
            println!("    {}: {}{quick}", planned.variant.id, planned.about());
        }
    }
    println!("Paths and peers:");
    for path in Ways::find(&[], &Overrides::parse(&args.peer_bins)?)?.described {
        let absent = path
            .absent
            .map_or(String::new(), |why| format!(" [absent: {why}]"));
        println!("  {}: {}{absent}", path.name, path.about);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn committed_pages_are_what_the_results_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = root.join("bench/results");
        let args = ReportArgs {
            results: folder.join("full.json.gz"),
            paths: folder.join("kernel-paths.json.gz"),
            tap: folder.join("tap.json.gz"),
            peers: folder.join("peers.json.gz"),
            gateway: folder.join("gateway.json.gz"),
            enrichment: folder.join("enrichment.json.gz"),
            bars: folder.join("bars.json.gz"),
            headline: folder.join("headline.json.gz"),
            page: root.join("README.md"),
            profiles: root.join("docs/where-time-goes.md"),
            tables: folder.join("README.md"),
            tables_only: false,
            check: true,
        };
        let run = report::read(&args.results).unwrap();
        for (file, text) in committed(&args, &run).unwrap() {
            let is_same = fs::read_to_string(&file).is_ok_and(|old| old == text);
            assert!(
                is_same,
                "{}: run `cargo xtask bench report`",
                file.display()
            );
        }
        assert_eq!(orphans(&args, &run).unwrap(), Vec::<PathBuf>::new());
        let pictures = run
            .profiles
            .iter()
            .filter_map(|profile| profile.flame_graph.as_ref());
        for picture in pictures {
            assert!(root.join(picture).is_file(), "{picture}");
        }
    }
}
