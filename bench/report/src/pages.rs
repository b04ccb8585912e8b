//! The committed Markdown pages of a run: an index, a page for each experiment, and the bars.

use std::fmt::Write as _;

use crate::{
    bars, document, experiment,
    markdown::{blocks, escaped, headed},
    model::Block,
    number,
    schema::{Experiment, Run},
    sequential::{self, ERROR, LOOKS, NARROW_RATIO, NARROW_US},
    summary,
};

/// The folder of the experiments' pages, beside the index.
pub const FOLDER: &str = "full";

/// The index: the summary of a run, and links to every other page. `others` are lines
/// of Markdown that describe pages which this run is not the source of.
pub fn index(run: &Run, others: &str) -> String {
    let mut out = String::from("# Results\n\n");
    out.push_str(
        "For people who want the figures behind the README. Every page here is rendered from a \
         committed result file; [how it is measured](../README.md) explains the method.\n\n",
    );
    blocks(&mut out, &[Block::Paragraph(summary::origin(run))]);
    out.push_str("## Summary\n\n");
    blocks(&mut out, &summary::blocks(run));
    out.push_str("## Pages\n\n");
    let _ = writeln!(out, "{}\n", others.trim());
    out.push_str("## Experiments\n\n");
    list(&mut out, run);
    headed(&mut out, &document::machine(run), 2);
    if let Some(costs) = document::costs(run) {
        headed(&mut out, &costs, 2);
    }
    format!("{}\n", out.trim_end())
}

fn list(out: &mut String, run: &Run) {
    out.push_str(
        "| page | database | client | connections | in flight on each | rate | what is asked |\n\
         | --- | --- | --- | --: | --: | --: | --- |\n",
    );
    for experiment in &run.experiments {
        let rate = match experiment.rate {
            None => "maximum".to_owned(),
            Some(rate) => format!("{} op/s", number::grouped(rate)),
        };
        let _ = writeln!(
            out,
            "| [{id}]({FOLDER}/{file}) | {database} | {client} | {connections} | {depth} | {rate} | {title} |",
            id = escaped(&experiment.id),
            file = file_name(experiment),
            database = escaped(&experiment::database(experiment)),
            client = escaped(&experiment.client),
            connections = experiment.connections,
            depth = experiment.depth,
            title = escaped(&experiment.title),
        );
    }
    out.push('\n');
}

/// The page of each experiment, by its file's name within [`FOLDER`].
pub fn experiments(run: &Run) -> Vec<(String, String)> {
    let pages = run.experiments.iter();
    let pages = pages.map(|experiment| (file_name(experiment), page(run, experiment)));
    pages.collect()
}

fn page(run: &Run, experiment: &Experiment) -> String {
    let mut out = format!("# {}\n\n", escaped(&experiment.id));
    blocks(&mut out, &[Block::Paragraph(document::origin(experiment))]);
    blocks(&mut out, &experiment::section(run, experiment).blocks);
    out.push_str("[All results](../README.md), with the machine and the settings.\n");
    out
}

/// The name of an experiment's page: nothing in an id leads out of the folder.
fn file_name(experiment: &Experiment) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let name: String = experiment.id.chars().map(plain).collect();
    format!("{name}.md")
}

/// The bars with their verdicts, of the run that measured them; None: none is committed.
pub fn bars(run: Option<&Run>) -> String {
    let mut out = String::from("# Bars\n\n");
    let _ = writeln!(
        out,
        "For people who change the code: a bar is a bound that must hold on a machine of any \
         speed, because it compares paths of the same rounds. `cargo xtask bench bars` measures them, and this page is \
         rendered from its result file.\n\n\
         - **met**, **missed**: its whole interval is on one side of the bound, or the interval is narrower than \
         ±{ratio} % (±{us} µs) and the estimate decides.\n\
         - **undecided**: after {most} rounds the bound is still within the interval: a failure of the measurement, whose cause \
         is said.\n\
         - **not measured**: there is no figure, for the reason given.\n\n\
         A figure is Hodges' and Lehmann's estimate of its rounds, each held against both directs of the same round, and the \
         interval Wilcoxon's (signed ranks). It is looked {looks} times, after fixed numbers of rounds, which share a chance \
         of {error} % of leaving the truth out (the last look has half of it): stopping early costs nothing.\n",
        ratio = NARROW_RATIO * 100.0,
        us = NARROW_US,
        most = sequential::MOST_ROUNDS,
        looks = LOOKS.len(),
        error = ERROR * 100.0,
    );
    let Some(run) = run else {
        out.push_str("No run of the bars is committed.\n");
        return out;
    };
    let tally = bars::tally(run);
    let _ = writeln!(
        out,
        "{} met, {} missed, {} undecided, {} not measured. In {} minutes.\n",
        tally.met,
        tally.missed,
        tally.undecided,
        tally.not_measured,
        number::short(run.seconds / 60.0),
    );
    blocks(&mut out, &summary::warnings(run));
    blocks(
        &mut out,
        &[
            Block::Table(bars::table(run)),
            Block::Table(bars::noise(run)),
            Block::Paragraph(summary::origin(run)),
        ],
    );
    format!("{}\n", out.trim_end())
}
