//! Durations as the configuration writes them.

use std::time::Duration;

/// The duration that `500ms`, `2s`, `1m`, `2h` or `1d` says; None for any other text.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let seconds = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return None,
    };
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_whole_number_and_a_unit() {
        for (text, seconds) in [
            ("500ms", 0.5),
            ("2s", 2.0),
            ("1m", 60.0),
            ("2h", 7_200.0),
            ("1d", 86_400.0),
        ] {
            assert_eq!(duration(text).unwrap().as_secs_f64(), seconds, "{text}");
        }
        let past_any_clock = format!("{}d", u64::MAX);
        for text in [
            "",
            "s",
            "1",
            "-1s",
            "+1s",
            "1.5s",
            "1 s",
            "1S",
            "1w",
            &past_any_clock,
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }
}
