//! How bytes travel, where nothing else is in their way: over raw sockets that do not block, with
//! one request at a time and with many connections.

use crate::{
    metric::Metric,
    model::{Column, Table, Text},
    number,
    schema::{Experiment, Run},
};

/// Where ways are compared.
#[derive(Clone, Copy, Debug)]
pub struct Scene {
    caption: &'static str,
    /// The experiment with one connection.
    one: &'static str,
    /// The experiment with many.
    many: &'static str,
}

/// Client and database on one host.
pub const HOST: Scene = Scene {
    caption: "Paths: over raw sockets that do not block, on the embedded node",
    one: "node-raw-nonblocking-1",
    many: "node-raw-nonblocking-32",
};

/// Client and database on one host, beside proxies that do not come with every distribution.
pub const PEERS: Scene = Scene {
    caption: "Peers: over raw sockets that do not block, on the embedded node",
    ..HOST
};

/// Client and database on hosts of their own.
pub const GATEWAY: Scene = Scene {
    caption: "Through a gateway: direct is routed, as are packets that nobody rewrites",
    one: "gateway-1",
    many: "gateway-32",
};

/// Client and database on one host, for the paths that decode.
pub const ENRICHMENT: Scene = Scene {
    caption: "Enrichment: over raw sockets that do not block, on the embedded node",
    ..HOST
};

/// The comparison of the paths of a run: latency at one connection, throughput and CPU time at 32.
pub fn table(run: &Run, scene: Scene) -> Table {
    let columns = vec![
        Column::words("path"),
        Column::numbers("added p50, 1 connection, µs"),
        Column::numbers("op/s, 32 connections"),
        Column::numbers("all CPU/op, 32 connections, µs"),
        Column::words("how bytes travel"),
    ];
    let mut table = Table::new(scene.caption, columns);
    let usable = |id| run.experiment(id).filter(|e| e.is_usable());
    let (one, many) = (usable(scene.one), usable(scene.many));
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
