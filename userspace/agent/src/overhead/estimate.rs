//! How much two groups of connections differ, and how sure that is; pure.
//!
//! Connections were drawn, not requests, and the requests of one connection are alike. So a connection is one observation, whatever it
//! has asked: the interval of a quantile is Woodruff's (1952), with the variance of the share below the quantile taken over
//! connections, as of a ratio (the "outer" interval of Deng, Knoblich and Lu, *Applying the Delta Method in Metric Analytics*,
//! 2018). The interval of a difference is put together from those of both groups (MOVER; Zou and Donner, 2008), which needs no
//! symmetry. All intervals are of 95 %.

use dataplane::{BUCKETS, Compared, bucket_begins};

/// Connections of a group below which nothing is said: the variance over fewer is a guess.
pub const LEAST_CONNECTIONS: usize = 20;

/// A value and its interval of 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The value.
    pub value: f64,
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The interval of what this one is more than another.
    fn minus(self, other: Self) -> Self {
        let value = self.value - other.value;
        Self {
            value,
            low: value - (self.value - self.low).hypot(other.high - other.value),
            high: value + (self.high - self.value).hypot(other.value - other.low),
        }
    }
}

/// How much is missing until something can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// So many connections of the group.
    Connections(usize),
    /// So many requests of the group, about.
    Requests(u64),
}

/// A group of connections, each of which has asked something.
#[derive(Debug)]
pub struct Group<'a> {
    connections: &'a [Compared],
    /// How many latencies of all connections are in buckets before each one.
    before: Vec<u64>,
    requests: u64,
}

impl<'a> Group<'a> {
    /// Takes the connections together.
    pub fn new(connections: &'a [Compared]) -> Self {
        let mut counts = vec![0; BUCKETS];
        for (bucket, n) in connections.iter().flat_map(|one| &one.latencies) {
            if let Some(count) = counts.get_mut(usize::from(*bucket)) {
                *count += u64::from(*n);
            }
        }
        let mut requests = 0;
        let mut before = Vec::with_capacity(BUCKETS + 1);
        before.push(0);
        for n in counts {
            requests += n;
            before.push(requests);
        }
        Self {
            connections,
            before,
            requests,
        }
    }

    /// How many connections.
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    /// How many requests whose latency is known.
    pub fn requests(&self) -> u64 {
        self.requests
    }

    /// How many ERROR responses.
    pub fn errors(&self) -> u64 {
        self.connections.iter().map(|one| one.errors).sum()
    }

    /// The latency below which this share of the requests is, in seconds. Within a bucket they are taken to lie evenly.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let rank = share * self.requests as f64;
        let behind = self
            .before
            .partition_point(|before| (*before as f64) < rank);
        let bucket = behind.saturating_sub(1).min(BUCKETS - 1);
        let [before, up_to] = [*self.before.get(bucket)?, *self.before.get(bucket + 1)?];
        let part = (rank - before as f64) / up_to.checked_sub(before).filter(|n| *n > 0)? as f64;
        let [begin, end] = [bucket, bucket + 1].map(|n| bucket_begins(n).as_secs_f64());
        Some(begin + (end - begin) * part.clamp(0.0, 1.0))
    }

    /// A quantile of the latency in seconds, with its interval.
    pub fn interval(&self, share: f64) -> Result<Interval, Missing> {
        self.has_connections()?;
        let margin = self.margin(share);
        let room = share.min(1.0 - share);
        let requests = self.requests as f64;
        // Where requests are independent; and the margin shrinks with the root of what is known.
        let least = (student(f64::INFINITY) / room).powi(2) * share * (1.0 - share);
        let needed = least.max(requests * (margin / room).powi(2)).ceil();
        let [low, high] = [share - margin, share + margin];
        match [share, low, high].map(|at| self.quantile(at)) {
            [Some(value), Some(low), Some(high)] if needed <= requests && margin < room => {
                Ok(Interval { value, low, high })
            }
            _ => Err(Missing::Requests((needed - requests).max(1.0) as u64)),
        }
    }

    /// The ERROR responses among the requests, as a share, with its interval.
    pub fn errors_interval(&self) -> Result<Interval, Missing> {
        self.has_connections()?;
        let requests = self.requests as f64;
        let value = self.errors() as f64 / requests;
        if self.errors() == 0 {
            // The rule of three.
            let high = 3.0 / requests;
            return Ok(Interval {
                value,
                low: 0.0,
                high,
            });
        }
        let rests = self
            .connections
            .iter()
            .map(|one| one.errors as f64 - value * one.requests() as f64);
        let margin = self.margin_of(rests);
        Ok(Interval {
            value,
            low: (value - margin).max(0.0),
            high: (value + margin).min(1.0),
        })
    }

    fn has_connections(&self) -> Result<(), Missing> {
        match LEAST_CONNECTIONS.saturating_sub(self.connections.len()) {
            0 => Ok(()),
            missing => Err(Missing::Connections(missing)),
        }
    }

    /// Half of the interval of the share that lies below the quantile.
    fn margin(&self, share: f64) -> f64 {
        let Some(at) = self.quantile(share) else {
            return f64::INFINITY;
        };
        let rests = self.connections.iter().map(|one| {
            let requests = one.requests() as f64;
            below(one, at) - share * requests
        });
        self.margin_of(rests)
    }

    /// Half of the interval of a ratio of sums over connections: from what each is off by.
    fn margin_of(&self, rests: impl Iterator<Item = f64>) -> f64 {
        let connections = self.connections.len() as f64;
        let squares: f64 = rests.map(|rest| rest * rest).sum();
        let variance = connections / (connections - 1.0) * squares / (self.requests as f64).powi(2);
        student(connections - 1.0) * variance.sqrt()
    }
}

/// How many latencies of a connection lie below this one, in seconds.
fn below(connection: &Compared, at: f64) -> f64 {
    let of_bucket = |(bucket, n): &(u16, u32)| {
        let bucket = usize::from(*bucket);
        let [begin, end] = [bucket, bucket + 1].map(|n| bucket_begins(n).as_secs_f64());
        f64::from(*n) * ((at - begin) / (end - begin)).clamp(0.0, 1.0)
    };
    connection.latencies.iter().map(of_bucket).sum()
}

/// The quantile 0.975 of Student's distribution, by the expansion of Cornish and Fisher; from 19 degrees of freedom on to four places.
fn student(freedom: f64) -> f64 {
    const Z: f64 = 1.959_964;
    let terms = [
        (Z.powi(3) + Z) / 4.0,
        (5.0 * Z.powi(5) + 16.0 * Z.powi(3) + 3.0 * Z) / 96.0,
        (3.0 * Z.powi(7) + 19.0 * Z.powi(5) + 17.0 * Z.powi(3) - 15.0 * Z) / 384.0,
    ];
    let rest = terms
        .iter()
        .zip(1..)
        .map(|(term, n)| term / freedom.powi(n));
    Z + rest.sum::<f64>()
}

/// By how much a quantile of the latency of `treated` is above that of `held_out`, in seconds.
pub fn difference(
    treated: &Group,
    held_out: &Group,
    share: f64,
) -> Result<Interval, Vec<(&'static str, Missing)>> {
    both(treated.interval(share), held_out.interval(share))
}

/// By how much the share of errors of `treated` is above that of `held_out`.
pub fn errors(treated: &Group, held_out: &Group) -> Result<Interval, Vec<(&'static str, Missing)>> {
    both(treated.errors_interval(), held_out.errors_interval())
}

/// The name of the group that is left alone.
pub const HELD_OUT: &str = "held_out";

/// The name of the group that it is compared with.
pub const TREATED: &str = "treated";

fn both(
    treated: Result<Interval, Missing>,
    held_out: Result<Interval, Missing>,
) -> Result<Interval, Vec<(&'static str, Missing)>> {
    match (treated, held_out) {
        (Ok(treated), Ok(held_out)) => Ok(treated.minus(held_out)),
        (treated, held_out) => {
            let missing = [(HELD_OUT, held_out.err()), (TREATED, treated.err())];
            Err(missing
                .into_iter()
                .filter_map(|(group, missing)| Some((group, missing?)))
                .collect())
        }
    }
}

#[cfg(test)]
#[path = "estimate_tests.rs"]
mod tests;
