//! The leader's part: what every host wants, and the levels that follow from it.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Level, Tenant, fair};

/// The time between two looks of a host at its demand, in a fleet that is not large.
pub const PERIOD: Duration = Duration::from_secs(1);

/// How long what a host wants outlives its agent, in periods: the others have its share then.
pub const LEASE_PERIODS: u32 = 4;

/// The longest waits of a host for its store that fit into that time. After one of them a host has yet to connect, to look, which takes half of that time
/// at most in a fleet that has grown meanwhile, and to publish. One that comes back later counts as gone, and has its share nevertheless.
pub const WAITS_IN_LEASE: u32 = 3;

/// Records that the hosts of a fleet write in a second at most: a tenth of what etcd's members write on good disks. In larger fleets
/// hosts look less often.
pub const RECORDS_PER_SECOND: usize = 1_000;

/// Tenants that have a level. Of further ones, those that want least of their rates, each host has an equal share.
pub const MAX_LEVELS: usize = 4_096;

/// Demands, one for each host and tenant, that the leader knows: 24 MiB. A record that does not fit is known to be there, and not what
/// is in it.
pub const MAX_WANTED: usize = 1 << 20;

/// Requests a second that nobody has. A record that names more names so many: levels are JSON, which has no infinity, and hosts
/// could read none of them.
const MAX_RATE: f64 = 1e12;

/// The record in which a host says what it wants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// By limit.
    pub limits: BTreeMap<String, Wanted>,
}

/// The part of a record about one limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The rate as this host's rule has it.
    pub rate: f64,
    /// Requests a second, by tenant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub wanted: BTreeMap<Tenant, f64>,
    /// Tenants that are not there, because there was no room.
    #[serde(skip)]
    pub left_out: usize,
}

/// The levels of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Levels {
    /// The revision of the last record that is in them.
    pub seen: u64,
    /// The time between two looks of a host at its demand, in ms.
    pub period_ms: u64,
    /// By limit.
    pub limits: BTreeMap<String, SharedLevels>,
}

/// The levels of a limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SharedLevels {
    /// The hosts that have the limit.
    pub hosts: usize,
    /// By tenant.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub levels: BTreeMap<Tenant, Level>,
    /// Tenants without a level, because there are too many.
    #[serde(default)]
    pub left_out: usize,
}

/// The records of all hosts.
#[derive(Debug, Default)]
pub struct Book {
    records: BTreeMap<String, Record>,
    /// The demands in them.
    wanted: usize,
    seen: u64,
}

impl Record {
    fn wanted(&self) -> usize {
        self.limits.values().map(|limit| limit.wanted.len()).sum()
    }
}

impl Book {
    /// Notes a host's record.
    pub fn put(&mut self, host: &str, revision: u64, mut record: Record) {
        self.remove(host);
        self.seen = self.seen.max(revision);
        for limit in record.limits.values_mut() {
            limit.rate = limit.rate.clamp(0.0, MAX_RATE);
            let wanted = limit.wanted.values_mut();
            wanted.for_each(|wanted| *wanted = wanted.clamp(0.0, MAX_RATE));
        }
        if self.wanted + record.wanted() > MAX_WANTED {
            for limit in record.limits.values_mut() {
                limit.left_out = limit.wanted.len();
                limit.wanted.clear();
            }
        }
        self.wanted += record.wanted();
        self.records.insert(host.to_owned(), record);
    }

    /// Notes that a host has gone.
    pub fn remove(&mut self, host: &str) {
        if let Some(record) = self.records.remove(host) {
            self.wanted -= record.wanted();
        }
    }

    /// The number of hosts.
    pub fn hosts(&self) -> usize {
        self.records.len()
    }

    /// Returns the levels.
    pub fn levels(&self) -> Levels {
        let (mut limits, mut room) = (BTreeMap::new(), MAX_LEVELS);
        let names = self
            .records
            .values()
            .flat_map(|record| record.limits.keys());
        let names: std::collections::BTreeSet<_> = names.collect();
        for name in names {
            let levels = self.levels_of(name, room);
            room -= levels.levels.len();
            limits.insert(name.clone(), levels);
        }
        let slowest = PERIOD.as_millis() as usize * self.hosts() / RECORDS_PER_SECOND;
        Levels {
            seen: self.seen,
            period_ms: (slowest as u64).max(PERIOD.as_millis() as u64),
            limits,
        }
    }

    fn levels_of(&self, name: &str, room: usize) -> SharedLevels {
        let (mut hosts, mut rate, mut left_out) = (0, f64::INFINITY, 0);
        let mut tenants: BTreeMap<Tenant, Vec<f64>> = BTreeMap::new();
        for limit in self
            .records
            .values()
            .filter_map(|record| record.limits.get(name))
        {
            hosts += 1;
            // While a new rate is rolled out hosts name two: no host may be above its own.
            rate = rate.min(limit.rate);
            left_out += limit.left_out;
            for (tenant, wanted) in &limit.wanted {
                tenants.entry(*tenant).or_default().push(*wanted);
            }
        }
        if tenants.len() > room {
            left_out += tenants.len() - room;
            let together = |wanted: &Vec<f64>| wanted.iter().sum::<f64>();
            let mut most: Vec<_> = tenants.into_iter().collect();
            most.sort_by(|(_, one), (_, other)| together(other).total_cmp(&together(one)));
            most.truncate(room);
            tenants = most.into_iter().collect();
        }
        let levels = tenants
            .into_iter()
            .map(|(tenant, mut wanted)| (tenant, rounded(fair(rate, &mut wanted, hosts))));
        SharedLevels {
            hosts,
            levels: levels.collect(),
            left_out,
        }
    }
}

/// A level in numbers that are short as text.
fn rounded(level: Level) -> Level {
    let round = |n: f64| (n * 1e6).floor() / 1e6;
    Level {
        most: level.most.map(round),
        spare: round(level.spare),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rate: f64, wanted: &[(&str, f64)]) -> Record {
        let wanted = wanted.iter().map(|(name, n)| (Tenant::named(name), *n));
        let wanted = Wanted {
            rate,
            wanted: wanted.collect(),
            left_out: 0,
        };
        Record {
            limits: [("shop.user".to_owned(), wanted)].into(),
        }
    }

    #[test]
    fn levels_follow_from_records() {
        let mut book = Book::default();
        book.put("a", 5, record(100.0, &[("alice", 90.0), ("bob", 10.0)]));
        book.put("b", 7, record(100.0, &[("alice", 90.0)]));
        book.put("c", 6, record(100.0, &[]));
        let levels = book.levels();
        assert_eq!((levels.seen, levels.period_ms), (7, 1000));
        let shop = &levels.limits["shop.user"];
        assert_eq!(shop.hosts, 3);
        assert_eq!(shop.levels[&Tenant::named("alice")].most, Some(50.0));
        assert_eq!(shop.levels[&Tenant::named("bob")].spare, 30.0);
        // A host that names less than others is not exceeded.
        book.put("c", 8, record(40.0, &[]));
        book.remove("b");
        let level = book.levels().limits["shop.user"].levels[&Tenant::named("alice")];
        assert_eq!(level.most, Some(40.0));
    }

    #[test]
    fn levels_are_numbers_whatever_a_host_says() {
        let mut book = Book::default();
        book.put(
            "a",
            1,
            record(f64::MAX, &[("alice", f64::MAX), ("bob", -1.0)]),
        );
        book.put("b", 2, record(f64::MAX, &[("alice", f64::MAX)]));
        for level in book.levels().limits["shop.user"].levels.values() {
            assert!(level.spare.is_finite() && level.most.is_none_or(f64::is_finite));
        }
    }

    #[test]
    fn who_wants_least_is_left_out_and_large_fleets_look_less_often() {
        let mut book = Book::default();
        let names: Vec<String> = (0..MAX_LEVELS + 3).map(|n| n.to_string()).collect();
        let wanted: Vec<(&str, f64)> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.as_str(), n as f64))
            .collect();
        book.put("a", 1, record(1.0, &wanted));
        let levels = book.levels();
        let shop = &levels.limits["shop.user"];
        assert_eq!((shop.levels.len(), shop.left_out), (MAX_LEVELS, 3));
        assert!(!shop.levels.contains_key(&Tenant::named("2")));
        // A host of whose demands there is no room is a host.
        let many = (0..MAX_WANTED as u64).map(|n| (Tenant(n), 1.0));
        let mut large = record(1.0, &[]);
        large.limits.get_mut("shop.user").unwrap().wanted = many.collect();
        book.put("b", 2, large);
        let levels = book.levels();
        let shop = &levels.limits["shop.user"];
        assert_eq!(
            (levels.seen, shop.hosts, shop.left_out),
            (2, 2, 3 + MAX_WANTED)
        );
        book.remove("b");
        assert_eq!(book.wanted, MAX_LEVELS + 3);
        for n in 0..2_000 {
            book.put(&n.to_string(), 1, Record::default());
        }
        assert_eq!(book.levels().period_ms, 2_001);
    }
}
