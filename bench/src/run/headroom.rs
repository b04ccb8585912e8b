//! The generator's own limit: the same job against a server that does nothing. Where the generator
//! cannot do much more than what was measured, the generator itself was measured.
//!
//! The capacity is what the generator's own CPU time for an operation allows on the cores that its
//! threads can use. The rate that it *reaches* against the server that does nothing is noted, too,
//! but is no limit on a host of few cores, because that server needs CPU as well.

use load::{
    order::Seed,
    workload::{Client, Protocol, Variant},
};
use report::schema::{Experiment, Headroom, Series};

use super::generator::Generator;
use crate::{databases::Databases, paths::SHORTCUT};

/// The seconds against the null server before it counts.
const SETTLE_SECONDS: f64 = 0.2;
const SECONDS: f64 = 1.0;

/// The share of the generator's capacity above which a closed loop is bound by the generator. The
/// rest is what others need of the cores that they share with it.
const MOST_OF_CAPACITY: f64 = 0.8;
/// The share of its rate that an open loop must reach against a server that does nothing.
const LEAST_OF_RATE: f64 = 0.99;

/// Measures the generator. None for a workload that no stand-in can answer, or that needs no
/// answer.
///
/// # Errors
/// The stand-in does not start, or the generator fails.
pub fn measure(variant: &Variant, seed: u64) -> anyhow::Result<Option<Headroom>> {
    let job = &variant.job;
    if job.protocol == Protocol::Connect {
        return Ok(None);
    }
    // A driver asks a database about itself before it works: the embedded node is the
    // cheapest that can answer.
    let (server, databases) = match (job.client, job.protocol) {
        (Client::Driver, Protocol::Cql) => ("node", Databases::node(variant.nodes)?),
        _ => ("null", Databases::null(variant.nodes)?),
    };
    if server == "node" && load::prepare(job, &databases.addresses, None).is_err() {
        return Ok(None);
    }
    let hello = load::order::Hello {
        job: job.clone(),
        targets: databases.addresses.clone(),
        credentials: None,
        seed: Seed {
            value: seed,
            number: 0,
        },
        introduce: false,
    };
    let mut generator = Generator::start(server, None, None, &hello)?;
    generator.work(SETTLE_SECONDS)?;
    let answer = generator.work(SECONDS)?;
    let ops = answer.ops().max(1) as f64;
    Ok(Some(Headroom {
        server: server.into(),
        op_s: answer.op_s(),
        p50_us: answer.latencies.quantile_us(0.5),
        p99_us: answer.latencies.quantile_us(0.99),
        generator_cpu_us: answer.used.cpu_us() as f64 / ops,
    }))
}

/// Returns the reason why an experiment's figures are the generator's own; None: they are not.
pub fn judge(experiment: &Experiment, cores: usize) -> Option<String> {
    let headroom = experiment.headroom.as_ref()?;
    let (server, alone) = (&headroom.server, headroom.op_s);
    let usable = experiment.threads.min(cores) as f64;
    let capacity = usable * 1e6 / headroom.generator_cpu_us.max(f64::MIN_POSITIVE);
    // Past TCP an operation costs the generator less than was measured: it may be faster than that
    // without being what is measured.
    let over_tcp = experiment.series.iter().filter(|s| s.path != SHORTCUT.name);
    let fastest = over_tcp.map(best_op_s).fold(0.0, f64::max);
    let is_driver = experiment.client == "driver";
    match experiment.rate {
        // A driver does its work on a thread of its own, which the capacity does not know.
        None if is_driver && fastest > alone * MOST_OF_CAPACITY => Some(format!(
            "the generator was the bottleneck: {fastest:.0} op/s were reached of the \
             {alone:.0} op/s that its driver reaches alone (against: {server})"
        )),
        None if fastest > capacity * MOST_OF_CAPACITY => Some(format!(
            "the generator was the bottleneck: {fastest:.0} op/s were reached of the \
             {capacity:.0} op/s for which it has CPU (measured against: {server})"
        )),
        Some(rate) if alone < rate * LEAST_OF_RATE => Some(format!(
            "the generator cannot keep its schedule: {alone:.0} op/s of {rate:.0} \
             (against: {server})"
        )),
        _ => None,
    }
}

fn best_op_s(series: &Series) -> f64 {
    let op_s = series
        .rounds
        .iter()
        .map(|round| round.in_time as f64 / round.seconds.max(f64::MIN_POSITIVE));
    op_s.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::schema::Round;

    fn experiment(rate: Option<f64>, alone: f64, ops: u64) -> Experiment {
        let text = serde_json::json!({
            "id": "x", "workload": "x", "title": "", "origin": { "name": "", "url": "", "changed": "" },
            "published": [], "database": "node", "nodes": 1, "client": "raw", "threads": 1,
            "connections": 1, "depth": 1, "rate": rate, "refused": null, "left_out": {},
            "headroom": { "server": "null", "op_s": alone, "p50_us": 1.0, "p99_us": 1.0, "generator_cpu_us": 10.0 },
            "series": [{ "path": "direct", "histogram": "", "rounds": [Round { seconds: 1.0, ops, in_time: ops, ..Round::default() }] }],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_generator_at_its_limit_is_refused() {
        // One thread that needs 10 µs for an operation: 100,000 of them in a second.
        assert_eq!(judge(&experiment(None, 70_000.0, 79_000), 2), None);
        let why = judge(&experiment(None, 70_000.0, 90_000), 2).unwrap();
        assert!(
            why.contains("90000 op/s") && why.contains("100000 op/s"),
            "{why}"
        );
    }

    #[test]
    fn a_schedule_that_is_not_kept_is_refused() {
        assert_eq!(judge(&experiment(Some(1_000.0), 1_000.0, 1_000), 2), None);
        // A slow database is not the generator's fault.
        assert_eq!(judge(&experiment(Some(1_000.0), 999.0, 500), 2), None);
        let why = judge(&experiment(Some(1_000.0), 900.0, 900), 2).unwrap();
        assert!(why.contains("schedule"), "{why}");
    }
}
