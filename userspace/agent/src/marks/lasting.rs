//! The time for which a mark holds, as an operator writes it.

use std::time::Duration;

/// A mark that holds longer belongs into the file.
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// `30s`, `10m`, `2h`, `1d`.
///
/// # Errors
/// It is none of these, or out of bounds.
pub fn lasting(text: &str) -> Result<Duration, String> {
    let wrong = || format!("expected 1s to 7d: `30s`, `10m`, `2h`, `1d`; found {text:?}");
    let unit = text.chars().next_back().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 24 * 3600,
        _ => return Err(wrong()),
    };
    let number = text.strip_suffix(unit).unwrap_or_default();
    let plain = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    let number: Option<u64> = plain.then(|| number.parse().ok()).flatten();
    let lasting = number.and_then(|n| n.checked_mul(seconds));
    let lasting = lasting.map(Duration::from_secs).ok_or_else(wrong)?;
    if lasting.is_zero() || lasting > LONGEST {
        return Err(wrong());
    }
    Ok(lasting)
}
