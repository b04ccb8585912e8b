//! Every host's part: it measures, publishes, and computes its shares from levels.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak},
};

use crate::{Demand, FIRST_SHARE, Levels, Limit, Record, Share, SharedLevels, Tenant, Wanted};

/// Tenants of all limits together that a host tells of: 300 KiB, where etcd takes 1.5 MiB. Of further ones, those that want least, it has
/// an equal share each.
pub const MAX_TOLD: usize = 10_000;

/// Looks without a request after which a tenant is forgotten.
const FORGOTTEN_AFTER: u32 = 60;

/// The fraction by which a demand has to differ from what was published to be published.
const NEWS: f64 = 0.01;

/// Below it, in requests a second, a demand is none.
const NONE: f64 = 0.001;

/// A host's part in all its limits.
#[derive(Debug, Default)]
pub struct Member {
    limits: BTreeMap<String, Shared>,
    /// Whether the last record was published, and at which revision.
    published: Published,
    beyond: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Published {
    /// Nothing, or nobody knows.
    #[default]
    Unknown,
    /// A record that the leader may not have seen.
    At(u64),
    /// A record that is in the levels.
    Seen,
}

/// A limit that the fleet shares.
#[derive(Debug)]
struct Shared {
    rate: f64,
    /// Whether a rule has it. Flows that began before a change of the policy keep theirs for as long as they run.
    is_held: bool,
    /// The limit as each step has it that still has flows.
    steps: Vec<Weak<Limit>>,
    tenants: HashMap<Tenant, Portion>,
    levels: Option<SharedLevels>,
    changed: bool,
}

/// A tenant's part of a rate.
#[derive(Debug, Default)]
struct Portion {
    demand: Demand,
    wanted: f64,
    /// The demand that was published last, and the one that the leader knows.
    told: f64,
    known: f64,
    /// There was no room to tell it.
    is_untold: bool,
    /// The share by the last levels, and the one in force.
    computed: f64,
    share: f64,
    silent: u32,
    /// The shares that take from it, each with the requests that it has asked for lately.
    takers: Vec<(Arc<Share>, f64)>,
}

/// The state of a limit on this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    /// The limit's name.
    pub name: String,
    /// The tenants that have asked lately.
    pub tenants: usize,
    /// The requests a second that these want together.
    pub wanted: f64,
    /// The requests a second that they may have together.
    pub share: f64,
    /// The hosts that share. 0: not known yet.
    pub hosts: usize,
    /// Tenants of the fleet without a level, because there are too many.
    pub left_out: usize,
}

impl Member {
    /// Takes these limits to be the ones in force.
    pub fn hold<'l>(&mut self, limits: impl IntoIterator<Item = &'l Arc<Limit>>) {
        for shared in self.limits.values_mut() {
            shared.is_held = false;
        }
        for limit in limits {
            let new = || Shared::new(limit.rate());
            let shared = self
                .limits
                .entry(limit.name().to_owned())
                .or_insert_with(new);
            shared.changed |= !shared.is_held || shared.rate != limit.rate();
            shared.is_held = true;
            shared.rate = limit.rate();
            let is_known = |step: &Weak<Limit>| std::ptr::eq(step.as_ptr(), Arc::as_ptr(limit));
            if !shared.steps.iter().any(is_known) {
                shared.steps.push(Arc::downgrade(limit));
                shared.welcome(limit);
            }
        }
    }

    /// Whether there is no limit to share.
    pub fn is_idle(&self) -> bool {
        self.limits.is_empty()
    }

    /// Looks at what was asked within some seconds.
    pub fn look(&mut self, seconds: f64) {
        for shared in self.limits.values_mut() {
            self.beyond += shared.look(seconds);
        }
        // What ends with its last flow is news, too.
        let before = self.limits.len();
        self.limits
            .retain(|_, shared| shared.is_held || !shared.steps.is_empty());
        if self.limits.len() < before {
            self.limits
                .values_mut()
                .for_each(|shared| shared.changed = true);
        }
    }

    /// Returns what is to be published: news, if the leader has seen what was published before. The session that could not publish
    /// it says so ([`Self::session_ended`]).
    pub fn record(&mut self) -> Option<Record> {
        let is_due = match self.published {
            Published::Unknown => true,
            Published::At(_) => false,
            Published::Seen => self.limits.values().any(Shared::has_news),
        };
        if !is_due {
            return None;
        }
        let mut room = MAX_TOLD;
        let limits = self.limits.iter_mut();
        let limits = limits.map(|(name, shared)| (name.clone(), shared.tell(&mut room)));
        Some(Record {
            limits: limits.collect(),
        })
    }

    /// Notes at which revision the record was published.
    pub fn published(&mut self, revision: u64) {
        self.published = Published::At(revision);
    }

    /// Notes that nobody knows what of this host is still known. Shares stay.
    pub fn session_ended(&mut self) {
        self.published = Published::Unknown;
    }

    /// Computes the shares by new levels.
    pub fn heard(&mut self, levels: &Levels) {
        let is_known = matches!(self.published, Published::At(revision) if revision <= levels.seen);
        if is_known {
            self.published = Published::Seen;
        }
        for (name, shared) in &mut self.limits {
            shared.levels = levels.limits.get(name).cloned();
            shared.apply(is_known);
        }
    }

    /// Returns the state of each limit.
    pub fn held(&self) -> impl Iterator<Item = Held> {
        self.limits.iter().map(|(name, shared)| {
            let portions = shared.tenants.values();
            let levels = shared.levels.as_ref();
            Held {
                name: name.clone(),
                tenants: shared.tenants.len(),
                // Of nothing, a sum is -0.
                wanted: portions
                    .clone()
                    .fold(0.0, |sum, portion| sum + portion.wanted),
                share: portions.fold(0.0, |sum, portion| sum + portion.share),
                hosts: levels.map_or(0, |levels| levels.hosts),
                left_out: levels.map_or(0, |levels| levels.left_out),
            }
        })
    }

    /// Returns how many requests of tenants beyond the bound there were since the last time.
    pub fn take_beyond(&mut self) -> u64 {
        std::mem::take(&mut self.beyond)
    }
}

impl Shared {
    fn new(rate: f64) -> Self {
        Self {
            rate,
            is_held: false,
            steps: Vec::new(),
            tenants: HashMap::new(),
            levels: None,
            changed: true,
        }
    }

    /// An equal share.
    fn even(&self) -> f64 {
        match &self.levels {
            Some(levels) => self.rate / levels.hosts.max(1) as f64,
            None => self.rate * FIRST_SHARE,
        }
    }

    /// Gives a step that is new the shares of the others.
    fn welcome(&self, limit: &Limit) {
        limit.begin_with(self.even());
    }

    /// Looks at what was asked. Returns how many requests of tenants there were beyond the bound.
    fn look(&mut self, seconds: f64) -> u64 {
        self.steps.retain(|step| step.strong_count() > 0);
        let steps: Vec<Arc<Limit>> = self.steps.iter().filter_map(Weak::upgrade).collect();
        for portion in self.tenants.values_mut() {
            portion.takers.clear();
        }
        let mut asked: HashMap<Tenant, (u64, u64)> = HashMap::new();
        for (tenant, share) in steps.iter().flat_map(|step| step.shares()) {
            let (all, short) = share.take();
            let sum = asked.entry(tenant).or_default();
            *sum = (sum.0 + all, sum.1 + short);
            let portion = self
                .tenants
                .entry(tenant)
                .or_insert_with(|| Portion::beginning(&share));
            portion.takers.push((share, all as f64 + 1.0));
        }
        self.tenants.retain(|_, portion| !portion.takers.is_empty());
        for (tenant, portion) in &mut self.tenants {
            let (all, short) = asked.get(tenant).copied().unwrap_or_default();
            portion.wanted = portion.demand.note(all, short, seconds);
            portion.silent = if all == 0 { portion.silent + 1 } else { 0 };
            if portion.silent > FORGOTTEN_AFTER {
                steps.iter().for_each(|step| step.let_go(*tenant));
                portion.takers.clear();
            }
            portion.hand_out();
        }
        steps.iter().map(|step| step.take_beyond()).sum()
    }

    fn has_news(&self) -> bool {
        let differs = |portion: &Portion| {
            let least = (portion.told * NEWS).max(NONE);
            (portion.wanted - portion.told).abs() > least
        };
        self.changed || self.tenants.values().any(differs)
    }

    /// Tells what is wanted, as long as there is room.
    fn tell(&mut self, room: &mut usize) -> Wanted {
        self.changed = false;
        let mut most: Vec<_> = self.tenants.iter_mut().collect();
        most.sort_by(|(_, one), (_, other)| other.wanted.total_cmp(&one.wanted));
        let mut wanted = BTreeMap::new();
        for (tenant, portion) in most {
            portion.told = match portion.wanted > NONE {
                true => (portion.wanted * 1e3).round() / 1e3,
                false => 0.0,
            };
            portion.is_untold = portion.told > 0.0 && *room == 0;
            if portion.told > 0.0 && *room > 0 {
                *room -= 1;
                wanted.insert(*tenant, portion.told);
            }
        }
        Wanted {
            rate: self.rate,
            wanted,
            left_out: 0,
        }
    }

    /// Computes the shares. `is_known`: the levels are made of what was told last.
    fn apply(&mut self, is_known: bool) {
        let even = self.even();
        for (tenant, portion) in &mut self.tenants {
            if is_known {
                portion.known = portion.told;
            }
            let levels = self.levels.as_ref();
            let share = match levels.and_then(|levels| levels.levels.get(tenant)) {
                // A host that tells of less takes less at once, and of more when the others know.
                Some(level) if !portion.is_untold => {
                    level.share(portion.known.min(portion.told), even)
                }
                _ => even,
            };
            // Whatever is in the store.
            let share = share.min(self.rate);
            // Two levels in a row have to say that there is more.
            portion.share = share.min(portion.computed);
            portion.computed = share;
            portion.hand_out();
        }
        for step in self.steps.iter().filter_map(Weak::upgrade) {
            step.begin_with(even);
        }
    }
}

impl Portion {
    fn beginning(share: &Share) -> Self {
        let rate = share.rate().unwrap_or_default();
        Self {
            computed: rate,
            share: rate,
            ..Self::default()
        }
    }

    /// Hands the share out to those who take from it, as they have asked for it.
    fn hand_out(&self) {
        let together: f64 = self.takers.iter().map(|(_, asked)| asked).sum();
        for (share, asked) in &self.takers {
            share.set(self.share * asked / together);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Book;

    fn host(rate: f64) -> (Member, Arc<Limit>) {
        let limit = Arc::new(Limit::new("shop.user", rate));
        let mut member = Member::default();
        member.hold([&limit]);
        (member, limit)
    }

    fn ask(share: &Share, times: u64) {
        (0..times).for_each(|_| share.count(false));
    }

    /// A round: the host publishes, and hears the levels so many times.
    fn round(member: &mut Member, book: &mut Book, revision: u64, times: usize) {
        if let Some(record) = member.record() {
            member.published(revision);
            book.put("a", revision, record);
        }
        let levels = book.levels();
        (0..times).for_each(|_| member.heard(&levels));
    }

    #[test]
    fn a_host_grows_when_two_levels_say_so_and_shrinks_at_once() {
        let (mut member, limit) = host(100.0);
        let share = limit.share("alice");
        assert_eq!(share.rate(), Some(5.0));
        let mut book = Book::default();
        ask(&share, 80);
        member.look(1.0);
        round(&mut member, &mut book, 1, 1);
        assert_eq!(share.rate(), Some(5.0));
        round(&mut member, &mut book, 1, 1);
        assert!(share.rate().unwrap() > 80.0);
        // Another host wants as much.
        let (mut other, others) = host(100.0);
        ask(&others.share("alice"), 80);
        other.look(1.0);
        book.put("b", 2, other.record().unwrap());
        round(&mut member, &mut book, 3, 1);
        assert_eq!(share.rate(), Some(50.0));
        // What is in the store is not believed beyond the rate.
        let mut levels = book.levels();
        for level in levels
            .limits
            .get_mut("shop.user")
            .unwrap()
            .levels
            .values_mut()
        {
            level.spare = 1e9;
        }
        (0..2).for_each(|_| member.heard(&levels));
        assert_eq!(share.rate(), Some(100.0));
    }

    #[test]
    fn flows_that_keep_an_old_step_share_with_the_new_ones() {
        let (mut member, old) = host(100.0);
        let of_old = old.share("alice");
        ask(&of_old, 30);
        member.look(1.0);
        let mut book = Book::default();
        round(&mut member, &mut book, 1, 2);
        let new = Arc::new(Limit::new("shop.user", 100.0));
        member.hold([&new]);
        let of_new = new.share("alice");
        ask(&of_old, 9);
        ask(&of_new, 29);
        member.look(1.0);
        let [of_old_now, of_new_now] = [&of_old, &of_new].map(|share| share.rate().unwrap());
        assert!(
            (of_old_now + of_new_now - 100.0).abs() < 1e-9,
            "{of_old_now} {of_new_now}"
        );
        assert!((of_new_now / of_old_now - 3.0).abs() < 1e-9);
        // The last flow with the old step ends.
        drop((old, of_old));
        member.look(1.0);
        assert_eq!(member.limits["shop.user"].steps.len(), 1);
        drop((new, of_new));
        member.hold([]);
        member.look(1.0);
        assert!(member.is_idle());
    }

    #[test]
    fn tenants_beyond_the_bounds_have_equal_shares() {
        let limits: Vec<_> = (0..11)
            .map(|n| Arc::new(Limit::new(&format!("{n:02}.user"), 100.0)))
            .collect();
        let mut member = Member::default();
        member.hold(&limits);
        for limit in &limits {
            for tenant in 0..=crate::MAX_TENANTS {
                ask(&limit.share(&tenant.to_string()), 1);
            }
        }
        member.look(1.0);
        assert_eq!(member.take_beyond(), 11);
        let record = member.record().unwrap();
        member.published(1);
        let told: usize = record.limits.values().map(|limit| limit.wanted.len()).sum();
        assert_eq!(told, MAX_TOLD);
        let mut book = Book::default();
        for host in ["a", "b", "c", "d"] {
            book.put(host, 1, record.clone());
        }
        let levels = book.levels();
        (0..2).for_each(|_| member.heard(&levels));
        let last = limits.last().unwrap().share("0").rate();
        assert_eq!(last, Some(25.0));
        let left_out: usize = member.held().map(|held| held.left_out).sum();
        assert_eq!(left_out, MAX_TOLD - crate::MAX_LEVELS);
    }

    #[test]
    fn a_tenant_that_is_silent_for_long_is_forgotten_and_may_come_back() {
        let (mut member, limit) = host(100.0);
        let share = limit.share("alice");
        for _ in 0..=FORGOTTEN_AFTER {
            assert!(share.rate().is_some());
            member.look(1.0);
        }
        assert_eq!(share.rate(), None);
        member.look(1.0);
        assert_eq!(member.held().map(|held| held.tenants).sum::<usize>(), 0);
        assert_eq!(limit.share("alice").rate(), Some(5.0));
    }
}
