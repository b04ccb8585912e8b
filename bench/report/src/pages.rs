//! The committed Markdown pages of a run: an index, a page for each experiment, and the bars.

use std::fmt::Write as _;

use crate::{
    bars, document, experiment,
    markdown::{blocks, escaped, headed},
    model::Block,
    number, plot,
    schema::{Experiment, Run},
    summary,
};

/// The folder of the experiments' pages, beside the index.
pub const FOLDER: &str = "full";

/// A run among the results: its name, its page, and the figures.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The run's name, as a heading.
    pub name: &'a str,
    /// The page that holds all its tables, beside `bars.md`.
    pub page: &'a str,
    /// The figures.
    pub run: &'a Run,
}

/// The index: the summary of a run, its plots, and links to every other page. `others` are lines
/// of Markdown that describe pages which this run is not the source of.
pub fn index(run: &Run, others: &str) -> String {
    let mut out = String::from("# Results\n\n");
    out.push_str(
        "For people who want the figures behind the README. Every page here is rendered from a \
         committed result file; [how it is measured](../README.md) explains the method.\n\n",
    );
    blocks(&mut out, &[Block::Paragraph(summary::origin(run))]);
    out.push_str("## Summary\n\n");
    blocks(&mut out, &summary::brief(run));
    for plot in plot::shown(run) {
        let (title, file) = (escaped(&plot.title), plot.file_name());
        let _ = writeln!(out, "![{title}]({file})\n");
    }
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

/// The bars of several runs, with their verdicts.
pub fn bars(runs: &[Named<'_>]) -> String {
    let mut out = String::from("# Bars\n\n");
    out.push_str(
        "For people who change the code: a bar is a bound that must hold on a machine of any \
         speed, because it compares paths of the same run. The tables are rendered from the \
         committed result files.\n\n\
         - **met**: the figure and its whole spread over the rounds are on the right side of the bound.\n\
         - **missed**: the figure and its whole spread are on the wrong side.\n\
         - **within noise**: the bound lies inside the spread, so the run decides nothing. More \
         rounds on a quieter machine would.\n\
         - **not measured**: the run has no figure, for the reason given.\n\n\
         A bar that several runs measured has a row in each.\n\n\
         | run | met | missed | within noise | not measured |\n\
         | --- | --: | --: | --: | --: |\n",
    );
    for Named { name, run, .. } in runs {
        let tally = bars::tally(run);
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {} |",
            escaped(name),
            tally.met,
            tally.missed,
            tally.within_noise,
            tally.not_measured
        );
    }
    out.push('\n');
    for Named { name, page, run } in runs {
        let _ = writeln!(
            out,
            "## {}\n\n[All tables of this run]({page}).\n",
            escaped(name)
        );
        blocks(&mut out, &[Block::Table(bars::measured(run))]);
    }
    format!("{}\n", out.trim_end())
}
