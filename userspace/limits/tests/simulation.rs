//! A fleet in one process: the hosts' and the leader's own code, with a clock, a store and a network that are simulated.
//!
//! Twenty hosts hold a tenant to 1,000 requests a second, while demands jump, the store goes away, hosts are cut off, die and come
//! back, and the leader is among them. Each run is repeated exactly by its seed.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "tests say what they expect by failing, and so do their helpers"
)]

use std::{collections::BTreeMap, sync::Arc};

use limits::{
    Book, FLOOR, HEADROOM, LEASE_PERIODS, Levels, Limit, Member, PERIOD, Record, Share,
    WAITS_IN_LEASE,
};

const HOSTS: usize = 20;
const RATE: f64 = 1_000.0;

/// Steps of the clock in a second.
const STEPS: usize = 200;

/// Steps after which the store lets go of a host that it has not heard.
const LEASE: usize = LEASE_PERIODS as usize * STEPS;

/// Steps that a host waits at most until it tries again to reach the store.
const LONGEST_WAIT: usize = LEASE / WAITS_IN_LEASE as usize;

/// Clients, by what they do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Clients {
    /// So many requests come in a second, by chance; what finds no token is refused.
    Open(f64),
    /// So many connections each ask again when they are answered, after so many steps; what finds no token waits.
    Closed(usize, usize),
}

struct Host {
    name: String,
    member: Member,
    limit: Arc<Limit>,
    share: Arc<Share>,
    is_alive: bool,
    is_cut_off: bool,
    /// The step at which it tries again to reach the store.
    tries_at: usize,
    /// Whether its record hangs on the lease of its session, and not on that of the one before.
    is_published: bool,
    lease_ends: usize,
    clients: Clients,
    tokens: f64,
    waiting: usize,
    /// Steps at which connections ask again.
    thinking: Vec<usize>,
    next_look: usize,
    passed: f64,
}

impl Host {
    fn new(number: usize, begins: usize) -> Self {
        let limit = Arc::new(Limit::new("shop.user", RATE));
        let mut member = Member::default();
        member.hold([&limit]);
        Self {
            name: format!("h{number}"),
            member,
            share: limit.share("alice"),
            limit,
            is_alive: true,
            is_cut_off: false,
            tries_at: 0,
            is_published: false,
            lease_ends: 0,
            clients: Clients::Open(0.0),
            tokens: 1.0,
            waiting: 0,
            thinking: Vec::new(),
            next_look: begins,
            passed: 0.0,
        }
    }

    fn serve(&mut self, clients: Clients, now: usize) {
        self.clients = clients;
        self.waiting = 0;
        self.thinking = match clients {
            Clients::Open(_) => Vec::new(),
            Clients::Closed(connections, _) => vec![now; connections],
        };
    }

    /// A step of the bucket and of the clients, as `throttle` has it with a burst of a second.
    fn pass(&mut self, now: usize, random: &mut fastrand::Rng) {
        let rate = match self.share.rate() {
            Some(rate) => rate,
            None => {
                self.share = self.limit.share("alice");
                self.share.rate().unwrap()
            }
        };
        self.tokens = (self.tokens + rate / STEPS as f64).min(rate.max(1.0));
        let mut take = |tokens: &mut f64| {
            let has = *tokens >= 1.0;
            if has {
                *tokens -= 1.0;
                self.passed += 1.0;
            }
            has
        };
        match self.clients {
            Clients::Open(rate) => {
                for _ in 0..poisson(rate / STEPS as f64, random) {
                    let has = take(&mut self.tokens);
                    self.share.count(!has);
                }
            }
            Clients::Closed(_, thinks) => {
                while self.waiting > 0 && take(&mut self.tokens) {
                    self.waiting -= 1;
                    self.thinking.push(now + thinks);
                }
                let due = self.thinking.iter().filter(|at| **at <= now).count();
                self.thinking.retain(|at| *at > now);
                for _ in 0..due {
                    let has = self.waiting == 0 && take(&mut self.tokens);
                    self.share.count(!has);
                    match has {
                        true => self.thinking.push(now + thinks),
                        false => self.waiting += 1,
                    }
                }
            }
        }
    }
}

fn poisson(mean: f64, random: &mut fastrand::Rng) -> usize {
    let (least, mut product, mut number) = ((-mean).exp(), 1.0, 0);
    loop {
        product *= random.f64();
        if product <= least {
            return number;
        }
        number += 1;
    }
}

/// A message on its way.
enum Sent {
    Record(String, u64, Record),
    Gone(String),
    Levels(usize, Levels),
}

struct Fleet {
    now: usize,
    random: fastrand::Rng,
    hosts: Vec<Host>,
    store_is_away: bool,
    revision: u64,
    /// The store's records.
    records: BTreeMap<String, (u64, Record)>,
    leader: Option<(usize, Book)>,
    under_way: Vec<(usize, Sent)>,
    /// Requests that have passed, by second.
    passed: Vec<f64>,
    written: usize,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let hosts = (0..HOSTS).map(|number| Host::new(number, random.usize(..STEPS)));
        Self {
            now: 0,
            hosts: hosts.collect(),
            random,
            store_is_away: false,
            revision: 1,
            records: BTreeMap::new(),
            leader: None,
            under_way: Vec::new(),
            passed: Vec::new(),
            written: 0,
        }
    }

    fn serve(&mut self, clients: impl Fn(usize, &mut fastrand::Rng) -> Clients) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            host.serve(clients(number, &mut self.random), self.now);
        }
    }

    fn reaches_store(&self, number: usize) -> bool {
        let host = &self.hosts[number];
        host.is_alive && !host.is_cut_off && !self.store_is_away && self.now >= host.tries_at
    }

    /// Has the store come back. Each host finds that out when its wait is over.
    fn come_back(&mut self) {
        self.store_is_away = false;
        for host in &mut self.hosts {
            host.tries_at = self.now + self.random.usize(..LONGEST_WAIT);
            host.member.session_ended();
            host.is_published = false;
        }
    }

    fn send(&mut self, sent: Sent) {
        let delay = 1 + self.random.usize(..10);
        self.under_way.push((self.now + delay, sent));
    }

    fn run(&mut self, seconds: usize) {
        for _ in 0..seconds {
            self.passed.push(0.0);
            for _ in 0..STEPS {
                self.step();
            }
        }
    }

    fn step(&mut self) {
        self.now += 1;
        // Order is kept from one sender to one receiver: the store's revisions do not overtake each other.
        let (arrived, later) = std::mem::take(&mut self.under_way)
            .into_iter()
            .partition(|(at, _)| *at <= self.now);
        self.under_way = later;
        let arrived: Vec<(usize, Sent)> = arrived;
        for (_, sent) in arrived {
            self.arrive(sent);
        }
        self.keep_leases();
        self.lead();
        for number in 0..HOSTS {
            if !self.hosts[number].is_alive {
                continue;
            }
            if self.now >= self.hosts[number].next_look {
                self.look(number);
            }
            let host = &mut self.hosts[number];
            host.pass(self.now, &mut self.random);
            *self.passed.last_mut().unwrap() += std::mem::take(&mut host.passed);
        }
    }

    fn arrive(&mut self, sent: Sent) {
        let book = self.leader.as_mut().map(|(_, book)| book);
        match (sent, book) {
            (Sent::Record(host, revision, record), Some(book)) => book.put(&host, revision, record),
            (Sent::Gone(host), Some(book)) => book.remove(&host),
            (Sent::Levels(number, levels), _) => {
                if self.reaches_store(number) {
                    self.hosts[number].member.heard(&levels);
                }
            }
            (_, None) => {}
        }
    }

    /// The store lets go of whom it has not heard, while it is there to do so.
    fn keep_leases(&mut self) {
        if self.store_is_away {
            for host in &mut self.hosts {
                host.lease_ends += 1;
            }
            return;
        }
        for number in 0..HOSTS {
            if self.reaches_store(number) && self.hosts[number].is_published {
                self.hosts[number].lease_ends = self.now + LEASE;
            } else if self.hosts[number].lease_ends == self.now {
                let name = self.hosts[number].name.clone();
                self.records.remove(&name);
                self.hosts[number].member.session_ended();
                self.send(Sent::Gone(name));
                self.leader.take_if(|(leader, _)| *leader == number);
            }
        }
    }

    fn lead(&mut self) {
        if self.leader.is_none() {
            let Some(number) = (0..HOSTS).find(|number| self.reaches_store(*number)) else {
                return;
            };
            let mut book = Book::default();
            for (host, (revision, record)) in &self.records {
                book.put(host, *revision, record.clone());
            }
            self.leader = Some((number, book));
        }
        let every = STEPS * PERIOD.as_millis() as usize / 2_000;
        let Some((number, book)) = &self.leader else {
            return;
        };
        if self.now.is_multiple_of(every) && self.reaches_store(*number) {
            let levels = book.levels();
            for number in 0..HOSTS {
                self.send(Sent::Levels(number, levels.clone()));
            }
        }
    }

    fn look(&mut self, number: usize) {
        let reaches = self.reaches_store(number);
        let host = &mut self.hosts[number];
        host.next_look = self.now + STEPS;
        host.member.look(1.0);
        if !reaches {
            return;
        }
        if let Some(record) = host.member.record() {
            self.revision += 1;
            self.written += 1;
            host.member.published(self.revision);
            host.is_published = true;
            let name = host.name.clone();
            self.records
                .insert(name.clone(), (self.revision, record.clone()));
            self.under_way
                .push((self.now + 2, Sent::Record(name, self.revision, record)));
        }
    }

    fn kill(&mut self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            self.hosts[number].is_alive = false;
        }
    }

    fn restart(&mut self, numbers: std::ops::Range<usize>) {
        for number in numbers {
            let clients = self.hosts[number].clients;
            let lease_ends = self.hosts[number].lease_ends;
            let mut host = Host::new(number, self.now + self.random.usize(1..STEPS));
            host.lease_ends = lease_ends;
            host.serve(clients, self.now);
            self.hosts[number] = host;
        }
    }

    /// The requests that passed in a second, over the last few.
    fn last(&self, seconds: usize) -> f64 {
        let last = self.passed.iter().rev().take(seconds);
        last.sum::<f64>() / seconds as f64
    }

    fn holds(&self, what: &str) {
        let last = self.last(30);
        assert!(
            (last - RATE).abs() <= RATE * 0.05,
            "{what}: {last} a second"
        );
    }

    /// No second has had more than a rate, with what is named beside it, and what buckets had saved.
    fn never_exceeds(&self, beside: f64) {
        let most = RATE * (1.0 + HEADROOM + FLOOR) + beside;
        for (second, passed) in self.passed.windows(10).enumerate() {
            let passed = passed.iter().sum::<f64>() / 10.0;
            // A bucket that was full has a second's requests.
            assert!(
                passed <= most + RATE / 10.0,
                "{passed} a second, {second} s after the start"
            );
        }
    }
}

/// Clients of which there are always enough for the whole rate.
fn demands(kind: usize) -> impl Fn(usize, &mut fastrand::Rng) -> Clients {
    move |number, random| match kind {
        0 => Clients::Open(100.0),
        1 if number == 0 => Clients::Open(5_000.0),
        1 => Clients::Open(40.0),
        2 if number < 2 => Clients::Open(3_000.0),
        2 => Clients::Open(0.0),
        3 if number < 5 => Clients::Closed(4, 1),
        3 => Clients::Closed(0, 1),
        4 if number == 0 => Clients::Closed(32, 1),
        4 => Clients::Closed(1, 5),
        5 if number % 2 == 0 => Clients::Open(20.0),
        5 => Clients::Open(200.0),
        6 => Clients::Open(random.f64() * 150.0 + 20.0),
        _ if number % 2 == 0 => Clients::Open(random.f64() * 120.0 + 20.0),
        _ => Clients::Closed(random.usize(4..10), 2),
    }
}

const KINDS: usize = 8;

#[test]
fn twenty_hosts_hold_a_rate_through_everything() {
    for seed in 0..2 {
        for kind in 0..KINDS {
            let what = |now: &str| format!("seed {seed}, demands {kind}: {now}");
            let mut fleet = Fleet::new(seed);
            fleet.serve(demands(kind));
            fleet.run(40);
            fleet.holds(&what("from the start"));
            let next = (kind + 3) % KINDS;
            fleet.serve(demands(next));
            fleet.run(40);
            fleet.holds(&what("after a jump"));
            fleet.store_is_away = true;
            fleet.run(30);
            fleet.holds(&what("without the store"));
            fleet.come_back();
            fleet.run(30);
            fleet.holds(&what("with the store again"));
            // Who leads is among those who die.
            fleet.serve(demands(0));
            fleet.run(30);
            fleet.kill(0..4);
            fleet.run(30);
            fleet.holds(&what("through deaths"));
            fleet.restart(0..4);
            fleet.run(30);
            fleet.holds(&what("with them again"));
            // A newcomer has its first share before anybody knows of it.
            fleet.never_exceeds(0.0);
            let seconds = fleet.passed.len();
            assert!(
                fleet.written <= HOSTS * seconds,
                "a record for each look at most"
            );
        }
    }
}

/// A store that was away for much longer than a lease lets go of nobody who still has a share: all are back before their leases end.
#[test]
fn hosts_that_come_back_one_by_one_do_not_count_as_gone() {
    for seed in 0..8 {
        let mut fleet = Fleet::new(seed);
        fleet.serve(demands(0));
        fleet.run(40);
        fleet.store_is_away = true;
        fleet.run(30);
        fleet.come_back();
        for second in 0..30 {
            fleet.run(1);
            // No host has seen its record end.
            assert_eq!(fleet.records.len(), HOSTS, "seed {seed}, {second} s after");
        }
        fleet.holds(&format!("seed {seed}: with the store again"));
        fleet.never_exceeds(0.0);
    }
}

/// A host that alone does not reach the store keeps its share, which the others have, too, when its lease has ended: that is the
/// most by which the rate is exceeded.
#[test]
fn a_host_that_is_cut_off_counts_twice_and_no_more() {
    let mut fleet = Fleet::new(11);
    fleet.serve(demands(0));
    fleet.run(30);
    fleet.hosts[3].is_cut_off = true;
    fleet.run(40);
    let twice = RATE / HOSTS as f64;
    assert!(
        (fleet.last(30) - RATE - twice).abs() < RATE * 0.02,
        "{}",
        fleet.last(30)
    );
    fleet.hosts[3].is_cut_off = false;
    fleet.run(35);
    fleet.holds("with it again");
    fleet.never_exceeds(twice);
}

/// While there is more demand than there are tokens everywhere, every host has its part.
#[test]
fn nobody_starves() {
    let mut fleet = Fleet::new(5);
    fleet.serve(|number, _| match number {
        0 => Clients::Open(20_000.0),
        _ => Clients::Open(30.0),
    });
    fleet.run(30);
    let before = fleet.hosts[7].share.rate().unwrap();
    assert!(before > 28.0, "{before}");
    let fair = fleet.hosts[0].share.rate().unwrap();
    assert!((fair - 430.0).abs() < 60.0, "{fair}");
}
