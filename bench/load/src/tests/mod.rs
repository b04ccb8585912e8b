//! The whole generator against small servers and the embedded node.

mod cql;
mod open_loop;
mod redis;
mod server;

use std::net::SocketAddr;

use crate::{
    Generator,
    order::{Answer, Hello, Order, Seed},
    workload::{Client, Distribution, Job, Keys, Operation, Protocol, Step},
};

/// A job of raw sockets: one thread, one connection, a closed loop over 1,000 keys.
fn job(protocol: Protocol, operations: Vec<Operation>) -> Job {
    Job {
        protocol,
        client: Client::Raw,
        threads: 1,
        connections: 1,
        depth: 1,
        nonblocking: false,
        rate: None,
        keys: Keys {
            count: 1_000,
            distribution: Distribution::Uniform,
        },
        create: Vec::new(),
        clear: Vec::new(),
        fill: None,
        operations,
    }
}

fn operation(name: &str, steps: Vec<Step>) -> Operation {
    Operation {
        name: name.into(),
        weight: 1,
        connections: 0,
        new_key: false,
        steps,
    }
}

fn command(words: &[&str], count: usize) -> Step {
    Step::Redis {
        command: words.iter().map(|word| (*word).into()).collect(),
        count,
    }
}

fn statement(cql: &str, binds: &[&str]) -> Step {
    Step::Statement {
        cql: cql.into(),
        bind: self::binds(binds),
    }
}

fn binds(binds: &[&str]) -> Vec<crate::workload::Bind> {
    let parse = |bind: &&str| (*bind).to_owned().try_into().unwrap();
    binds.iter().map(parse).collect()
}

fn connect(job: &Job, targets: &[SocketAddr]) -> anyhow::Result<Generator> {
    Generator::new(&Hello {
        job: job.clone(),
        targets: targets.to_vec(),
        credentials: None,
        seed: Seed {
            value: 1,
            number: 1,
        },
        introduce: false,
    })
}

/// Connects and works once.
fn work(job: &Job, targets: &[SocketAddr], seconds: f64) -> anyhow::Result<Answer> {
    connect(job, targets)?.obey(Order::Work { seconds })
}
