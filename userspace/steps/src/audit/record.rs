//! The record that a flow's thread hands to the journal's thread, and the line that is made of it.

use std::{
    io::Write as _,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use cql::{Consistency, ErrorCode};

use super::{Refusal, Told};
use crate::fields::{Fields, put_text};

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Outcome {
    Ok = 0,
    /// The database answered with ERROR.
    Error = 1,
    /// The request did not reach the database.
    Refused = 2,
    /// The flow has ended before the answer, or is not read any more.
    Unanswered = 3,
}

impl Outcome {
    pub(super) fn of(told: &Told<'_>) -> Self {
        match (told.by, told.is_answered, told.completed.error) {
            (Some(_), ..) => Self::Refused,
            (None, false, _) => Self::Unanswered,
            (None, true, Some(_)) => Self::Error,
            (None, true, None) => Self::Ok,
        }
    }
}

/// A request and its answer.
pub(super) struct Record<'r> {
    pub(super) outcome: Outcome,
    pub(super) error: Option<ErrorCode>,
    pub(super) latency_ns: u64,
    pub(super) consistency: Option<Consistency>,
    pub(super) values: Option<u32>,
    pub(super) rows: Option<u32>,
    /// The flow's identity, in JSON, as are the texts that follow.
    pub(super) who: &'r str,
    pub(super) what: &'r str,
    /// The statement's text. Empty: it is not shown.
    pub(super) statement: &'r str,
    pub(super) by: Option<Refusal>,
}

/// The number that stands for an absent value.
const NONE: u32 = u32::MAX;

/// The number that stands for an ERROR whose code could not be read.
const UNREADABLE: u32 = u32::MAX - 1;

impl Record<'_> {
    /// Appends the record's bytes.
    pub(super) fn put(&self, to: &mut Vec<u8>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default();
        let error = match self.error {
            None => NONE,
            Some(ErrorCode::Unreadable) => UNREADABLE,
            Some(ErrorCode::Code(code)) => code.cast_unsigned(),
        };
        to.extend((now.as_micros() as u64).to_le_bytes());
        to.extend((self.latency_ns / 1_000).to_le_bytes());
        to.push(self.outcome as u8);
        let level = self.consistency.map_or(NONE, |level| level.0.into());
        for number in [
            error,
            level,
            self.values.unwrap_or(NONE),
            self.rows.unwrap_or(NONE),
        ] {
            to.extend(number.to_le_bytes());
        }
        let (step, reason) = self.by.map_or(("", ""), |by| (by.step, by.reason));
        for text in [self.who, self.what, self.statement, step, reason] {
            put_text(to, text.as_bytes());
        }
    }
}

/// Appends the line of a record.
pub(super) fn line(record: &[u8], to: &mut Vec<u8>) {
    let begins = to.len();
    if write(record, to).is_none() {
        to.truncate(begins);
    }
}

fn write(record: &[u8], to: &mut Vec<u8>) -> Option<()> {
    let mut from = Fields(record);
    let time = Duration::from_micros(from.long()?);
    let latency_us = from.long()?;
    let outcome = match from.take(1)? {
        [0] => "ok",
        [1] => "error",
        [2] => "refused",
        _ => "unanswered",
    };
    let [error, level, values, rows] = [
        from.number()?,
        from.number()?,
        from.number()?,
        from.number()?,
    ];
    let [who, what, statement] = [from.text()?, from.text()?, from.text()?];
    let [step, reason] = [from.text()?, from.text()?];
    to.extend_from_slice(b"{\"time\":\"");
    put_time(to, time);
    to.extend_from_slice(b"\",");
    to.extend_from_slice(who);
    to.push(b',');
    to.extend_from_slice(what);
    if !statement.is_empty() {
        to.extend_from_slice(b",\"statement\":");
        to.extend_from_slice(statement);
    }
    if level != NONE {
        let level = Consistency(level as u16);
        write!(to, ",\"consistency\":\"{}\"", level.as_str()).ok()?;
    }
    write!(to, ",\"outcome\":\"{outcome}\"").ok()?;
    if error != NONE {
        let code = match error {
            UNREADABLE => ErrorCode::Unreadable,
            code => ErrorCode::Code(code.cast_signed()),
        };
        write!(to, ",\"error\":\"{}\"", code.as_str()).ok()?;
    }
    if !step.is_empty() {
        for (key, text) in [("by", step), ("reason", reason)] {
            write!(to, ",\"{key}\":\"").ok()?;
            to.extend_from_slice(text);
            to.push(b'"');
        }
    }
    write!(to, ",\"latency_us\":{latency_us}").ok()?;
    for (key, number) in [("values", values), ("rows", rows)] {
        if number != NONE {
            write!(to, ",\"{key}\":{number}").ok()?;
        }
    }
    to.extend_from_slice(b"}\n");
    Some(())
}

/// Appends a time as in RFC 3339, in UTC, to the microsecond.
fn put_time(to: &mut Vec<u8>, since_1970: Duration) {
    const DAY: u64 = 24 * 3600;
    let (seconds, micros) = (since_1970.as_secs(), since_1970.subsec_micros());
    let (year, month, day) = date((seconds / DAY) as i64);
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    // Writing to memory does not fail.
    let _ = write!(
        to,
        "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z"
    );
}

/// Returns year, month and day of a day after 1970-01-01, in the Gregorian calendar: Howard
/// Hinnant's `civil_from_days` (<https://howardhinnant.github.io/date_algorithms.html>).
fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record<'static> {
        Record {
            outcome: Outcome::Refused,
            error: Some(ErrorCode::Code(0x2200)),
            latency_ns: 1_234_567,
            consistency: Some(Consistency(6)),
            values: Some(2),
            rows: None,
            who: "\"rule\":\"r\"",
            what: "\"kind\":\"drop\"",
            statement: "\"DROP TABLE t\"",
            by: Some(Refusal {
                step: "guard",
                reason: "ddl",
            }),
        }
    }

    #[test]
    fn a_record_is_a_line() {
        let (mut bytes, mut text) = (Vec::new(), Vec::new());
        record().put(&mut bytes);
        line(&bytes, &mut text);
        let text = String::from_utf8(text).unwrap();
        let rest = text.split_once("Z\",").unwrap().1;
        assert_eq!(
            rest,
            "\"rule\":\"r\",\"kind\":\"drop\",\"statement\":\"DROP TABLE t\",\
             \"consistency\":\"local_quorum\",\"outcome\":\"refused\",\"error\":\"invalid\",\
             \"by\":\"guard\",\"reason\":\"ddl\",\"latency_us\":1234,\"values\":2}\n"
        );
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["time"].as_str().unwrap().len(), 27);
        // A record that is cut short makes no line.
        let mut none = Vec::new();
        for end in 0..bytes.len() {
            line(&bytes[..end], &mut none);
        }
        assert_eq!(none, b"");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (951_782_399, "2000-02-28T23:59:59.000000Z"),
            (951_782_400, "2000-02-29T00:00:00.000000Z"),
            (1_798_761_599, "2026-12-31T23:59:59.000000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000000Z"),
        ] {
            let mut text = Vec::new();
            put_time(&mut text, Duration::from_secs(seconds));
            assert_eq!(text, expected.as_bytes());
        }
    }
}
