//! [`Window`]: days and hours in a time zone, during which a rule or a step holds.
//!
//! A window goes by what a clock on the wall of its zone shows, and by nothing else. So an hour that the clocks leave out
//! is in no window, and an hour that they show twice is in it twice.

mod settings;
#[cfg(test)]
mod tests;

use std::{fmt, sync::Arc};

use crate::{Policy, Rule};

pub use jiff::Timestamp;
use jiff::{
    SignedDuration,
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone},
};
pub use settings::WindowSettings;

/// Days in which a window opens and closes at the latest, if it ever does: a week, and another one if the hour of
/// the first is one that the clocks leave out.
const LOOK_AHEAD_DAYS: i64 = 16;

/// Days and hours in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    days: Days,
    /// The hours of each of these days; None: all of them.
    hours: Option<Hours>,
    zone: TimeZone,
    zone_name: Arc<str>,
}

/// Days of the week, Monday first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Days([bool; 7]);

/// Hours of a day, or of a day and the next morning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hours {
    from: Time,
    /// The end, which is no longer within; None: midnight.
    to: Option<Time>,
}

impl Hours {
    /// Whether they end on the day after that on which they begin.
    fn are_over_midnight(self) -> bool {
        self.to.is_some_and(|to| to < self.from)
    }
}

/// The state of a window at a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowState {
    /// Whether the window is open.
    pub is_open: bool,
    /// The moment at which that changes; None: it does not.
    pub until: Option<Timestamp>,
    zone: TimeZone,
}

impl Window {
    /// Whether the window is open at a moment.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.has(self.zone.to_datetime(now))
    }

    /// The window's state at a moment.
    pub fn state(&self, now: Timestamp) -> WindowState {
        WindowState {
            is_open: self.is_open(now),
            until: self.next_change(now),
            zone: self.zone.clone(),
        }
    }

    /// The first moment after `now` at which the window opens or closes. None: it does neither.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let is_open = self.is_open(now);
        let mut edges = self.edges(now);
        edges.sort_unstable();
        let mut later = edges.into_iter().filter(|edge| *edge > now);
        later.find(|edge| self.is_open(*edge) != is_open)
    }

    /// Whether the wall clock shows a time of the window.
    fn has(&self, shown: DateTime) -> bool {
        let today = || self.days.has(shown.date());
        let Some(hours) = self.hours else {
            return today();
        };
        let time = shown.time();
        match hours.are_over_midnight() {
            false => today() && time >= hours.from && hours.to.is_none_or(|to| time < to),
            true => {
                let has_yesterday = || {
                    let yesterday = shown.date().yesterday();
                    yesterday.is_ok_and(|day| self.days.has(day))
                };
                time >= hours.from && today()
                    || hours.to.is_some_and(|to| time < to) && has_yesterday()
            }
        }
    }

    /// All moments at which the window may open or close soon: when the clocks show the beginning or the end of one, and
    /// when they are changed. They are in no order.
    fn edges(&self, now: Timestamp) -> Vec<Timestamp> {
        let Ok(end) = now.checked_add(SignedDuration::from_hours(24 * LOOK_AHEAD_DAYS)) else {
            return Vec::new();
        };
        let jumps = self.zone.following(now).map(|jump| jump.timestamp());
        let mut edges: Vec<Timestamp> = jumps.take_while(|at| *at <= end).collect();
        let from = self.hours.map_or(Time::midnight(), |hours| hours.from);
        let to = self.hours.and_then(|hours| hours.to);
        let mut day = self.zone.to_datetime(now).date();
        for _ in 0..=LOOK_AHEAD_DAYS {
            for time in [from, to.unwrap_or_default()] {
                edges.extend(self.moments(day.to_datetime(time)).into_iter().flatten());
            }
            match day.tomorrow() {
                Ok(tomorrow) => day = tomorrow,
                Err(_) => break,
            }
        }
        edges
    }

    /// The moments at which the wall clock shows a time: one, two, or none.
    fn moments(&self, shown: DateTime) -> [Option<Timestamp>; 2] {
        let offsets = match self.zone.to_ambiguous_timestamp(shown).offset() {
            AmbiguousOffset::Unambiguous { offset } => [Some(offset), None],
            AmbiguousOffset::Fold { before, after } => [Some(before), Some(after)],
            AmbiguousOffset::Gap { .. } => [None, None],
        };
        offsets.map(|offset| offset?.to_timestamp(shown).ok())
    }
}

impl Policy {
    /// The policy as it is at a moment: the rules whose window is open, which are always there, and those that have none.
    pub fn open_at(&self, now: Timestamp) -> Self {
        let is_there = |rule: &&Rule| rule.when.as_ref().is_none_or(|when| when.is_open(now));
        let rules = self.rules.iter().filter(is_there).cloned();
        Self {
            rules: rules.map(|rule| Rule { when: None, ..rule }).collect(),
            ..self.clone()
        }
    }

    /// The rules that have a window, each with it.
    pub fn windows(&self) -> impl Iterator<Item = (&Rule, &Window)> {
        let rules = self.rules.iter();
        rules.filter_map(|rule| Some((rule, rule.when.as_ref()?)))
    }

    /// The first moment after `now` at which a rule's window opens or closes.
    pub fn next_change(&self, now: Timestamp) -> Option<Timestamp> {
        let changes = self.windows().map(|(_, when)| when.next_change(now));
        changes.flatten().min()
    }
}

impl Days {
    const NAMES: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];

    fn has(self, day: Date) -> bool {
        let index = day.weekday().to_monday_zero_offset();
        usize::try_from(index).is_ok_and(|index| self.0.get(index) == Some(&true))
    }
}

impl fmt::Display for Days {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<(&str, bool)> = Self::NAMES.into_iter().zip(self.0).collect();
        let runs = all.chunk_by(|(_, a), (_, b)| a == b);
        let runs = runs.filter(|run| run.iter().all(|(_, is_in)| *is_in));
        let runs: Vec<String> = runs
            .map(|run| match run {
                [(first, _), .., (last, _)] if run.len() > 2 => format!("{first}-{last}"),
                _ => run
                    .iter()
                    .map(|(name, _)| *name)
                    .collect::<Vec<_>>()
                    .join(","),
            })
            .collect();
        match self.0.contains(&false) {
            false => f.write_str("every day"),
            true => f.write_str(&runs.join(",")),
        }
    }
}

/// `mon-fri 06:00-22:00 Europe/Berlin`
impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.days)?;
        if let Some(Hours { from, to }) = self.hours {
            let to = to.map_or("24:00".to_owned(), shown);
            write!(f, " {}-{to}", shown(from))?;
        }
        write!(f, " {}", self.zone_name)
    }
}

/// `open until 2026-11-27 22:00 +01:00`
impl fmt::Display for WindowState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_open { "open" } else { "closed" })?;
        match self.until {
            None => f.write_str(" always"),
            Some(until) => {
                let offset = self.zone.to_offset(until);
                let at = offset.to_datetime(until);
                write!(f, " until {} {}", at.date(), shown(at.time()))?;
                let minutes = offset.seconds().abs() / 60;
                let sign = if offset.is_negative() { '-' } else { '+' };
                write!(f, " {sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

/// `06:00`, and seconds if there are some.
fn shown(time: Time) -> String {
    match time.second() {
        0 => format!("{:02}:{:02}", time.hour(), time.minute()),
        second => format!("{:02}:{:02}:{second:02}", time.hour(), time.minute()),
    }
}
