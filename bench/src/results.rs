//! What is made of result files; the crate `report` does it, this reads and writes.

use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::Context;
use peers::Overrides;
use report::{Run, page::Part, paths};

use crate::{run::WORKLOADS, ways::Ways};

/// Options of `report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// The result file
    #[arg(default_value = "bench/results/full.json")]
    results: PathBuf,
    /// The result file of the ways in which bytes travel; its tables go beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/kernel-paths.json"
    )]
    paths: PathBuf,
    /// The result file of other proxies; its tables go beside it
    #[arg(long, value_name = "FILE", default_value = "bench/results/peers.json")]
    peers: PathBuf,
    /// The result file of the ways through a gateway; its tables go beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/gateway.json"
    )]
    gateway: PathBuf,
    /// The result file of what enrichment costs; its tables go beside it
    #[arg(
        long,
        value_name = "FILE",
        default_value = "bench/results/enrichment.json"
    )]
    enrichment: PathBuf,
    /// The page that shows the summary, and those ways, between its markers
    #[arg(long, value_name = "FILE", default_value = "README.md")]
    page: PathBuf,
    /// The page that explains profiles, with such markers as well
    #[arg(long, value_name = "FILE", default_value = "docs/where-time-goes.md")]
    profiles: PathBuf,
    /// Where every table goes
    #[arg(long, value_name = "FILE", default_value = "bench/results/README.md")]
    tables: PathBuf,
    /// Where the plots of the page go
    #[arg(long, value_name = "FOLDER", default_value = "bench/results")]
    plots: PathBuf,
    /// Where the self-contained page goes
    #[arg(long, value_name = "FILE", default_value = "target/bench/report.html")]
    html: PathBuf,
    /// The tables only
    #[arg(long)]
    tables_only: bool,
    /// Change nothing; exit 1 when a committed file is out of date
    #[arg(long)]
    check: bool,
}

/// Options of `compare`.
#[derive(clap::Args)]
pub struct CompareArgs {
    /// Before
    first: PathBuf,
    /// After
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
        for file in &stale {
            eprintln!(
                "{} is out of date: run `cargo xtask bench report`",
                file.display()
            );
        }
        return Ok(ExitCode::from(u8::from(!stale.is_empty())));
    }
    for file in &stale {
        println!("written: {}", file.display());
    }
    put(&args.html, &report::html::page(&run))?;
    println!("written: {}", args.html.display());
    Ok(ExitCode::SUCCESS)
}

/// Every file that is committed, with what should be in it.
fn committed(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<(PathBuf, String)>> {
    if args.tables_only {
        return Ok(vec![(args.tables.clone(), report::markdown::full(run))]);
    }
    let mut page = read(&args.page)?;
    let readme = report::markdown::readme(run);
    page = replaced(&args.page, &page, Part::Results, &readme)?;
    let mut files = Vec::new();
    for (results, part, scene) in [
        (&args.paths, Part::Paths, paths::HOST),
        (&args.peers, Part::Peers, paths::PEERS),
        (&args.gateway, Part::Gateway, paths::GATEWAY),
        (&args.enrichment, Part::Enrichment, paths::ENRICHMENT),
    ] {
        let run = report::read(results)?;
        let between = report::markdown::paths(&run, scene);
        page = replaced(&args.page, &page, part, &between)?;
        files.push((results.with_extension("md"), report::markdown::full(&run)));
    }
    let profiles = read(&args.profiles)?;
    let profiled = report::markdown::profiles(run);
    let profiles = replaced(&args.profiles, &profiles, Part::Results, &profiled)?;
    files.extend([
        (args.page.clone(), page),
        (args.profiles.clone(), profiles),
        (args.tables.clone(), report::markdown::full(run)),
    ]);
    let plots = report::artifacts(run).into_iter();
    files.extend(plots.map(|(name, plot)| (args.plots.join(name), plot)));
    Ok(files)
}

fn read(page: &Path) -> anyhow::Result<String> {
    fs::read_to_string(page).with_context(|| format!("cannot read {}", page.display()))
}

/// The text of a page with this between its markers.
fn replaced(page: &Path, text: &str, part: Part, between: &str) -> anyhow::Result<String> {
    let (begin, end) = part.markers();
    report::page::replaced(text, part, between)
        .with_context(|| format!("{} has no {begin} … {end}", page.display()))
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
    fn what_is_committed_is_what_the_results_say() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let folder = root.join("bench/results");
        let args = ReportArgs {
            results: folder.join("full.json"),
            paths: folder.join("kernel-paths.json"),
            peers: folder.join("peers.json"),
            gateway: folder.join("gateway.json"),
            enrichment: folder.join("enrichment.json"),
            page: root.join("README.md"),
            profiles: root.join("docs/where-time-goes.md"),
            tables: folder.join("README.md"),
            plots: folder.clone(),
            html: PathBuf::new(),
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
        let pictures = run
            .profiles
            .iter()
            .filter_map(|profile| profile.flame_graph.as_ref());
        for picture in pictures {
            assert!(root.join(picture).is_file(), "{picture}");
        }
    }
}
