//! The generator's own limit: where the generator could not do much more than what was measured, the generator itself was
//! measured.
//!
//! In a closed loop it is asked in each round how much of the CPU that its threads can use it took. A driver's own thread is not
//! seen by that: of one the limit is what it reaches against a server that costs little. That is measured for every job and told;
//! of others it is no limit on a host of few cores, because that server needs CPU as well, and an operation takes a generator
//! half of the time where the scheduler has put it on one core with the database.

use load::{
    order::Seed,
    workload::{Client, Protocol, Variant},
};
use report::schema::{Experiment, Headroom, Round, Usage};

use super::generator::Generator;
use crate::databases::Databases;

/// The seconds against the null server before it counts.
const SETTLE_SECONDS: f64 = 0.2;
const SECONDS: f64 = 1.0;

/// The share of the CPU that its threads can use, or of what a driver reaches alone, above which a closed loop is bound by the
/// generator. The rest is what others need of the cores that they share with it.
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
    let most = |of: fn(&Round) -> f64| {
        let rounds = experiment.series.iter().flat_map(|s| &s.rounds);
        rounds.map(of).fold(0.0, f64::max)
    };
    match experiment.rate {
        None if experiment.client == "driver" => {
            let fastest = most(|round| round.in_time as f64 / seconds(round));
            (fastest > alone * MOST_OF_CAPACITY).then(|| {
                format!(
                    "the generator was the bottleneck: {fastest:.0} op/s were reached of the \
                     {alone:.0} op/s that its driver reaches alone (against: {server})"
                )
            })
        }
        None => {
            let used = most(|round| cpu_us(&round.generator) / seconds(round) / 1e6) / usable;
            (used > MOST_OF_CAPACITY).then(|| {
                format!(
                    "the generator was the bottleneck: in one round it took {:.0} % of the CPU that its threads can use",
                    used * 100.0
                )
            })
        }
        Some(rate) if alone < rate * LEAST_OF_RATE => Some(format!(
            "the generator cannot keep its schedule: {alone:.0} op/s of {rate:.0} \
             (against: {server})"
        )),
        _ => None,
    }
}

fn seconds(round: &Round) -> f64 {
    round.seconds.max(f64::MIN_POSITIVE)
}

fn cpu_us(usage: &Usage) -> f64 {
    usage.user_us + usage.system_us
}

#[cfg(test)]
mod tests {
    use super::*;

    fn experiment(rate: Option<f64>, alone: f64, ops: u64, system_us: f64) -> Experiment {
        let generator = Usage {
            system_us,
            ..Usage::default()
        };
        let round = Round {
            seconds: 1.0,
            ops,
            in_time: ops,
            generator,
            ..Round::default()
        };
        let text = serde_json::json!({
            "id": "x", "workload": "x", "title": "", "origin": { "name": "", "url": "", "changed": "" },
            "published": [], "database": "node", "nodes": 1, "client": "raw", "threads": 1,
            "connections": 1, "depth": 1, "rate": rate, "refused": null, "left_out": {},
            "headroom": { "server": "null", "op_s": alone, "p50_us": 1.0, "p99_us": 1.0, "generator_cpu_us": 10.0 },
            "series": [{ "path": "direct", "histogram": "", "rounds": [round] }],
        });
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_generator_at_its_limit_is_refused() {
        // One thread, of which the second core is no use. It is faster than alone where it shares a core with the database.
        let closed = |ops, system_us| experiment(None, 70_000.0, ops, system_us);
        assert_eq!(judge(&closed(90_000, 790_000.0), 2), None);
        let why = judge(&closed(60_000, 900_000.0), 2).unwrap();
        assert!(why.contains(" 90 % of the CPU"), "{why}");
        let mut driver = closed(50_000, 900_000.0);
        driver.client = "driver".into();
        assert_eq!(judge(&driver, 2), None);
        driver.series[0].rounds[0].in_time = 60_000;
        let why = judge(&driver, 2).unwrap();
        assert!(
            why.contains("60000 op/s were reached of the 70000"),
            "{why}"
        );
    }

    #[test]
    fn a_schedule_that_is_not_kept_is_refused() {
        assert_eq!(
            judge(&experiment(Some(1_000.0), 1_000.0, 1_000, 0.0), 2),
            None
        );
        // A slow database is not the generator's fault.
        assert_eq!(judge(&experiment(Some(1_000.0), 999.0, 500, 0.0), 2), None);
        let why = judge(&experiment(Some(1_000.0), 900.0, 900, 0.0), 2).unwrap();
        assert!(why.contains("schedule"), "{why}");
    }
}
