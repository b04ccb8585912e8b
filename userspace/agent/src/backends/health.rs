//! A backend's health: a function of the checks' results, the operator's order, and the time.

use std::time::Duration;

use dataplane::backends::{FULL_WEIGHT, Weight};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::health_check::HealthCheck;

/// An operator's order on a backend, which overrules the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The backend gets no new connections; established ones stay.
    Drain,
    /// The backend is treated as if checks had found it dead.
    Down,
}

/// A backend's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The backend gets new connections.
    Up,
    /// The backend gets no new connections, and is thought to be alive.
    Draining,
    /// The backend gets no new connections, and is thought to be dead.
    Down,
}

impl State {
    /// Returns the state's name in `backends`.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Up => "up",
            State::Draining => "draining",
            State::Down => "down",
        }
    }
}

/// A wait is this much of an interval, at least and at most: agents that start together do not check
/// together for long.
const SHORTEST_WAIT: f64 = 0.9;
const LONGEST_WAIT: f64 = 1.1;

/// The part of two intervals that is left behind the longest wait, for checks that confirm a failed
/// one.
const CONFIRMING: f64 = 2.0 - LONGEST_WAIT;

#[derive(Clone, Debug)]
pub struct Health {
    is_up: bool,
    /// Set while no check has finished.
    is_assumed: bool,
    /// The number of checks in a row with the opposite result.
    against: u32,
    order: Option<Order>,
    /// The time since when the state has not changed.
    since: Instant,
    /// The time when the backend came back.
    warms_since: Option<Instant>,
}

impl Health {
    /// Makes the health of a backend of which nothing is known: it is up until a check fails, so
    /// that an agent that is started again refuses nothing. `joins`: the backend comes to others
    /// that have been in use.
    pub fn new(now: Instant, joins: bool) -> Self {
        Self {
            is_up: true,
            is_assumed: true,
            against: 0,
            order: None,
            since: now,
            warms_since: joins.then_some(now),
        }
    }

    /// A check is over. Gives what it is now, if it was something else.
    pub fn checked(
        &mut self,
        is_good: bool,
        now: Instant,
        settings: &HealthCheck,
    ) -> Option<State> {
        let before = self.state();
        if is_good == self.is_up {
            self.against = 0;
        } else {
            self.against += 1;
            let enough = match (self.is_up, self.is_assumed) {
                (true, false) => settings.fall,
                // Nobody has seen it alive.
                (true, true) => 1,
                (false, _) => settings.rise,
            };
            if self.against >= enough {
                self.against = 0;
                self.is_up = is_good;
                self.warms_since = is_good.then_some(now);
            }
        }
        self.is_assumed = false;
        self.changed_from(before, now)
    }

    /// An operator has said so, or taken it back. As [`Health::checked`].
    pub fn order(&mut self, order: Option<Order>, now: Instant) -> Option<State> {
        let before = self.state();
        self.order = order;
        let after = self.changed_from(before, now);
        if after == Some(State::Up) {
            self.warms_since = Some(now);
        }
        after
    }

    fn changed_from(&mut self, before: State, now: Instant) -> Option<State> {
        let after = self.state();
        if after == before {
            return None;
        }
        self.since = now;
        Some(after)
    }

    pub fn state(&self) -> State {
        match (self.is_up, self.order) {
            (false, _) | (_, Some(Order::Down)) => State::Down,
            (true, Some(Order::Drain)) => State::Draining,
            (true, None) => State::Up,
        }
    }

    pub fn since(&self) -> Instant {
        self.since
    }

    pub fn ordered(&self) -> Option<Order> {
        self.order
    }

    /// Returns the backend's share of new connections.
    pub fn weight(&self, now: Instant, settings: &HealthCheck) -> Weight {
        if self.state() != State::Up {
            return 0;
        }
        let Some(passed) = self.warms_since.map(|since| now.duration_since(since)) else {
            return FULL_WEIGHT;
        };
        if passed >= settings.slow_start {
            return FULL_WEIGHT;
        }
        let share = passed.as_secs_f64() / settings.slow_start.as_secs_f64();
        ((f64::from(FULL_WEIGHT) * share) as Weight).max(1)
    }

    /// Whether its weight grows with time.
    pub fn is_warming(&self, now: Instant, settings: &HealthCheck) -> bool {
        self.state() == State::Up && self.weight(now, settings) < FULL_WEIGHT
    }

    /// Returns the time from the beginning of the last check to the next one. `dice` is from 0 to
    /// 1.
    pub fn wait(&self, dice: f64, settings: &HealthCheck) -> Duration {
        if self.is_up && self.against > 0 {
            return settings.interval.mul_f64(CONFIRMING) / settings.fall.max(1);
        }
        let share = SHORTEST_WAIT + (LONGEST_WAIT - SHORTEST_WAIT) * dice;
        settings.interval.mul_f64(share)
    }
}

/// The longest that a check may take so that [`Health::wait`] keeps what it promises.
pub fn longest_timeout(interval: Duration, fall: u32) -> Duration {
    interval.mul_f64(CONFIRMING) / fall.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> HealthCheck {
        HealthCheck {
            rise: 3,
            ..HealthCheck::default()
        }
    }

    /// Makes checks with these results, a second apart.
    fn after(checks: &[bool]) -> (Vec<Option<State>>, Health, Instant) {
        let mut now = Instant::now();
        let mut health = Health::new(now, false);
        let told = checks.iter().map(|is_good| {
            now += Duration::from_secs(1);
            health.checked(*is_good, now, &settings())
        });
        (told.collect(), health, now)
    }

    #[test]
    fn two_failed_checks_take_out_and_three_good_ones_bring_back() {
        use State::{Down, Up};
        let (told, health, now) = after(&[true, false, true, false, false, true, true, true]);
        let expected = [None, None, None, None, Some(Down), None, None, Some(Up)];
        assert_eq!(told, expected);
        assert_eq!((health.state(), health.since()), (Up, now));
        let (told, ..) = after(&[true, false, false, true, true, false, true, true, true]);
        assert_eq!(told.iter().flatten().count(), 2, "{told:?}");
        assert_eq!(told[8], Some(Up));
    }

    #[test]
    fn who_was_never_seen_alive_is_out_at_the_first_failed_check() {
        let (told, health, _) = after(&[false]);
        assert_eq!(told, [Some(State::Down)]);
        assert_eq!(health.weight(Instant::now(), &settings()), 0);
    }

    #[test]
    fn orders_stand_before_checks() {
        let (_, mut health, now) = after(&[true]);
        assert_eq!(health.order(Some(Order::Drain), now), Some(State::Draining));
        assert_eq!(health.weight(now, &settings()), 0);
        assert_eq!(health.checked(true, now, &settings()), None);
        for expected in [None, Some(State::Down)] {
            assert_eq!(health.checked(false, now, &settings()), expected);
        }
        assert_eq!(health.order(None, now), None);
        for expected in [None, None, Some(State::Up)] {
            assert_eq!(health.checked(true, now, &settings()), expected);
        }
        assert_eq!(health.order(Some(Order::Down), now), Some(State::Down));
        assert_eq!(health.order(None, now), Some(State::Up));
        // Nobody has used it meanwhile.
        assert_eq!(health.weight(now, &settings()), 1);
    }

    #[test]
    fn a_backend_that_comes_back_gets_its_share_little_by_little() {
        let (_, health, now) = after(&[false, true, true, true]);
        let at = |seconds: f64| now + Duration::from_secs_f64(seconds);
        let weights = [0.0, 0.05, 1.0, 5.0, 9.99, 10.0, 60.0];
        let weights = weights.map(|s| health.weight(at(s), &settings()));
        assert_eq!(weights, [1, 1, 10, 50, 99, 100, 100]);
        assert!(health.is_warming(at(9.0), &settings()));
        assert!(!health.is_warming(at(10.0), &settings()));
        let at_once = HealthCheck {
            slow_start: Duration::ZERO,
            ..settings()
        };
        assert_eq!(health.weight(now, &at_once), 100);
        assert_eq!(Health::new(now, true).weight(now, &settings()), 1);
        assert_eq!(Health::new(now, false).weight(now, &settings()), 100);
    }

    #[test]
    fn a_dead_backend_is_out_within_two_intervals_whatever_the_dice_say() {
        for fall in 1..=10 {
            let settings = HealthCheck {
                fall,
                timeout: longest_timeout(Duration::from_secs(1), fall),
                ..HealthCheck::default()
            };
            for dice in [0.0, 0.5, 1.0] {
                let mut now = Instant::now();
                let died = now;
                let mut health = Health::new(now, false);
                // The last good check ended as it died, in no time.
                health.checked(true, now, &settings);
                loop {
                    now += health.wait(dice, &settings);
                    let over = now + settings.timeout;
                    if health.checked(false, over, &settings).is_some() {
                        let took = over - died;
                        assert!(took <= 2 * settings.interval, "{fall}: {took:?}");
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn waits_differ_by_a_tenth() {
        let (_, health, _) = after(&[true]);
        let waits = [0.0, 0.5, 1.0].map(|dice| health.wait(dice, &settings()).as_millis());
        assert_eq!(waits, [900, 1000, 1100]);
        // A dead one is not asked more often than one that is alive.
        let (_, health, _) = after(&[false, true, false]);
        assert_eq!(health.wait(0.5, &settings()).as_millis(), 1000);
    }
}
