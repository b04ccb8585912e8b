//! The division of work: a job's operations, connections and targets dealt out to threads.
//!
//! A *group* is the connections that mix, or those of one operation. A *line* is a group's part on
//! one thread towards one target. Connections are dealt so that every thread has as many as every
//! other, every group reaches every target, and, where there are enough of them, from every thread.

use anyhow::ensure;

use crate::{keys::random::Random, workload::Job};

/// The operations and their weights.
#[derive(Clone, Debug)]
pub struct Mix {
    /// The operation's number, and the sum of the weights up to it.
    upto: Vec<(usize, u64)>,
    total: u64,
}

impl Mix {
    fn of(operations: impl Iterator<Item = (usize, u32)>) -> Self {
        let mut total = 0;
        let upto = operations
            .filter(|(_, weight)| *weight > 0)
            .map(|(number, weight)| {
                total += u64::from(weight);
                (number, total)
            })
            .collect();
        Self { upto, total }
    }

    /// The number of an operation.
    pub fn pick(&self, random: &mut Random) -> usize {
        if let [(only, _)] = *self.upto {
            return only;
        }
        let point = random.below(self.total);
        let found = self.upto.iter().find(|(_, upto)| point < *upto);
        found.map_or(0, |(number, _)| *number)
    }
}

/// Connections that do the same.
#[derive(Clone, Debug)]
pub struct Group {
    /// The number of connections.
    pub connections: usize,
    /// The operations that they do.
    pub mix: Mix,
}

/// Returns the groups of a job: one for each operation with connections of its own, and those that
/// mix.
///
/// # Errors
/// An operation claims connections that are not there, or some have nothing to do.
pub fn groups(job: &Job) -> anyhow::Result<Vec<Group>> {
    let mut groups = Vec::new();
    let mut left = job.connections;
    for (number, operation) in job.operations.iter().enumerate() {
        if operation.connections > 0 {
            ensure!(
                operation.connections <= left,
                "operations want more connections than the {} that there are",
                job.connections
            );
            left -= operation.connections;
            groups.push(Group {
                connections: operation.connections,
                mix: Mix::of([(number, 1)].into_iter()),
            });
        }
    }
    let shared = job.operations.iter().enumerate();
    let shared = shared.filter(|(_, operation)| operation.connections == 0);
    let mix = Mix::of(shared.map(|(number, operation)| (number, operation.weight)));
    match (left, mix.total) {
        (0, 0) => {}
        (0, _) => anyhow::bail!("no connection is left for the operations that are mixed"),
        (_, 0) => anyhow::bail!("{left} connections have nothing to do"),
        _ => groups.push(Group {
            connections: left,
            mix,
        }),
    }
    Ok(groups)
}

/// A connection's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// The thread that has it.
    pub thread: usize,
    /// The group to which the connection belongs.
    pub group: usize,
    /// The target to which it goes.
    pub target: usize,
}

/// Returns a seat for every connection of these groups.
///
/// # Errors
/// There are fewer connections than threads, or a group has fewer than there are targets.
pub fn seats(groups: &[Group], threads: usize, targets: usize) -> anyhow::Result<Vec<Seat>> {
    ensure!(threads > 0, "no threads");
    ensure!(targets > 0, "no targets");
    let cycle = threads / gcd(threads, targets) * targets;
    let mut seats = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        ensure!(
            group.connections >= targets,
            "{} connections are too few for {targets} targets",
            group.connections
        );
        let first = seats.len();
        seats.extend((0..group.connections).map(|i| Seat {
            // Within a cycle every pair is another one; the next cycle is shifted by one.
            thread: (first + i + i / cycle) % threads,
            group: number,
            target: i % targets,
        }));
    }
    ensure!(
        seats.len() >= threads,
        "{} connections are too few for {threads} threads",
        seats.len()
    );
    Ok(seats)
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn plain(connections: usize) -> Group {
        Group {
            connections,
            mix: Mix::of([(0, 1)].into_iter()),
        }
    }

    #[test]
    fn every_thread_reaches_every_target_when_there_are_enough_connections() {
        for threads in 1..9 {
            for targets in 1..9 {
                let seats = seats(&[plain(threads * targets)], threads, targets).unwrap();
                let pairs: BTreeSet<_> = seats.iter().map(|s| (s.thread, s.target)).collect();
                assert_eq!(pairs.len(), threads * targets, "{threads} {targets}");
            }
        }
    }

    #[test]
    fn threads_have_a_connection_each_and_groups_reach_all_targets() {
        for threads in 1..9 {
            for targets in 1..5 {
                for more in 0..7 {
                    let groups = [plain(targets + more), plain(targets.max(threads))];
                    let seats = seats(&groups, threads, targets).unwrap();
                    let busy: BTreeSet<_> = seats.iter().map(|s| s.thread).collect();
                    assert_eq!(busy.len(), threads);
                    let pairs: BTreeSet<_> = seats.iter().map(|s| (s.group, s.target)).collect();
                    assert_eq!(pairs.len(), 2 * targets);
                }
            }
        }
        let one_each = seats(&[plain(2), plain(3)], 5, 1).unwrap();
        let threads: Vec<_> = one_each.iter().map(|s| s.thread).collect();
        assert_eq!(threads, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn too_few_connections_are_refused() {
        let few = seats(&[plain(3)], 1, 4).unwrap_err().to_string();
        assert!(few.contains("too few for 4 targets"), "{few}");
        let few = seats(&[plain(3)], 4, 1).unwrap_err().to_string();
        assert!(few.contains("too few for 4 threads"), "{few}");
    }

    #[test]
    fn weights_are_shares() {
        let mix = Mix::of([(3, 1), (5, 0), (7, 3)].into_iter());
        let mut random = Random::new(1, 1);
        let picks: Vec<_> = (0..40_000).map(|_| mix.pick(&mut random)).collect();
        let sevens = picks.iter().filter(|n| **n == 7).count();
        assert!(picks.iter().all(|n| [3, 7].contains(n)));
        assert!((29_000..31_000).contains(&sevens), "{sevens}");
    }
}
