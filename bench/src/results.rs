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
use report::{Run, headline, markdown, overview, pages};

use crate::{others, run::WORKLOADS, ways::Ways};

/// Options of `report`.
#[derive(clap::Args)]
pub struct ReportArgs {
    /// The folder of the result files; their pages go beside them
    #[arg(default_value = "bench/results")]
    folder: PathBuf,
    /// The page that shows one table between its markers
    #[arg(long, value_name = "FILE", default_value = "README.md")]
    page: PathBuf,
    /// The page that explains profiles, with such markers as well
    #[arg(long, value_name = "FILE", default_value = "docs/where-time-goes.md")]
    profiles: PathBuf,
    /// Print everything that this result file says, and write nothing
    #[arg(long, value_name = "FILE")]
    only: Option<PathBuf>,
    /// Change nothing; exit 1 when a committed file is out of date
    #[arg(long)]
    check: bool,
}

/// The result file of everything that is compared, the source of the index and of a page for each experiment.
const FULL: &str = "full.json.gz";
/// Result files with a page of their own, and what heads it.
const SCENES: [(&str, pages::Scene); 3] = [
    ("kernel-paths", pages::HOST),
    ("gateway", pages::GATEWAY),
    ("enrichment", pages::ENRICHMENT),
];

/// The pages that the index names besides the experiments' own.
const OTHER_PAGES: &str = "\
- **[The headline](headline.md)**: what a user sees first. Latency at rates that leave room, CPU per operation, the maximum; with all cores shared, and with one for the proxy.
- **[By generators of others](generators.md)**: latte and YCSB on a real Cassandra.
- [Bars](bars.md): the bounds that must hold on any machine, with their verdicts.
- [Kernel paths](kernel-paths.md): bypass, observe, shortcut, splice, relay and enrich beside haproxy and nginx.
- [Through a gateway](gateway.md): packets that the edge forwards, beside nftables, haproxy and nginx.
- [Enrichment](enrichment.md): what it costs to decode, to take statistics and to multiplex connections (`fold`).
- [A packet at the edge](edge.md): the cost of a packet that is denied or forwarded, and packets dropped per second.
- [Backends](maglev.md): how connections spread over backends, beside a consistent-hash ring.
- [Frames](frames.md): frames per second through the decoder, and their allocations.
- [Exports](exports.md): the ways out of the I/O threads.
- [The tap, soaked](tapped.md): an agent that is killed again and again, connections that were there before, a million statements.
- [Upgrades under load](upgrades.md): requests of drivers while agents take over from one another.
- [A soak](soak.md): clients on all paths at once, while one fault follows another.
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
    if let Some(file) = &args.only {
        print!("{}", pages::full(&report::read(file)?, pages::ALL));
        return Ok(ExitCode::SUCCESS);
    }
    let run = report::read(&args.folder.join(FULL))?;
    let (stale, orphans) = (stale(args, &run)?, orphans(args, &run)?);
    if args.check {
        let files = stale.iter().map(|(file, _)| file).chain(&orphans);
        for file in files {
            eprintln!(
                "{} is out of date: run `cargo xtask bench report`",
                file.display()
            );
        }
        let is_current = stale.is_empty() && orphans.is_empty();
        return Ok(ExitCode::from(u8::from(!is_current)));
    }
    for file in orphans {
        fs::remove_file(&file).with_context(|| format!("cannot remove {}", file.display()))?;
        println!("removed: {}", file.display());
    }
    for (file, text) in stale {
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        println!("written: {}", file.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The committed files whose text is another than the one that they should have, with that.
fn stale(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let mut all = committed(args, run)?;
    all.retain(|(file, text)| fs::read_to_string(file).unwrap_or_default() != *text);
    Ok(all)
}

/// Every file that is committed, with the text that it should have.
fn committed(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let place = |file: &str| args.folder.join(file);
    let read = |name: &str| report::read(&place(&format!("{name}.json.gz")));
    let read_if_there = |name: &str| {
        let is_there = place(&format!("{name}.json.gz")).exists();
        is_there.then(|| read(name)).transpose()
    };
    let (bars, headline) = (read_if_there("bars")?, read_if_there("headline")?);
    let mut by_others = Vec::new();
    for other in others::ALL {
        by_others.extend(read_if_there(other.name())?);
    }
    let mut files = vec![
        between(&args.page, &overview::readme(headline.as_ref()))?,
        between(&args.profiles, &pages::profiles(run))?,
        (place("README.md"), pages::index(run, OTHER_PAGES)),
        (place("bars.md"), pages::bars(bars.as_ref())),
        (place("headline.md"), headline::page(headline.as_ref())),
        (place("generators.md"), report::others::page(&by_others)),
    ];
    for (name, scene) in SCENES {
        let page = pages::full(&read(name)?, scene);
        files.push((place(&format!("{name}.md")), page));
    }
    let picture = headline.as_ref().and_then(headline::picture);
    files.extend(picture.map(|svg| (place(headline::PICTURE), svg)));
    let folder = place(pages::FOLDER);
    let each = pages::experiments(run).into_iter();
    files.extend(each.map(|(name, page)| (folder.join(name), page)));
    Ok(files)
}

/// Pages in the experiments' folder whose experiment the run does not have.
fn orphans(args: &ReportArgs, run: &Run) -> anyhow::Result<Vec<PathBuf>> {
    let known = pages::experiments(run);
    let known: BTreeSet<String> = known.into_iter().map(|(name, _)| name).collect();
    let mut orphans = Vec::new();
    let Ok(entries) = fs::read_dir(args.folder.join(pages::FOLDER)) else {
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
    let (begin, end) = (markdown::BEGIN, markdown::END);
    let text = markdown::replaced(&text, results)
        .with_context(|| format!("{} has no {begin} … {end}", file.display()))?;
    Ok((file.to_owned(), text))
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
        let args = ReportArgs {
            folder: root.join("bench/results"),
            page: root.join("README.md"),
            profiles: root.join("docs/where-time-goes.md"),
            only: None,
            check: true,
        };
        let run = report::read(&args.folder.join(FULL)).unwrap();
        let stale = stale(&args, &run).unwrap();
        let stale: Vec<PathBuf> = stale.into_iter().map(|(file, _)| file).collect();
        let none = Vec::<PathBuf>::new();
        assert_eq!(stale, none, "run `cargo xtask bench report`");
        assert_eq!(orphans(&args, &run).unwrap(), none);
        let pictures = run.profiles.iter().filter_map(|p| p.flame_graph.as_ref());
        for picture in pictures {
            assert!(root.join(picture).is_file(), "{picture}");
        }
    }
}
