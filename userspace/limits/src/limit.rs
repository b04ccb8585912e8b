//! A limit on this host: the shares that requests are held to, one for each tenant.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

/// Tenants of a limit whose demand a host tells. Further ones have an equal share each, whatever they ask for.
pub const MAX_TENANTS: usize = 1_000;

/// The part of the rate that a host has until it has heard from the fleet: twenty hosts exceed nothing by it.
pub const FIRST_SHARE: f64 = 0.05;

/// A tenant's name in the fleet: a hash, because names are nobody's business there, and may be long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(pub(crate) u64);

impl Tenant {
    /// Returns the tenant with this name.
    pub fn named(name: &str) -> Self {
        let digest = Sha256::digest(name);
        let first = digest.first_chunk().copied().unwrap_or_default();
        Self(u64::from_be_bytes(first))
    }
}

impl serde::Serialize for Tenant {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{:016x}", self.0))
    }
}

impl<'d> serde::Deserialize<'d> for Tenant {
    fn deserialize<D: serde::Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(from)?;
        let number = u64::from_str_radix(&text, 16);
        number.map(Self).map_err(serde::de::Error::custom)
    }
}

/// A tenant's share of a rate on this host. Requests read it, and are counted.
#[derive(Debug)]
pub struct Share {
    /// Requests a second, as the bits of an `f64`. 0: nobody looks at this share any more.
    rate: AtomicU64,
    asked: AtomicU64,
    short: AtomicU64,
}

impl Share {
    fn new(rate: f64) -> Self {
        Self {
            rate: AtomicU64::new(rate.to_bits()),
            asked: AtomicU64::new(0),
            short: AtomicU64::new(0),
        }
    }

    /// Returns how many requests may pass in a second. None: the share was taken back, because nobody had asked for long. There is
    /// another one at the limit.
    #[inline]
    pub fn rate(&self) -> Option<f64> {
        let rate = f64::from_bits(self.rate.load(Relaxed));
        (rate > 0.0).then_some(rate)
    }

    /// Counts a request. `is_short`: there was no token for it.
    #[inline]
    pub fn count(&self, is_short: bool) {
        self.asked.fetch_add(1, Relaxed);
        if is_short {
            self.short.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn set(&self, rate: f64) {
        self.rate.store(rate.to_bits(), Relaxed);
    }

    /// Returns what was asked since the last time, and how much of that found no token.
    pub(crate) fn take(&self) -> (u64, u64) {
        (self.asked.swap(0, Relaxed), self.short.swap(0, Relaxed))
    }
}

/// A rate that the hosts of a fleet share for each tenant, as one step of one rule has it.
#[derive(Debug)]
pub struct Limit {
    name: String,
    rate: f64,
    /// The share of a tenant that is new here, as the bits of an `f64`.
    first: AtomicU64,
    shares: Mutex<HashMap<Tenant, Arc<Share>>>,
    /// The share of each tenant beyond [`MAX_TENANTS`].
    beyond: Arc<Share>,
}

impl Limit {
    /// Makes a limit of so many requests a second.
    pub fn new(name: &str, rate: f64) -> Self {
        let first = rate * FIRST_SHARE;
        Self {
            name: name.to_owned(),
            rate,
            first: AtomicU64::new(first.to_bits()),
            shares: Mutex::default(),
            beyond: Arc::new(Share::new(first)),
        }
    }

    /// The name, which is the same on all hosts.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The rate, in requests a second.
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// Returns a tenant's share, which begins here if there is none.
    pub fn share(&self, tenant: &str) -> Arc<Share> {
        let mut shares = self.shares.lock();
        let tenant = Tenant::named(tenant);
        if let Some(share) = shares.get(&tenant) {
            return share.clone();
        }
        if shares.len() >= MAX_TENANTS {
            return self.beyond.clone();
        }
        let share = Arc::new(Share::new(f64::from_bits(self.first.load(Relaxed))));
        shares.insert(tenant, share.clone());
        share
    }

    /// Has tenants that are new from now on begin with a share.
    pub(crate) fn begin_with(&self, rate: f64) {
        self.first.store(rate.to_bits(), Relaxed);
        self.beyond.set(rate);
    }

    /// Returns the tenants and their shares.
    pub(crate) fn shares(&self) -> Vec<(Tenant, Arc<Share>)> {
        let shares = self.shares.lock();
        shares
            .iter()
            .map(|(tenant, share)| (*tenant, share.clone()))
            .collect()
    }

    /// Takes a share back.
    pub(crate) fn let_go(&self, tenant: Tenant) {
        if let Some(share) = self.shares.lock().remove(&tenant) {
            share.set(0.0);
        }
    }

    /// Returns how many requests have come from tenants beyond the bound since the last time.
    pub(crate) fn take_beyond(&self) -> u64 {
        self.beyond.take().0
    }
}
