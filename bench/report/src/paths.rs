//! How bytes travel, where nothing else is in their way: over raw sockets that do not block, with
//! one request at a time and with many connections.

use crate::{
    bars,
    metric::Metric,
    model::{Block, Column, Table, Text},
    number,
    schema::{Experiment, Run},
    summary,
};

const ONE: &str = "node-raw-nonblocking-1";
const MANY: &str = "node-raw-nonblocking-32";

/// The table, the bars that this run can tell of, and where the figures come from.
pub fn blocks(run: &Run) -> Vec<Block> {
    vec![
        Block::Table(table(run)),
        Block::Table(bars::measured(run)),
        Block::Paragraph(summary::origin(run)),
    ]
}

fn table(run: &Run) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::numbers("added p50, 1 connection, µs"),
        Column::numbers("op/s, 32 connections"),
        Column::numbers("all CPU/op, 32 connections, µs"),
        Column::words("how bytes travel"),
    ];
    let caption = "Paths: over raw sockets that do not block, on the embedded node";
    let mut table = Table::new(caption, columns);
    let usable = |id| run.experiment(id).filter(|e| e.is_usable());
    let (one, many) = (usable(ONE), usable(MANY));
    for path in run.measured() {
        let in_one = cell(one, &path.name, Metric::P50);
        let in_many = cell(many, &path.name, Metric::OpS);
        let cpu = many.and_then(|e| e.series(&path.name)?.median(Metric::AllCpu));
        if one.or(many).is_none_or(|e| e.series(&path.name).is_none()) {
            continue;
        }
        table.path_row(
            &path.name,
            [
                in_one,
                in_many,
                number::or_none(cpu, number::short).into(),
                Text::new().muted(&*path.about),
            ],
        );
    }
    table
}

/// Direct's own figure, and of the others the difference to it.
fn cell(experiment: Option<&Experiment>, path: &str, metric: Metric) -> Text {
    let found = experiment.and_then(|e| Some((e, e.series(path)?)));
    let Some((experiment, series)) = found else {
        return number::NONE.into();
    };
    let is_rate = metric == Metric::OpS;
    if series.is_direct() {
        let own = series.median(metric);
        return Text::new().muted(match is_rate {
            true => format!("{} op/s", number::or_none(own, number::grouped)),
            false => format!("{} {}", metric.name(), number::or_none(own, number::short)),
        });
    }
    match is_rate {
        true => Text::brief(experiment.ratio(series, metric), |ratio| {
            format!("{}×", number::ratio(ratio))
        }),
        false => Text::brief(experiment.added(series, metric), number::signed),
    }
}
