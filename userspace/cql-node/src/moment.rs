//! Dates and times: read from text, taken from the clock, and made into UUIDs.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Tells apart what is made at the same instant.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Days since 1970-01-01, as the proleptic Gregorian calendar counts them.
fn days(text: &str) -> Option<i64> {
    let (negative, text) = text
        .strip_prefix('-')
        .map_or((false, text), |rest| (true, rest));
    let mut parts = text.splitn(3, '-');
    let mut next = || parts.next()?.parse::<u32>().ok().map(i64::from);
    let (year, month, day) = (next()?, next()?, next()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year > 5_000_000 {
        return None;
    }
    let year = if negative { -year } else { year };
    // Howard Hinnant, "chrono-compatible low-level date algorithms": years begin in March.
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    Some(era * 146_097 + day_of_era - 719_468)
}

/// Dates count from the middle of the unsigned range.
pub(super) fn date(text: &str) -> Option<u32> {
    u32::try_from(days(text)? + (1 << 31)).ok()
}

/// `HH:MM[:SS[.fraction]]` in nanoseconds.
pub(super) fn time_ns(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, ':');
    let hours: u32 = parts.next()?.parse().ok()?;
    let minutes: u32 = parts.next()?.parse().ok()?;
    let (seconds, fraction) = parts
        .next()
        .map_or(("0", ""), |s| s.split_once('.').unwrap_or((s, "")));
    let seconds: u32 = seconds.parse().ok()?;
    if hours > 23 || minutes > 59 || seconds > 59 || fraction.len() > 9 {
        return None;
    }
    let nanos: u32 = format!("{fraction:0<9}").parse().ok()?;
    Some(i64::from(hours * 3600 + minutes * 60 + seconds) * 1_000_000_000 + i64::from(nanos))
}

/// `YYYY-MM-DD[(T| )time][zone]`, UTC where no zone is given.
pub(super) fn timestamp_ms(text: &str) -> Option<i64> {
    let split = text.find(['T', ' ']).unwrap_or(text.len());
    let (day, rest) = text.split_at_checked(split)?;
    let rest = rest.get(1..).unwrap_or_default();
    let zone_at = rest.find(['Z', '+', '-']).unwrap_or(rest.len());
    let (time, zone) = rest.split_at_checked(zone_at)?;
    let time_ms = if time.is_empty() {
        0
    } else {
        time_ns(time.trim_end())? / 1_000_000
    };
    Some(days(day)? * 86_400_000 + time_ms - zone_ms(zone)?)
}

/// `Z`, `+hhmm` or `+hh:mm`.
fn zone_ms(zone: &str) -> Option<i64> {
    if matches!(zone, "" | "Z") {
        return Some(0);
    }
    let digits = zone.get(1..)?.replace(':', "");
    let hours: u32 = digits.get(..2)?.parse().ok()?;
    let minutes: u32 = digits
        .get(2..)
        .filter(|m| !m.is_empty())
        .unwrap_or("0")
        .parse()
        .ok()?;
    if hours > 23 || minutes > 59 {
        return None;
    }
    let ms = i64::from(hours * 60 + minutes) * 60_000;
    Some(if zone.starts_with('-') { -ms } else { ms })
}

pub(super) fn now_ms() -> i64 {
    i64::try_from(since_epoch().as_millis()).unwrap_or(i64::MAX)
}

fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

/// Unlike any other of this process; no source of secrets.
pub(super) fn random_uuid() -> [u8; 16] {
    let counter = NEXT.fetch_add(1, Relaxed);
    let mut id = super::schema::uuid_of(&[
        &since_epoch().as_nanos().to_be_bytes(),
        &counter.to_be_bytes(),
    ]);
    if let Some(version) = id.get_mut(6) {
        *version = (*version & 0x0f) | 0x40;
    }
    id
}

/// Version 1: 100 ns steps since 1582-10-15, and a counter where the node's address would be.
pub(super) fn time_uuid() -> [u8; 16] {
    const GREGORIAN_OFFSET: u128 = 0x01B2_1DD2_1381_4000;
    let counter = u128::from(NEXT.fetch_add(1, Relaxed));
    let t = since_epoch().as_nanos() / 100 + GREGORIAN_OFFSET;
    let (low, mid, high) = (t & 0xffff_ffff, (t >> 32) & 0xffff, (t >> 48) & 0x0fff);
    let node = 0x0100_0000_0000 | (counter & 0xff_ffff_ffff);
    (low << 96 | mid << 80 | (0x1000 | high) << 64 | 0x8000 << 48 | node).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times() {
        assert_eq!(timestamp_ms("1970-01-01"), Some(0));
        assert_eq!(
            timestamp_ms("2000-02-29 12:34:56.789Z"),
            Some(951_827_696_789)
        );
        assert_eq!(
            timestamp_ms("2000-03-01T00:00+0130"),
            Some(951_868_800_000 - 5_400_000)
        );
        assert_eq!(timestamp_ms("yesterday"), None);
        assert_eq!(timestamp_ms("2000-01-01T00:00+004294967295"), None);
        assert_eq!(date("1970-01-02"), Some((1 << 31) + 1));
        assert_eq!(time_ns("01:02:03.5"), Some(3_723_500_000_000));
        assert_eq!(time_ns("25:00"), None);
    }
}
