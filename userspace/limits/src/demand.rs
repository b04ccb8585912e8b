//! How much a tenant asks for on one host.

/// The weight of the last look among those before it: a demand of 40 requests a second is known to 6 %, where a second alone
/// says it to 16 %.
const WEIGHT: f64 = 0.25;

/// A look that is as many standard deviations away is no chance but a change, and is believed at once.
const CLEAR: f64 = 3.0;

/// Requests for which there was no token hide others behind them: who has to wait asks for no more. Where all had to wait, the
/// demand is taken for so many times more than what was asked.
const HIDDEN: f64 = 3.0;

/// A demand, in requests a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand(Option<f64>);

impl Demand {
    /// Notes what was asked within some seconds, and how many of those requests found no token. Returns the demand.
    pub fn note(&mut self, asked: u64, short: u64, seconds: f64) -> f64 {
        let asked = asked as f64;
        // Few are chance, many are need.
        let short = short as f64 / asked.max(1.0);
        let now = asked / seconds * (1.0 + HIDDEN * short * short);
        let before = self.0.unwrap_or(now);
        let chance = (before.max(1.0) / seconds).sqrt();
        let is_clear = (now - before).abs() > CLEAR * chance;
        let demand = match is_clear {
            true => now,
            false => before + WEIGHT * (now - before),
        };
        self.0 = Some(demand);
        demand
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chance_is_smoothed_and_a_change_is_believed() {
        let mut demand = Demand::default();
        assert_eq!(demand.note(40, 0, 1.0), 40.0);
        assert_eq!(demand.note(48, 0, 1.0), 42.0);
        assert_eq!(demand.note(400, 0, 1.0), 400.0);
        assert_eq!(demand.note(0, 0, 1.0), 0.0);
    }

    #[test]
    fn waiting_hides_requests() {
        let wanted = |short| Demand::default().note(100, short, 2.0);
        assert_eq!(wanted(0), 50.0);
        assert_eq!(wanted(100), 200.0);
        assert!((wanted(5) - 50.0).abs() < 1.0);
    }
}
