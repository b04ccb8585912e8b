//! What a rule costs a `connect()`: blocks of calls to a listener of our own, interleaved.

use std::{net::TcpListener, thread};

use anyhow::{Context, ensure};

use super::results::Connects;
use crate::{
    latency::Latencies,
    order::{Hello, Job, Order},
    path::{ByPath, Path},
    rig::{Cgroups, Rig, rotated},
};

/// Calls of a path in a block: a few milliseconds, so that all paths of a block have the
/// same machine.
const BLOCK: u32 = 100;
/// 5,000 calls of each path.
const BLOCKS: usize = 50;
/// Blocks before those that count.
const WARM_UP: usize = 3;

/// Measures it.
pub fn measure() -> anyhow::Result<Connects> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a listener to connect to")?;
    let target = listener.local_addr()?;
    // Ends with the process: there is nothing to hand back.
    thread::Builder::new()
        .name("accept".into())
        .spawn(move || listener.incoming().for_each(drop))?;
    let cgroups = Cgroups::new()?;
    let hello = Hello {
        target,
        credentials: None,
        job: Job::Connects,
    };
    let mut rig = Rig::start(&cgroups, &hello)?;
    let mut calls = ByPath::try_new(|_| Latencies::new())?;
    let mut blocks = Vec::new();
    for number in 0..WARM_UP + BLOCKS {
        let mut block = ByPath::<f64>::default();
        for path in rotated(number) {
            let order = Order::Connect { count: BLOCK };
            let answer = rig.clients.of_mut(path).order(order)?;
            ensure!(
                answer.errors == 0,
                "{path}: connect(): {:?}",
                answer.first_error
            );
            *block.of_mut(path) = answer.latencies.quantile_us(0.5);
            if number >= WARM_UP {
                calls.of_mut(path).add(&answer.latencies)?;
            }
        }
        if number >= WARM_UP {
            blocks.push(block);
        }
    }
    rig.stop()?;
    let p50_us = calls.map(|latencies| latencies.quantile_us(0.5));
    let connects = Connects::new(BLOCK, blocks, &p50_us);
    let each = Path::ALL.map(|path| {
        let (p50, added) = (connects.p50_us.of(path), connects.added_us.of(path));
        format!("{path} {p50:.1} µs (+{added:.1})")
    });
    println!("connect(): {}", each.join(", "));
    Ok(connects)
}
