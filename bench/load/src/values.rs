//! The contents of requests: keys in their forms, and bytes that are cheap and never the same twice
//! in a row (a slice of a pool of random bytes; compression finds as little as in real data of that
//! kind, and nothing is computed per byte).

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use crate::{
    keys::{random::Random, zipfian::fnv},
    order::Seed,
    workload::{Bind, Job, Step},
};

/// Offsets to cut a value from: more than a value is long, and within the second level cache.
const POOL_BYTES: usize = 64 << 10;

/// Bigints of a thread: 10^12 of them, and of a generator: as many for each of 1,024 threads.
const THREAD_SHIFT: u32 = 40;
const GENERATOR_SHIFT: u32 = 50;

/// The letters of texts: 64 of them, so that a byte gives one.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// The values of a thread.
#[derive(Clone, Debug)]
pub struct Values {
    pool: Arc<Pool>,
    random: Random,
    /// The last bigint.
    counter: i64,
}

#[derive(Debug)]
struct Pool {
    bytes: Vec<u8>,
    letters: Vec<u8>,
}

impl Values {
    /// Makes the values for this job.
    pub fn new(job: &Job, seed: u64) -> Self {
        let longest = job.operations.iter().flat_map(|o| &o.steps);
        let longest = longest.flat_map(binds).map(length).max().unwrap_or(0);
        let mut random = Random::new(seed, u64::MAX);
        let bytes: Vec<u8> = (0..(POOL_BYTES + longest).div_ceil(8))
            .flat_map(|_| random.number().to_le_bytes())
            .collect();
        let letter = |byte: &u8| *LETTERS.get(usize::from(byte % 64)).unwrap_or(&b'-');
        let letters = bytes.iter().map(letter).collect();
        Self {
            pool: Arc::new(Pool { bytes, letters }),
            random,
            counter: 0,
        }
    }

    /// Makes other values from the same pool for this thread.
    #[must_use]
    pub fn for_thread(&self, seed: Seed, thread: u64) -> Self {
        Self {
            pool: Arc::clone(&self.pool),
            random: Random::new(seed.value, thread ^ (1 << 32)),
            // Threads count up in ranges of their own, and so do generators.
            counter: ((seed.number as i64) << GENERATOR_SHIFT) | ((thread as i64) << THREAD_SHIFT),
        }
    }

    /// A value as CQL has it, without its length.
    pub fn put_cql(&mut self, bind: Bind, key: u64, out: &mut Vec<u8>) {
        match bind {
            Bind::Key | Bind::KeyText | Bind::Value(_) | Bind::Text(_) => {
                self.put_text(bind, key, out);
            }
            Bind::Int(below) => out.extend_from_slice(&self.int(below).to_be_bytes()),
            Bind::Bigint => out.extend_from_slice(&self.bigint().to_be_bytes()),
            Bind::Now => out.extend_from_slice(&now_ms().to_be_bytes()),
        }
    }

    /// A value as Redis has it.
    pub fn put_text(&mut self, bind: Bind, key: u64, out: &mut Vec<u8>) {
        match bind {
            Bind::Key => put_digits(key, KEY_DIGITS, out),
            Bind::KeyText => {
                out.extend_from_slice(b"user");
                put_digits(fnv(key), 1, out);
            }
            Bind::Value(bytes) => {
                let from = self.offset();
                out.extend_from_slice(cut(&self.pool.bytes, from, bytes));
            }
            Bind::Text(characters) => {
                let from = self.offset();
                out.extend_from_slice(cut(&self.pool.letters, from, characters));
            }
            Bind::Int(below) => put_digits(u64::from(self.int(below).unsigned_abs()), 1, out),
            Bind::Bigint => put_digits(self.bigint().unsigned_abs(), 1, out),
            Bind::Now => put_digits(now_ms().unsigned_abs(), 1, out),
        }
    }

    /// Returns an int from 0 up to, and without, this.
    fn int(&mut self, below: i32) -> i32 {
        let below = u64::try_from(below).unwrap_or(1);
        i32::try_from(self.random.below(below)).unwrap_or(0)
    }

    /// Returns a bigint, one more than the last.
    fn bigint(&mut self) -> i64 {
        self.counter += 1;
        self.counter
    }

    fn offset(&mut self) -> usize {
        self.random.below(POOL_BYTES as u64) as usize
    }
}

/// cassandra-stress's keys have ten.
const KEY_DIGITS: usize = 10;

/// Returns the present time in ms.
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

fn cut(pool: &[u8], from: usize, bytes: usize) -> &[u8] {
    pool.get(from..from + bytes).unwrap_or_default()
}

/// Writes a number in decimal, with zeros in front up to this many digits.
fn put_digits(number: u64, at_least: usize, out: &mut Vec<u8>) {
    // u64::MAX has twenty digits.
    let mut digits = [b'0'; 20];
    let mut rest = number;
    let mut used = 0;
    for digit in digits.iter_mut().rev() {
        if rest == 0 && used >= at_least {
            break;
        }
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
        used += 1;
    }
    out.extend_from_slice(digits.get(digits.len() - used..).unwrap_or_default());
}

/// The binds of a step.
pub fn binds(step: &Step) -> Vec<Bind> {
    match step {
        Step::Statement { bind, .. } | Step::Batch { bind, .. } => bind.clone(),
        Step::Redis { command, .. } => command
            .iter()
            .filter_map(|word| crate::workload::words::parse(word).ok())
            .flatten()
            .filter_map(|part| match part {
                crate::workload::words::Part::Bind(bind) => Some(bind),
                crate::workload::words::Part::Literal(_) => None,
            })
            .collect(),
    }
}

/// Returns the bytes of the values in a step's request.
pub fn bytes(step: &Step) -> usize {
    let count = match step {
        Step::Statement { .. } => 1,
        Step::Batch { count, .. } | Step::Redis { count, .. } => *count,
    };
    let all: usize = binds(step).into_iter().map(length).sum();
    all.saturating_mul(count)
}

fn length(bind: Bind) -> usize {
    match bind {
        Bind::Value(length) | Bind::Text(length) => length,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::tests::job;

    const SEED: Seed = Seed {
        value: 1,
        number: 1,
    };

    fn values() -> Values {
        Values::new(&job(&["value:100", "text:20"]), 1).for_thread(SEED, 3)
    }

    fn text(values: &mut Values, bind: Bind, key: u64) -> String {
        let mut out = Vec::new();
        values.put_text(bind, key, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn keys_have_their_forms() {
        let mut v = values();
        assert_eq!(text(&mut v, Bind::Key, 7), "0000000007");
        assert_eq!(text(&mut v, Bind::Key, 12_345_678_901), "12345678901");
        assert_eq!(text(&mut v, Bind::KeyText, 0), "user6284781860667377211");
    }

    #[test]
    fn values_are_as_long_as_asked_and_differ() {
        let mut v = values();
        let mut value = || {
            let mut out = Vec::new();
            v.put_cql(Bind::Value(100), 0, &mut out);
            out
        };
        let (a, b) = (value(), value());
        assert_eq!((a.len(), b.len()), (100, 100));
        assert_ne!(a, b);
        let (a, b) = (
            text(&mut v, Bind::Text(20), 0),
            text(&mut v, Bind::Text(20), 0),
        );
        assert!(a.len() == 20 && a != b, "{a} {b}");
        assert!(a.bytes().all(|b| LETTERS.contains(&b)), "{a}");
    }

    #[test]
    fn numbers_count_up_and_are_nobody_elses() {
        let mut v = values();
        assert!((0..1_000).all(|_| (0..5).contains(&v.int(5))));
        assert_eq!(v.bigint() + 1, v.bigint());
        assert_ne!(values().for_thread(SEED, 4).bigint(), values().bigint());
        let next = Seed { number: 2, ..SEED };
        assert_ne!(values().for_thread(next, 3).bigint(), values().bigint());
        let now: i64 = text(&mut v, Bind::Now, 0).parse().unwrap();
        assert!((now_ms() - now).abs() < 5_000);
        let mut out = Vec::new();
        v.put_cql(Bind::Int(9), 0, &mut out);
        v.put_cql(Bind::Bigint, 0, &mut out);
        v.put_cql(Bind::Now, 0, &mut out);
        assert_eq!(out.len(), 4 + 8 + 8);
    }
}
