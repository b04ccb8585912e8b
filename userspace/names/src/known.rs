//! [`Known`]: what is known of one name, as a function of answers and time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use policy::Endpoint;
use tokio::time::Instant;

use crate::{Failure, resolver::LookedUp};

/// A name is looked up again after at least this, however short its records hold: a change costs a policy that is compiled
/// and written anew.
pub const LOOK_UP_AGAIN_AFTER_AT_LEAST: Duration = Duration::from_secs(1);

/// And after at most this, however long they hold, so that a change is known within a minute.
pub const LOOK_UP_AGAIN_AFTER_AT_MOST: Duration = Duration::from_secs(60);

/// A name that stands for nothing is looked up again after this.
const AGAIN_AFTER_NOTHING: Duration = Duration::from_secs(5);

/// After a failure it is looked up again after the least time, and after twice as much with each further failure, up to this.
const AGAIN_AFTER_FAILURES: Duration = Duration::from_secs(30);

/// An address that a name stands for no longer keeps its rules for so long, from the first answer without it: drivers go on to dial
/// it, with pauses of up to a minute, and servers that answer with some of many addresses name it again. Afterwards it may be
/// somebody else's.
pub const LINGER: Duration = Duration::from_secs(120);

/// Addresses of one name. The largest clusters that are known have about a thousand nodes.
pub(crate) const MAX_ADDRESSES: usize = 1024;

/// The knowledge of a name.
#[derive(Debug)]
pub(crate) struct Known {
    addresses: BTreeMap<Endpoint, Seen>,
    answered: Option<Instant>,
    /// The failure since the last answer.
    failure: Option<Failure>,
    failures: u32,
    next: Instant,
    /// Addresses of the last answer for which there was no room.
    left_out: usize,
    /// Addresses of the last answer that no database can have.
    refused: usize,
}

/// An address of a name.
#[derive(Debug)]
struct Seen {
    /// The host of a service that has it.
    host: Option<Arc<str>>,
    /// The time of the first answer that should have had it and had not. None: the last one had it, or nobody can say.
    gone: Option<Instant>,
}

/// Whether what is known of a name can be relied on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// The last look-up had addresses.
    Known,
    /// The last look-up has failed: the addresses are those of an earlier one.
    Stale,
    /// The name stands for no address now.
    Absent,
    /// The name has never been resolved.
    Unknown,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 4] = [Self::Known, Self::Stale, Self::Absent, Self::Unknown];

    /// The state's name in metrics and lists.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Known => "known",
            Self::Stale => "stale",
            Self::Absent => "absent",
            Self::Unknown => "unknown",
        }
    }
}

impl Known {
    /// Nothing is known, and the name is to be looked up now.
    pub(crate) fn nothing(now: Instant) -> Self {
        Self {
            addresses: BTreeMap::new(),
            answered: None,
            failure: None,
            failures: 0,
            next: now,
            left_out: 0,
            refused: 0,
        }
    }

    /// Takes the result of a look-up. Returns whether the addresses are others now. `spread`, from 0 to 1, keeps the look-ups of
    /// many names and hosts apart.
    pub(crate) fn looked_up(
        &mut self,
        result: Result<LookedUp, Failure>,
        now: Instant,
        spread: f64,
    ) -> bool {
        let before: Vec<Endpoint> = self.addresses().copied().collect();
        let after = match result {
            Ok(found) => {
                let ttl = found.ttl;
                self.take(found, now);
                match self.failure {
                    None => ttl.clamp(LOOK_UP_AGAIN_AFTER_AT_LEAST, LOOK_UP_AGAIN_AFTER_AT_MOST),
                    Some(_) => self.pause(),
                }
            }
            Err(failure) if failure.is_answer() => {
                self.answered = Some(now);
                self.failures = 0;
                self.failure = Some(failure);
                for seen in self.addresses.values_mut() {
                    seen.gone.get_or_insert(now);
                }
                self.forget_old(now);
                AGAIN_AFTER_NOTHING
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                // Nobody has said that any is gone: their time begins when somebody does.
                self.failure = Some(failure);
                self.pause()
            }
        };
        self.next = now + after.mul_f64(1.0 - 0.1 * spread.clamp(0.0, 1.0));
        !self.addresses().eq(&before)
    }

    fn take(&mut self, found: LookedUp, now: Instant) {
        self.answered = Some(now);
        self.failures = match &found.missing {
            None => 0,
            Some(_) => self.failures.saturating_add(1),
        };
        self.left_out = found.too_many;
        self.refused = found.refused;
        for (endpoint, seen) in &mut self.addresses {
            let host = seen.host.as_ref();
            let missing = found.missing.as_ref();
            let may_be_there = missing.is_some_and(|missing| missing.may_have(endpoint, host));
            if !found.endpoints.contains(endpoint) && !may_be_there {
                seen.gone.get_or_insert(now);
            }
        }
        self.forget_old(now);
        for endpoint in &found.endpoints {
            let has_room = self.addresses.contains_key(endpoint)
                || self.addresses.len() < MAX_ADDRESSES
                || self.make_room(&found.endpoints);
            if has_room {
                let host = found.hosts.get(endpoint).cloned();
                self.addresses.insert(*endpoint, Seen { host, gone: None });
            } else {
                self.left_out += 1;
            }
        }
        self.failure = found.missing.map(|missing| missing.why);
    }

    /// Takes out an address that the last answer did not have: the one that is gone for longest, or else one of which nobody can say.
    fn make_room(&mut self, wanted: &BTreeSet<Endpoint>) -> bool {
        let others = self.addresses.iter();
        let others = others.filter(|(endpoint, _)| !wanted.contains(endpoint));
        let oldest = others.min_by_key(|(_, seen)| (seen.gone.is_none(), seen.gone));
        let oldest = oldest.map(|(endpoint, _)| *endpoint);
        oldest.is_some_and(|oldest| self.addresses.remove(&oldest).is_some())
    }

    fn forget_old(&mut self, now: Instant) {
        let lingers = |seen: &Seen| seen.gone.is_none_or(|gone| now - gone < LINGER);
        self.addresses.retain(|_, seen| lingers(seen));
    }

    fn pause(&self) -> Duration {
        let doubled = 1_u32.checked_shl(self.failures.saturating_sub(1));
        let pause = doubled.and_then(|n| LOOK_UP_AGAIN_AFTER_AT_LEAST.checked_mul(n));
        pause.map_or(AGAIN_AFTER_FAILURES, |pause| {
            pause.min(AGAIN_AFTER_FAILURES)
        })
    }

    /// The addresses for which rules hold, in their order.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = &Endpoint> {
        self.addresses.keys()
    }

    /// Addresses that the name does not stand for any more, and that rules still hold for.
    pub(crate) fn lingering(&self) -> usize {
        let gone = self.addresses.values().filter(|seen| seen.gone.is_some());
        gone.count()
    }

    /// The time of the next look-up.
    pub(crate) fn next(&self) -> Instant {
        self.next
    }

    /// The time of the last answer.
    pub(crate) fn answered(&self) -> Option<Instant> {
        self.answered
    }

    /// Why the last look-up has not brought everything.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Addresses for which there was no room.
    pub(crate) fn left_out(&self) -> usize {
        self.left_out
    }

    /// Addresses that no database can have.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    /// Whether what is known can be relied on.
    pub(crate) fn state(&self) -> State {
        match (&self.failure, self.answered) {
            (_, None) => State::Unknown,
            (None, _) => State::Known,
            (Some(failure), _) if failure.is_answer() => State::Absent,
            (Some(_), _) => State::Stale,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::resolver::Missing;

    const SECOND: Duration = Duration::from_secs(1);

    fn found(last: &[u8], ttl: u64) -> LookedUp {
        let at = last
            .iter()
            .map(|n| Endpoint::host(IpAddr::from([10, 1, 0, *n])));
        LookedUp {
            endpoints: at.collect(),
            ttl: SECOND * ttl as u32,
            ..LookedUp::default()
        }
    }

    fn held(known: &Known) -> Vec<u8> {
        let last = known.addresses().map(|at| match at.ip {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(_) => 0,
        });
        last.collect()
    }

    fn wait(known: &Known, now: Instant) -> f64 {
        (known.next() - now).as_secs_f64()
    }

    #[test]
    fn a_name_is_looked_up_again_when_its_records_have_expired_within_bounds() {
        let now = Instant::now();
        for (ttl, wanted) in [(0, 1.0), (7, 7.0), (86_400, 60.0)] {
            let mut known = Known::nothing(now);
            assert_eq!(known.next(), now);
            assert!(known.looked_up(Ok(found(&[1], ttl)), now, 0.0));
            assert_eq!(wait(&known, now), wanted);
            assert!(!known.looked_up(Ok(found(&[1], ttl)), now, 1.0));
            assert!((wait(&known, now) - 0.9 * wanted).abs() < 1e-6);
        }
    }

    #[test]
    fn an_address_that_is_gone_lingers() {
        let start = Instant::now();
        let mut known = Known::nothing(start);
        known.looked_up(Ok(found(&[1, 2], 1)), start, 0.0);
        let later = start + SECOND;
        assert!(known.looked_up(Ok(found(&[2, 3], 1)), later, 0.0));
        assert_eq!((held(&known), known.lingering()), (vec![1, 2, 3], 1));
        assert!(!known.looked_up(Ok(found(&[2, 3], 1)), start + LINGER, 0.0));
        assert!(known.looked_up(Ok(found(&[2, 3], 1)), later + LINGER, 0.0));
        assert_eq!(held(&known), [2, 3]);
    }

    #[test]
    fn failures_in_between_prolong_nothing() {
        let start = Instant::now();
        let mut known = Known::nothing(start);
        known.looked_up(Ok(found(&[1, 2], 1)), start, 0.0);
        for n in 0..LINGER.as_secs() as u32 {
            let now = start + SECOND * n;
            match n % 2 {
                0 => known.looked_up(Ok(found(&[2], 1)), now, 0.0),
                _ => known.looked_up(Err(Failure::Late), now, 0.0),
            };
            assert_eq!(held(&known), [1, 2], "{n}");
        }
        known.looked_up(Err(Failure::Late), start + LINGER * 2, 0.0);
        assert_eq!(held(&known), [1, 2]);
        known.looked_up(Ok(found(&[2], 1)), start + LINGER * 2, 0.0);
        assert_eq!(held(&known), [2]);
    }

    #[test]
    fn failures_keep_the_last_good_addresses_for_ever() {
        let mut now = Instant::now();
        let mut known = Known::nothing(now);
        assert!(!known.looked_up(Err(Failure::Late), now, 0.0));
        assert_eq!(known.state(), State::Unknown);
        known.looked_up(Ok(found(&[1], 1)), now, 0.0);
        let mut pauses = Vec::new();
        for _ in 0..40 {
            assert!(!known.looked_up(Err(Failure::ServerFailed), now, 0.0));
            pauses.push(wait(&known, now));
            now += LINGER;
        }
        assert_eq!(pauses[..6], [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]);
        assert_eq!(pauses.last(), Some(&30.0));
        assert_eq!((held(&known), known.state()), (vec![1], State::Stale));
        // And then they have their time as any others.
        known.looked_up(Ok(found(&[2], 1)), now, 0.0);
        assert_eq!((held(&known), known.state()), (vec![1, 2], State::Known));
        known.looked_up(Ok(found(&[2], 1)), now + LINGER, 0.0);
        assert_eq!(held(&known), [2]);
    }

    #[test]
    fn a_name_that_is_gone_stands_for_nothing_after_a_while() {
        let start = Instant::now();
        let mut known = Known::nothing(start);
        known.looked_up(Ok(found(&[1], 1)), start, 0.0);
        assert!(!known.looked_up(Err(Failure::NoSuchName), start + SECOND, 0.0));
        assert_eq!((held(&known), known.state()), (vec![1], State::Absent));
        assert!(known.looked_up(Err(Failure::NoSuchName), start + SECOND + LINGER, 0.0));
        assert!(held(&known).is_empty());
        assert_eq!(known.state(), State::Absent);
    }

    #[test]
    fn half_an_answer_takes_nothing_away_of_the_other_half() {
        let start = Instant::now();
        let mut known = Known::nothing(start);
        let v6 = Endpoint::host("fd00::1".parse().unwrap());
        let mut both = found(&[1], 1);
        both.endpoints.insert(v6);
        known.looked_up(Ok(both), start, 0.0);
        let half = || LookedUp {
            missing: Some(Missing::of_family(Failure::Late, true)),
            ..found(&[2], 50)
        };
        let mut now = start + LINGER * 2;
        known.looked_up(Ok(half()), now, 0.0);
        assert_eq!((held(&known), known.state()), (vec![1, 2, 0], State::Stale));
        assert_eq!((known.lingering(), wait(&known, now)), (1, 1.0));
        // For ever, and what is gone goes all the same.
        for _ in 0..4 {
            now += LINGER;
            known.looked_up(Ok(half()), now, 0.0);
            assert_eq!(held(&known), [2, 0]);
        }
        known.looked_up(Ok(found(&[2], 1)), now, 0.0);
        known.looked_up(Ok(found(&[2], 1)), now + LINGER, 0.0);
        assert_eq!(held(&known), [2]);
    }

    #[test]
    fn a_host_that_does_not_answer_keeps_its_own_addresses_alone() {
        let start = Instant::now();
        let mut known = Known::nothing(start);
        let of = |last: &[u8], host: &str| {
            let found = found(last, 1);
            let hosts = found.endpoints.iter().map(|at| (*at, Arc::from(host)));
            LookedUp {
                hosts: hosts.collect(),
                ..found
            }
        };
        let (a, b) = (of(&[1, 2], "a"), of(&[3], "b"));
        let mut both = of(&[], "");
        for one in [a, b] {
            both.endpoints.extend(one.endpoints);
            both.hosts.extend(one.hosts);
        }
        known.looked_up(Ok(both), start, 0.0);
        let half = || LookedUp {
            missing: Some(Missing::of_host(Failure::Late, "b".into())),
            ..of(&[1], "a")
        };
        known.looked_up(Ok(half()), start + SECOND, 0.0);
        assert_eq!((held(&known), known.lingering()), (vec![1, 2, 3], 1));
        known.looked_up(Ok(half()), start + SECOND + LINGER, 0.0);
        assert_eq!(held(&known), [1, 3]);
    }

    #[test]
    fn addresses_are_bounded_and_old_ones_go_first() {
        let now = Instant::now();
        let many = |from: u32, n: u32| LookedUp {
            endpoints: (from..from + n)
                .map(|n| Endpoint::host(IpAddr::from(((10 << 24) + n).to_be_bytes())))
                .collect(),
            ..LookedUp::default()
        };
        let most = MAX_ADDRESSES as u32;
        let mut known = Known::nothing(now);
        known.looked_up(Ok(many(0, most + 5)), now, 0.0);
        assert_eq!(
            (known.addresses().count(), known.left_out()),
            (MAX_ADDRESSES, 5)
        );
        let later = now + SECOND;
        known.looked_up(Ok(many(most * 2, most)), later, 0.0);
        assert_eq!(
            (known.addresses().count(), known.left_out()),
            (MAX_ADDRESSES, 0)
        );
        assert_eq!(known.lingering(), 0);
    }
}
