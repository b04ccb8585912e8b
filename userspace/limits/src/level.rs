//! Fair shares of a rate: who wants little gets it, and the others share the rest equally (max-min fairness).

use serde::{Deserialize, Serialize};

/// The fraction of its demand by which a host may exceed it while there is a level: demands are known to a few per cent, and what
/// is not granted is not asked for.
pub const HEADROOM: f64 = 0.04;

/// The part of an equal share that each host has in any case: so its first request passes, and shows that there is demand.
pub const FLOOR: f64 = 0.01;

/// The terms on which a tenant's rate is shared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    /// The most that a host gets for its demand. None: hosts want less than the rate together.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub most: Option<f64>,
    /// The part that each host gets beyond its demand, of what nobody wants.
    #[serde(default)]
    pub spare: f64,
}

/// Finds the level of a rate, for the demands of some hosts among `hosts`.
pub fn fair(rate: f64, wanted: &mut [f64], hosts: usize) -> Level {
    let together: f64 = wanted.iter().sum();
    if together <= rate {
        let spare = (rate - together) / hosts.max(1) as f64;
        return Level { most: None, spare };
    }
    wanted.sort_by(f64::total_cmp);
    let (mut left, mut hosts_left) = (rate, wanted.len());
    for demand in wanted.iter() {
        let each = left / hosts_left as f64;
        if *demand >= each {
            return Level {
                most: Some(each),
                spare: 0.0,
            };
        }
        left -= demand;
        hosts_left -= 1;
    }
    Level::default()
}

impl Level {
    /// Returns the share of a host with a demand, where `even` is an equal one.
    pub fn share(&self, wanted: f64, even: f64) -> f64 {
        let granted = wanted * (1.0 + HEADROOM);
        let granted = self.most.map_or(granted, |most| granted.min(most));
        (granted + self.spare).max(even * FLOOR)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wants_little_gets_it_and_the_rest_is_shared() {
        let level = fair(100.0, &mut [10.0, 500.0, 20.0, 60.0], 4);
        assert_eq!(level.most, Some(35.0));
        assert_eq!(level.share(500.0, 25.0), 35.0);
        let idle = fair(100.0, &mut [10.0], 4);
        assert_eq!(
            idle,
            Level {
                most: None,
                spare: 22.5
            }
        );
        assert_eq!(idle.share(0.0, 25.0), 22.5);
        assert_eq!(fair(100.0, &mut [], 0).spare, 100.0);
        // Nobody is left with nothing.
        assert_eq!(level.share(0.0, 25.0), 0.25);
    }

    /// Shares add up to the rate, whatever hosts want, and to no more than headroom and floor above it.
    #[test]
    fn shares_add_up() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2_000 {
            let hosts = random.usize(1..50);
            let rate = random.f64() * 1e4 + 0.001;
            let wanted: Vec<f64> = (0..hosts).map(|_| random.f64().powi(4) * 1e4).collect();
            let level = fair(rate, &mut wanted.clone(), hosts);
            let even = rate / hosts as f64;
            let shares = wanted.iter().map(|demand| level.share(*demand, even));
            let together: f64 = shares.sum();
            assert!(together >= rate * (1.0 - 1e-9), "{together} of {rate}");
            assert!(
                together <= rate * (1.0 + HEADROOM + FLOOR + 1e-9),
                "{together} of {rate}"
            );
        }
    }
}
