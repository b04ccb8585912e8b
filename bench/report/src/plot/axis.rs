//! Scales and ticks.

/// How values become places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// In proportion.
    Linear,
    /// By their logarithm; values above zero only.
    Log,
}

/// From values to places.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

/// Below this a value on a logarithmic axis counts as this: a nanosecond, in µs.
const SMALLEST: f64 = 1e-3;

impl Scale {
    /// `low` is at `start`, `high` at `end`. An empty range is widened.
    pub fn new(kind: Kind, (low, high): (f64, f64), (start, end): (f64, f64)) -> Self {
        let (low, high) = match high > low {
            true => (low, high),
            false => (low, low + low.abs().max(1.0)),
        };
        Self {
            kind,
            low,
            high,
            start,
            end,
        }
    }

    /// Where a value is; what lies outside is at the edge.
    pub fn at(&self, value: f64) -> f64 {
        let transformed = |value: f64| match self.kind {
            Kind::Linear => value,
            Kind::Log => value.max(SMALLEST).log10(),
        };
        let (low, high) = (transformed(self.low), transformed(self.high));
        let share = (transformed(value) - low) / (high - low);
        let share = if share.is_finite() { share } else { 0.0 };
        self.start + (self.end - self.start) * share.clamp(0.0, 1.0)
    }
}

/// Most ticks that an axis gets.
const MOST: usize = 12;

/// Round numbers from at or below `low` to at or above `high`, about `count` of them.
pub fn linear(low: f64, high: f64, count: usize) -> Vec<f64> {
    let range = high - low;
    if !range.is_finite() || range <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = range / count.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|m| m * power)
        .find(|step| *step >= rough)
        .unwrap_or(10.0 * power);
    let first = (low / step).floor() as i64;
    let last = (high / step).ceil() as i64;
    (first..=last)
        .take(MOST)
        .map(|n| n as f64 * step)
        .filter(|tick| tick.is_finite())
        .collect()
}

/// 1, 2, 5 and their tenfolds (or 1 and its tenfolds, where those would be too many) from at or
/// below `low` to at or above `high`.
pub fn log(low: f64, high: f64) -> Vec<f64> {
    let low = if low.is_finite() {
        low.max(SMALLEST)
    } else {
        1.0
    };
    let high = if high.is_finite() { high.max(low) } else { low };
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let fine: &[f64] = &[1.0, 2.0, 5.0];
    let steps = if last - first > 3 { &[1.0] } else { fine };
    let all = (first..=last).flat_map(|power| steps.iter().map(move |m| m * 10_f64.powi(power)));
    let all: Vec<f64> = all.collect();
    let is_near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-9;
    let from = all.iter().rposition(|t| *t <= low || is_near(*t, low));
    let to = all.iter().position(|t| *t >= high || is_near(*t, high));
    let (from, to) = (from.unwrap_or(0), to.unwrap_or(all.len().saturating_sub(1)));
    // One value alone is no axis.
    let to = to.max(from + 1);
    all.into_iter().skip(from).take(to + 1 - from).collect()
}

/// The least and the greatest that are numbers.
pub fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values
        .into_iter()
        .filter(|value| value.is_finite())
        .fold(None, |range, value| match range {
            None => Some((value, value)),
            Some((low, high)) => Some((value.min(low), value.max(high))),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_span() {
        assert_eq!(linear(0.0, 9.3, 5), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(linear(-3.0, 12.0, 4), [-5.0, 0.0, 5.0, 10.0, 15.0]);
        assert_eq!(log(90.0, 900.0), [50.0, 100.0, 200.0, 500.0, 1000.0]);
        assert_eq!(log(100.0, 100.0).len(), 2);
        assert_eq!(log(1.0, 50_000.0), [1.0, 10.0, 100.0, 1e3, 1e4, 1e5]);
        for odd in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            assert!(log(odd, odd).iter().all(|t| t.is_finite()));
            assert!(linear(odd, odd, 5).iter().all(|t| t.is_finite()));
        }
    }

    #[test]
    fn places_stay_inside() {
        let scale = Scale::new(Kind::Log, (10.0, 1000.0), (0.0, 200.0));
        assert_eq!(scale.at(100.0), 100.0);
        assert_eq!((scale.at(0.0), scale.at(1e9)), (0.0, 200.0));
        assert_eq!(scale.at(f64::NAN), 0.0);
        let empty = Scale::new(Kind::Linear, (5.0, 5.0), (0.0, 100.0));
        assert!(empty.at(5.0).is_finite());
    }
}
