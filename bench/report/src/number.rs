//! Numbers as people read them. What is not a number is [`NONE`], never `NaN`.

use crate::stats::Difference;

/// Where there is nothing to say.
pub const NONE: &str = "–";
/// Where a figure is direct's.
pub const NO_DIFFERENCE: &str = "no difference";

/// Where nothing may be claimed.
pub const NOT_RESOLVED: &str = "not resolved";

/// A whole number, in groups of three digits.
pub fn grouped(number: f64) -> String {
    if !number.is_finite() {
        return NONE.into();
    }
    let digits = format!("{:.0}", number.abs());
    let mut out = String::new();
    if number < 0.0 && digits != "0" {
        out.push('−');
    }
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// With about three digits: `1.23`, `12.3`, `123`, `1,234`.
pub fn short(number: f64) -> String {
    let size = number.abs();
    if !number.is_finite() || size >= 99.95 {
        return grouped(number);
    }
    let decimals = if size < 9.995 { 2 } else { 1 };
    let digits = format!("{size:.decimals$}");
    let is_zero = digits.chars().all(|c| matches!(c, '0' | '.'));
    match number < 0.0 && !is_zero {
        true => format!("−{digits}"),
        false => digits,
    }
}

/// With its sign.
pub fn signed(number: f64) -> String {
    let text = short(number);
    match number.is_finite() && number >= 0.0 {
        true => format!("+{text}"),
        false => text,
    }
}

/// A ratio: `0.514`, `12.3`.
pub fn ratio(number: f64) -> String {
    match number.is_finite() && number.abs() < 9.9995 {
        true => format!("{number:.3}"),
        false => short(number),
    }
}

/// A change by so much, in per cent, signed.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return NONE.into();
    }
    let sign = if share < 0.0 { '−' } else { '+' };
    format!("{sign}{:.1} %", share.abs() * 100.0)
}

/// KiB as MiB.
pub fn mib(kib: f64) -> String {
    match kib.is_finite() {
        true => format!("{:.1}", kib / 1024.0),
        false => NONE.into(),
    }
}

/// Plain, as few digits as it takes: `0.5`, `3`, `5000`.
pub fn plain(number: f64) -> String {
    let rounded = (number * 1000.0).round() / 1000.0;
    match rounded.is_finite() {
        true => format!("{rounded}"),
        false => NONE.into(),
    }
}

/// µs in the unit that fits: `200 µs`, `2 ms`, `1.5 s`.
pub fn duration(us: f64) -> String {
    let (number, unit) = match us.abs() {
        us_abs if us_abs < 1e3 => (us, "µs"),
        us_abs if us_abs < 1e6 => (us / 1e3, "ms"),
        _ => (us / 1e6, "s"),
    };
    format!("{} {unit}", plain(number))
}

/// Something that may be missing.
pub fn or_none(number: Option<f64>, text: fn(f64) -> String) -> String {
    number.map_or_else(|| NONE.into(), text)
}

/// A difference's figure and its interval, or what is to be said in place of them.
pub fn difference(difference: Difference, text: fn(f64) -> String) -> (String, String) {
    let estimate = difference.estimate;
    if difference.is_unknown() {
        let rounds = match estimate.rounds {
            1 => "1 round".to_owned(),
            n => format!("{n} rounds"),
        };
        return (text(estimate.figure), format!("{rounds}, no interval"));
    }
    let interval = format!("{} … {}", text(estimate.low), text(estimate.high));
    let figure = match (difference.is_unresolved, difference.is_noise) {
        (true, _) => NOT_RESOLVED.into(),
        (false, true) => NO_DIFFERENCE.into(),
        (false, false) => text(estimate.figure),
    };
    (figure, interval)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::CHANCE;

    #[test]
    fn digits_in_groups() {
        for (number, text) in [
            (0.4, "0"),
            (-0.4, "0"),
            (999.0, "999"),
            (1000.0, "1,000"),
            (-1234567.0, "−1,234,567"),
            (f64::NAN, NONE),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn about_three_digits() {
        for (number, text) in [
            (0.0, "0.00"),
            (-0.001, "0.00"),
            (9.994, "9.99"),
            (9.996, "10.0"),
            (99.96, "100"),
            (-12.34, "−12.3"),
            (f64::INFINITY, NONE),
        ] {
            assert_eq!(short(number), text);
        }
        assert_eq!(signed(5.1), "+5.10");
        assert_eq!(ratio(0.5144), "0.514");
        assert_eq!(percent(-0.0991), "−9.9 %");
        assert_eq!(duration(1500.0), "1.5 ms");
    }

    #[test]
    fn too_few_rounds_claim_nothing() {
        let of = |pairs: &[_]| Difference::of_ratios(pairs, CHANCE).unwrap();
        let (figure, interval) = difference(of(&[(0.5, 1.0)]), ratio);
        assert_eq!((&*figure, &*interval), ("0.500", "1 round, no interval"));
        let same = of(&[(1.0, 1.0); 5]);
        assert_eq!(difference(same, ratio).0, NO_DIFFERENCE);
    }
}
