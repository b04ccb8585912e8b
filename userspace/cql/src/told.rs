//! [`Told`]: what is known of prepared statements, by what databases have said of their ids.
//!
//! Anybody who can be dialled can answer a PREPARE, and with any id. An id that its text [proves](crate::Proof) means
//! the same at every database, so that what is known of it holds for all. Any other id is the word of one database,
//! and holds for the flows to that one alone.
//!
//! - **Invariant**: what one database says of an id never changes what is known on flows to another.
//! - **Invariant**: an id that is not proven never takes the place of one that is, not even at its own database, unless
//!   the store is [`own_first`](Told::own_first).
//! - **Invariant**: a full store takes from the host that has told most, and from the teller first. Of what a host has
//!   told, others never push out the last part that is as large as a part for each host.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest id that is remembered. Cassandra's are 16 bytes (MD5).
pub const MAX_PREPARED_ID_BYTES: usize = 256;

/// How many statements of a host a full store looks at to find one that nobody used lately. More would hold
/// up every flow behind the lock.
const MAX_LOOKS: usize = 64;

/// A database, as its flows tell it from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Database {
    /// None: nobody knows.
    address: Option<SocketAddr>,
    /// The cookie of the network namespace in which that is dialled; 0: the agent's own.
    netns: u64,
}

impl Database {
    /// The database that clients reach by this address in the network namespace with this cookie, which is 0 for the
    /// agent's own.
    pub fn new(address: SocketAddr, netns: u64) -> Self {
        Self {
            address: Some(SocketAddr::new(address.ip().to_canonical(), address.port())),
            netns,
        }
    }

    /// The address and the cookie, as they were given.
    pub fn parts(&self) -> Option<(SocketAddr, u64)> {
        Some((self.address?, self.netns))
    }

    fn host(&self) -> Host {
        let address = self.address.map(|address| address.ip());
        Host(match address {
            Some(IpAddr::V4(ip)) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            Some(IpAddr::V6(ip)) if ip.is_loopback() => Ipv4Addr::LOCALHOST.into(),
            Some(IpAddr::V6(ip)) => Ipv6Addr::from_bits(ip.to_bits() & NETWORK).into(),
            Some(ip) => ip,
            None => Ipv4Addr::UNSPECIFIED.into(),
        })
    }
}

/// The part of an IPv6 address that names its network: within one, a host may have as many addresses as it likes
/// (RFC 4291 §2.5.4).
const NETWORK: u128 = !(u64::MAX as u128);

/// A host, whose databases share one part of a store: addresses that one user may listen at, whatever their ports and namespaces.
/// All loopback addresses are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Host(IpAddr);

/// The databases for which something is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// The id is proven: for all.
    Everywhere,
    /// The database has only said so: for that one.
    There,
}

/// Something that is known of an id.
#[derive(Debug)]
pub struct Kept<V> {
    /// The id.
    pub id: Arc<[u8]>,
    /// The knowledge.
    pub value: V,
    /// Since the store last looked.
    used: AtomicBool,
}

impl<V> Kept<V> {
    /// Has it stay longer than what nobody uses.
    #[inline]
    pub fn mark_used(&self) {
        // Reading first leaves the cache line shared between cores.
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
    }
}

/// See the module. Bounded by the sum of what its values weigh.
#[derive(Debug)]
pub struct Told<V> {
    most: usize,
    /// Set where a database's own word goes before what is proven.
    own_first: bool,
    weigh: fn(&[u8], &V) -> usize,
    proven: HashMap<Arc<[u8]>, Slot<V>>,
    /// The ids that are not proven, by the database that has given them. None is empty.
    said: HashMap<Database, HashMap<Arc<[u8]>, Slot<V>>>,
    /// The parts of all hosts that have told anything.
    hosts: HashMap<Host, Part>,
    /// Each of `hosts` once, with its weight.
    by_weight: BTreeSet<(usize, Host)>,
    weight: usize,
    len: usize,
}

#[derive(Debug)]
struct Slot<V> {
    kept: Arc<Kept<V>>,
    /// The host that has told it first.
    host: Host,
    weight: usize,
}

/// The part of a store that one host has told.
#[derive(Debug, Default)]
struct Part {
    weight: usize,
    /// Each of its slots once; the front is the next to be looked at.
    queue: VecDeque<Key>,
}

#[derive(Clone, Debug)]
struct Key {
    id: Arc<[u8]>,
    /// None: it is proven.
    of: Option<Database>,
}

impl<V> Told<V> {
    /// Holds so many values at most, and at least one.
    pub fn of_at_most(count: usize) -> Self {
        Self::weighing(count.max(1), |_, _| 1)
    }

    /// Holds values that weigh so much together, at most.
    pub fn weighing(most: usize, weigh: fn(&[u8], &V) -> usize) -> Self {
        Self {
            most,
            own_first: false,
            weigh,
            proven: HashMap::new(),
            said: HashMap::new(),
            hosts: HashMap::new(),
            by_weight: BTreeSet::new(),
            weight: 0,
            len: 0,
        }
    }

    /// Has a database's own word go before what is proven, on flows to that database. For those who read other texts than
    /// the database does, so that its ids do not follow from what they have read.
    #[must_use]
    pub fn own_first(mut self) -> Self {
        self.own_first = true;
        self
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// There are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The knowledge of an id on flows to this database.
    #[inline]
    pub fn get(&self, id: &[u8], database: Database) -> Option<&Arc<Kept<V>>> {
        let own = || self.said.get(&database)?.get(id);
        let proven = || self.proven.get(id);
        let slot = match self.own_first {
            true => own().or_else(proven),
            false => proven().or_else(own),
        }?;
        slot.kept.mark_used();
        Some(&slot.kept)
    }

    /// Whether an id is proven.
    pub fn is_proven(&self, id: &[u8]) -> bool {
        self.proven.contains_key(id)
    }

    /// Every value, and for which database it holds; `None`: for all.
    pub fn iter(&self) -> impl Iterator<Item = (Option<Database>, &Kept<V>)> {
        let proven = self.proven.values().map(|slot| (None, &*slot.kept));
        let said = self.said.iter().flat_map(|(database, said)| {
            let said = said.values();
            said.map(|slot| (Some(*database), &*slot.kept))
        });
        proven.chain(said)
    }

    /// Remembers what `by` tells of an id. True: something else had to go.
    pub fn put(&mut self, id: &[u8], by: Database, holds: Holds, value: V) -> bool {
        let weight = (self.weigh)(id, &value);
        let is_hidden = holds == Holds::There && self.is_proven(id) && !self.own_first;
        if id.len() > MAX_PREPARED_ID_BYTES || weight > self.most || is_hidden {
            return false;
        }
        let of = match holds {
            Holds::Everywhere => None,
            Holds::There => Some(by),
        };
        let id: Arc<[u8]> = id.into();
        let key = Key { id, of };
        let kept = Arc::new(Kept {
            id: key.id.clone(),
            value,
            used: AtomicBool::new(false),
        });
        if key.of.is_none() {
            // It has said something else before, or the same without a proof.
            let own = Key {
                of: Some(by),
                ..key.clone()
            };
            self.replace(&own, &kept, weight);
        }
        if let Some(host) = self.replace(&key, &kept, weight) {
            return self.make_room(0, host);
        }
        let host = by.host();
        let has_forgotten = self.make_room(weight, host);
        let slot = Slot { kept, host, weight };
        let slots = match key.of {
            None => &mut self.proven,
            Some(database) => self.said.entry(database).or_default(),
        };
        slots.insert(key.id.clone(), slot);
        self.part_becomes(host, |part| {
            part.weight += weight;
            part.queue.push_back(key);
        });
        self.weight += weight;
        self.len += 1;
        has_forgotten
    }

    /// Gives what is there a new value, and tells its host. None: it is not there.
    fn replace(&mut self, key: &Key, kept: &Arc<Kept<V>>, weight: usize) -> Option<Host> {
        let slot = self.slot(key)?;
        let (host, before) = (slot.host, slot.weight);
        (slot.kept, slot.weight) = (kept.clone(), weight);
        self.part_becomes(host, |part| part.weight = part.weight - before + weight);
        self.weight = self.weight - before + weight;
        Some(host)
    }

    fn slot(&mut self, key: &Key) -> Option<&mut Slot<V>> {
        match key.of {
            None => self.proven.get_mut(&key.id),
            Some(database) => self.said.get_mut(&database)?.get_mut(&key.id),
        }
    }

    /// Forgets until so much more, told by this host, has room. True: something was forgotten.
    fn make_room(&mut self, weight: usize, by: Host) -> bool {
        let mut has_forgotten = false;
        while self.weight + weight > self.most
            && let Some(&(largest, host)) = self.by_weight.last()
        {
            let own = self.hosts.get(&by).map_or(0, |part| part.weight);
            let is_own = own > 0 && own + weight >= largest;
            self.forget_one(if is_own { by } else { host });
            has_forgotten = true;
        }
        has_forgotten
    }

    /// Second chance: a used one goes to the back, unmarked; the first unused one is forgotten.
    fn forget_one(&mut self, host: Host) {
        let Some(mut part) = self.hosts.remove(&host) else {
            return;
        };
        self.by_weight.remove(&(part.weight, host));
        for _ in 0..MAX_LOOKS {
            let front = part.queue.front().and_then(|key| self.slot(key));
            if !front.is_some_and(|slot| slot.kept.used.swap(false, Ordering::Relaxed)) {
                break;
            }
            part.queue.rotate_left(1);
        }
        let gone = part.queue.pop_front().and_then(|key| self.remove(&key));
        if let Some(gone) = gone {
            part.weight -= gone.weight;
            self.weight -= gone.weight;
            self.len -= 1;
        }
        if !part.queue.is_empty() {
            self.by_weight.insert((part.weight, host));
            self.hosts.insert(host, part);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Slot<V>> {
        let Some(database) = key.of else {
            return self.proven.remove(&key.id);
        };
        let said = self.said.get_mut(&database)?;
        let gone = said.remove(&key.id);
        if said.is_empty() {
            self.said.remove(&database);
        }
        gone
    }

    fn part_becomes(&mut self, host: Host, change: impl FnOnce(&mut Part)) {
        let part = self.hosts.entry(host).or_default();
        self.by_weight.remove(&(part.weight, host));
        change(part);
        self.by_weight.insert((part.weight, host));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOST: usize = 100;

    fn at(address: &str) -> Database {
        Database::new(address.parse().unwrap(), 0)
    }

    fn known<V: Copy>(told: &Told<V>, id: &[u8], database: Database) -> Option<V> {
        told.get(id, database).map(|kept| kept.value)
    }

    /// Checks that the store's books are right.
    fn check<V>(told: &Told<V>) {
        let slots = || {
            told.proven
                .values()
                .chain(told.said.values().flat_map(HashMap::values))
        };
        assert_eq!(slots().count(), told.len);
        assert_eq!(slots().map(|slot| slot.weight).sum::<usize>(), told.weight);
        assert!(told.weight <= told.most);
        assert!(told.said.values().all(|said| !said.is_empty()));
        let parts = told.hosts.iter();
        let by_weight: BTreeSet<_> = parts.map(|(host, part)| (part.weight, *host)).collect();
        assert_eq!(by_weight, told.by_weight);
        for (host, part) in &told.hosts {
            let its = || slots().filter(|slot| slot.host == *host);
            assert_eq!(part.queue.len(), its().count());
            assert_eq!(part.weight, its().map(|slot| slot.weight).sum::<usize>());
        }
    }

    #[test]
    fn what_is_proven_holds_everywhere_and_what_is_said_there_alone() {
        let mut told = Told::of_at_most(MOST);
        let [real, other] = ["192.0.2.1:9042", "127.0.0.2:9042"].map(at);
        told.put(b"id", other, Holds::There, 'x');
        assert_eq!(known(&told, b"id", other), Some('x'));
        assert_eq!(known(&told, b"id", real), None);
        told.put(b"id", real, Holds::There, 'a');
        assert_eq!(known(&told, b"id", other), Some('x'));
        assert_eq!(known(&told, b"id", real), Some('a'));
        told.put(b"id", real, Holds::Everywhere, 'p');
        told.put(b"id", other, Holds::There, 'y');
        for database in [real, other, at("192.0.2.2:9042"), Database::default()] {
            assert_eq!(known(&told, b"id", database), Some('p'));
        }
        check(&told);
    }

    #[test]
    fn its_own_word_may_go_first_at_a_database_and_nowhere_else() {
        let mut told = Told::of_at_most(MOST).own_first();
        let [real, other] = ["192.0.2.1:9042", "127.0.0.2:9042"].map(at);
        told.put(b"id", real, Holds::There, 'a');
        told.put(b"id", other, Holds::Everywhere, 'p');
        assert_eq!(known(&told, b"id", real), Some('a'));
        told.put(b"id", other, Holds::There, 'x');
        assert_eq!(known(&told, b"id", other), Some('x'));
        assert_eq!(known(&told, b"id", Database::default()), Some('p'));
        // The last word counts.
        told.put(b"id", other, Holds::Everywhere, 'q');
        assert_eq!(known(&told, b"id", other), Some('q'));
        assert_eq!(known(&told, b"id", real), Some('a'));
        check(&told);
    }

    #[test]
    fn another_port_or_namespace_is_another_database() {
        let mut told = Told::of_at_most(MOST);
        let address = "192.0.2.1:9042".parse().unwrap();
        told.put(b"id", Database::new(address, 0), Holds::There, ());
        assert!(told.get(b"id", Database::new(address, 7)).is_none());
        assert!(told.get(b"id", at("192.0.2.1:9043")).is_none());
        assert!(told.get(b"id", at("[::ffff:192.0.2.1]:9042")).is_some());
    }

    #[test]
    fn who_invents_ids_pushes_out_his_own() {
        let mut told = Told::of_at_most(MOST);
        let real = at("192.0.2.1:9042");
        for n in 0..10_u8 {
            told.put(&[n], real, Holds::Everywhere, ());
        }
        // One user of this host has many addresses to listen at, and namespaces of his own.
        for n in 0..10 * MOST as u32 {
            let [_, _, a, b] = n.to_be_bytes();
            let invented = Database::new(([127, 0, a, b], 9042).into(), u64::from(n % 7));
            let holds = [Holds::There, Holds::Everywhere][n as usize % 2];
            told.put(&n.to_be_bytes(), invented, holds, ());
            let invented = Database::new((Ipv6Addr::from_bits(u128::from(n)), 9042).into(), 0);
            told.put(&n.to_le_bytes(), invented, Holds::There, ());
        }
        assert!((0..10_u8).all(|n| told.is_proven(&[n])));
        check(&told);
    }

    #[test]
    fn a_host_with_no_more_than_its_part_loses_nothing() {
        let mut told = Told::of_at_most(MOST);
        let hosts = [1, 2, 3, 4].map(|n| at(&format!("192.0.2.{n}:9042")));
        for n in 0..MOST as u8 {
            told.put(&[n], hosts[0], Holds::There, ());
        }
        for (of, host) in hosts.into_iter().enumerate().skip(1) {
            for n in 0..4 * MOST as u32 {
                told.put(
                    &[&[of as u8], &n.to_be_bytes()[..]].concat(),
                    host,
                    Holds::There,
                    (),
                );
            }
            check(&told);
        }
        let left = |database| told.said.get(&database).map_or(0, HashMap::len);
        assert!(hosts.into_iter().all(|host| left(host) == MOST / 4));
    }

    #[test]
    fn what_is_used_stays_as_long_as_something_else_can_go() {
        let mut told = Told::of_at_most(3);
        let database = at("192.0.2.1:9042");
        for id in [b"1", b"2", b"3"] {
            assert!(!told.put(id, database, Holds::There, ()));
        }
        for n in 0..1_000_u32 {
            assert!(told.get(b"1", database).is_some());
            assert!(told.put(&n.to_be_bytes(), database, Holds::There, ()));
        }
        assert!(told.get(b"1", database).is_some() && told.get(b"2", database).is_none());
        let mut told = Told::of_at_most(2 * MAX_LOOKS);
        for n in 0..2 * MAX_LOOKS {
            told.put(&n.to_be_bytes(), database, Holds::There, ());
            told.get(&n.to_be_bytes(), database);
        }
        assert!(told.put(b"new", database, Holds::There, ()));
        assert!(told.get(b"new", database).is_some());
        check(&told);
    }

    #[test]
    fn what_is_too_long_is_not_remembered() {
        let mut told = Told::weighing(10, |_, text: &&str| text.len());
        let database = at("192.0.2.1:9042");
        told.put(&[0; MAX_PREPARED_ID_BYTES + 1], database, Holds::There, "a");
        told.put(b"id", database, Holds::There, "more than 10");
        assert!(told.is_empty());
    }

    proptest! {
        #[test]
        fn the_books_are_right(puts: Vec<(u8, u8, bool, u8, bool)>, own_first: bool) {
            let mut told = Told::weighing(50, |_, value: &u8| usize::from(*value));
            told.own_first = own_first;
            for (id, host, everywhere, value, used) in puts {
                let by = Database::new(([192, 0, 2, host % 8], 9042).into(), 0);
                let holds = if everywhere { Holds::Everywhere } else { Holds::There };
                told.put(&[id % 16], by, holds, value % 20);
                if used {
                    told.get(&[id % 16], by);
                }
                check(&told);
            }
        }
    }
}
