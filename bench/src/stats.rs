//! Medians.

/// The median; of an even number of values the mean of the two in the middle, of none NaN.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        at(middle)
    } else {
        (at(middle.wrapping_sub(1)) + at(middle)) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median([7.0]), 7.0);
        assert!(median([]).is_nan());
    }

    #[test]
    fn one_bad_round_moves_it_little() {
        assert_eq!(median([1.0, 1.01, 0.99, 0.2, 1.0]), 1.0);
    }
}
