//! How long what is written may live, and how far ahead of the proxy's clock it may claim to be.
//!
//! Both stand in the text, are bound to markers of it, or come beside it.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;

use super::markers::{Marked, bound_to};
use super::refusal::refusal;
use super::text::{Edits, Text, mentions};
use crate::sites::{Given, Part, Sites, Using};
use crate::{Bound, Change, Refused, Request, Value};
use cql::Number;
use cql::StatementKind;
use cql::text::Name;
use cql::text::parse;

/// The longest TTL that Cassandra takes: 20 years, in seconds.
const LONGEST_TTL: i64 = 20 * 365 * 24 * 3600;

/// Clocks that are further apart are wrong.
const FURTHEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// Clock that says when something was written: `"server"`, or `{ max_ahead = "1s" }`.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(
    untagged,
    expecting = "timestamps: expected `\"server\"` or `{ max_ahead = \"1s\" }`"
)]
pub enum Timestamps {
    /// `server`: the database's clock.
    Word(#[schemars(extend("enum" = ["server"]))] String),
    /// The client's clock, within a bound.
    Ahead(Ahead),
}

/// How far a client's clock may be ahead.
#[derive(Clone, Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"max_ahead": "1s"}]))]
pub struct Ahead {
    /// Most that a timestamp may be ahead of the agent's clock.
    #[schemars(
        regex(pattern = "^[0-9]+(ms|s|m|h|d)$"),
        extend("title" = "duration", "x-min" = "0s", "x-max" = "365d")
    )]
    pub max_ahead: String,
}

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Caps {
    /// In seconds.
    max_ttl: Option<i64>,
    /// The TTL of writes that have none, in seconds.
    default_ttl: Option<i64>,
    clock: Option<Clock>,
}

/// The clock that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clock {
    /// The database's.
    Server,
    /// The client's, up to so many µs ahead of the proxy's.
    AtMost(i64),
}

/// The bound values of a statement that are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Markers(Box<[Marker]>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Marker {
    position: usize,
    /// By which it is bound, where values are by name.
    name: Box<str>,
    /// A marker of that name stands for something else, too.
    shared: bool,
    of: Of,
}

impl Marked for Marker {
    fn position(&self) -> usize {
        self.position
    }

    fn name(&self) -> &str {
        &self.name
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Ttl,
    Timestamp,
}

impl Caps {
    /// Reads the settings of these names; a text is a number and a unit.
    pub(super) fn new(
        max_ttl: Option<&str>,
        default_ttl: Option<&str>,
        timestamps: Option<&Timestamps>,
    ) -> Result<Self, String> {
        let ttl = |key: &str, text: Option<&str>| {
            let Some(text) = text else {
                return Ok(None);
            };
            let seconds = duration(text).map(|time| time.as_secs() as i64);
            let seconds = seconds.filter(|seconds| (1..=LONGEST_TTL).contains(seconds));
            seconds.map(Some).ok_or_else(|| {
                format!(
                    "{key}: expected seconds, minutes, hours or days, of 1 s to 20 years: `3600s`, `90d`; \
                     found {text:?}"
                )
            })
        };
        let clock = match timestamps {
            None => None,
            Some(Timestamps::Word(word)) if word == "server" => Some(Clock::Server),
            Some(Timestamps::Word(word)) => {
                return Err(format!(
                    "timestamps: expected `\"server\"` or `{{ max_ahead = \"1s\" }}`, found {word:?}"
                ));
            }
            Some(Timestamps::Ahead(Ahead { max_ahead })) => match duration(max_ahead) {
                Some(time) if time <= FURTHEST => Some(Clock::AtMost(time.as_micros() as i64)),
                _ => {
                    return Err(format!(
                        "timestamps.max_ahead: expected milliseconds, seconds, minutes, hours or days, up to \
                         `365d`; found {max_ahead:?}"
                    ));
                }
            },
        };
        let caps = Self {
            max_ttl: ttl("max_ttl", max_ttl)?,
            default_ttl: ttl("default_ttl", default_ttl)?,
            clock,
        };
        match (caps.default_ttl, caps.max_ttl) {
            (Some(default), Some(most)) if default > most => Err(format!(
                "default_ttl: expected at most `max_ttl`, {most} s; found {default} s"
            )),
            _ => Ok(caps),
        }
    }

    pub(super) fn is_any(&self) -> bool {
        *self != Self::default()
    }

    /// The caps for a statement that may not be given a TTL.
    pub(super) fn without_default(self) -> Self {
        Self {
            default_ttl: None,
            ..self
        }
    }

    /// Notes what is to be changed of a text, and which of its markers are to be looked at. `prepared`:
    /// it will be executed at other times than now.
    pub(super) fn text(
        &self,
        text: &Text<'_>,
        unix_us: Option<i64>,
        prepared: bool,
        edits: &mut Edits,
    ) -> Result<Markers, Refused> {
        use StatementKind as Kind;
        let bytes = text.bytes;
        let kind = parse(bytes, bytes.len()).statement.kind;
        let changes = matches!(
            kind,
            Kind::Insert | Kind::Update | Kind::Delete | Kind::Batch | Kind::Unknown
        );
        let has_ttl = self.max_ttl.is_some() && mentions(bytes, "ttl");
        let has_timestamp = self.clock.is_some() && mentions(bytes, "timestamp");
        let lacks_ttl = self.default_ttl.is_some() && kind != Kind::Delete;
        if !changes || !(has_ttl || has_timestamp || lacks_ttl) {
            return Ok(Markers::default());
        }
        let (_, sites) = text.sites().ok_or_else(not_understood)?;
        let mut looking = Looking {
            caps: self,
            unix_us,
            prepared,
            sites,
            edits,
            markers: Vec::new(),
            names: None,
        };
        for part in &sites.parts {
            looking.part(part)?;
        }
        if let Some(using) = &sites.batch {
            looking.using(using)?;
        }
        Ok(Markers(looking.markers.into()))
    }

    /// Notes what is to be changed of the values that are bound to the statement with this number.
    pub(super) fn values(
        &self,
        request: &Request<'_>,
        number: usize,
        markers: &Markers,
        changes: &mut Vec<Change>,
    ) -> Result<(), Refused> {
        if markers.0.is_empty() {
            return Ok(());
        }
        let bound = request.bound(number);
        for (value, marker) in bound_to(&bound, &markers.0) {
            let Some(new) = self.value(request, value, marker.of)? else {
                continue;
            };
            if marker.shared && value.name.is_some() {
                return Err(refusal(
                    "shared",
                    "the proxy's policy caps TTLs or timestamps, and the marker of one stands for another \
                     value, too; give it a name of its own",
                ));
            }
            changes.extend(new.of(value));
        }
        Ok(())
    }

    /// The change that a bound value needs.
    fn value(
        &self,
        request: &Request<'_>,
        bound: &Bound<'_>,
        of: Of,
    ) -> Result<Option<New>, Refused> {
        match (of, bound.value) {
            // What is unset is as if there was no TTL, what is null as if it was 0.
            (Of::Ttl, Value::Unset) => Ok(self.default_ttl.map(New::Ttl)),
            (Of::Ttl, Value::Null | Value::Is([])) => Ok(self.max_ttl.map(New::Ttl)),
            (Of::Ttl, Value::Is(bytes)) => {
                let ttl = bytes.try_into().map(i32::from_be_bytes);
                Ok(ttl
                    .ok()
                    .and_then(|ttl| self.capped_ttl(ttl.into()))
                    .map(New::Ttl))
            }
            (Of::Timestamp, Value::Unset | Value::Null) => Ok(None),
            (Of::Timestamp, Value::Is(bytes)) => {
                let claimed = bytes.try_into().map(i64::from_be_bytes);
                let Ok(claimed) = claimed else {
                    return Ok(None);
                };
                match self.clock {
                    // Before v4 nothing is unset.
                    Some(Clock::Server) if request.version() >= 4 => Ok(Some(New::Unset)),
                    Some(Clock::Server) => Ok(Some(New::Timestamp(now(request.unix_us())?))),
                    _ => Ok(self
                        .capped_timestamp(claimed, request.unix_us())?
                        .map(New::Timestamp)),
                }
            }
        }
    }

    /// Caps what comes beside the statements. True: it has changed something.
    pub(super) fn request(&self, request: &mut Request<'_>) -> Result<bool, Refused> {
        if self.max_ttl.is_some() && request.has_now_in_seconds() {
            return Err(refusal(
                "now_in_seconds",
                "the proxy's policy caps TTLs, and the request says itself what time it is",
            ));
        }
        let Some(claimed) = request.timestamp() else {
            return Ok(false);
        };
        match self.clock {
            None => Ok(false),
            Some(Clock::Server) => {
                request.set_timestamp(None);
                Ok(true)
            }
            Some(Clock::AtMost(_)) => {
                let capped = self.capped_timestamp(claimed, request.unix_us())?;
                if capped.is_some() {
                    request.set_timestamp(capped);
                }
                Ok(capped.is_some())
            }
        }
    }

    /// Returns the TTL to use instead. None: it may stay. 0 stands for ever; the database refuses negative ones.
    fn capped_ttl(&self, ttl: i64) -> Option<i64> {
        self.max_ttl.filter(|most| ttl == 0 || ttl > *most)
    }

    /// The change that a timestamp needs.
    fn capped_timestamp(&self, claimed: i64, unix_us: Option<i64>) -> Result<Option<i64>, Refused> {
        let Some(Clock::AtMost(ahead)) = self.clock else {
            return Ok(None);
        };
        let latest = now(unix_us)?.saturating_add(ahead);
        Ok((claimed > latest).then_some(latest))
    }
}

fn not_understood() -> Refused {
    refusal(
        "unknown",
        "the proxy's policy caps TTLs or timestamps, and does not understand the statement",
    )
}

fn now(unix_us: Option<i64>) -> Result<i64, Refused> {
    unix_us.ok_or_else(|| refusal("no_clock", "the proxy does not know what time it is"))
}

/// The new form of a bound value.
enum New {
    Ttl(i64),
    Timestamp(i64),
    Unset,
}

impl New {
    fn of(self, bound: &Bound<'_>) -> Option<Change> {
        match self {
            Self::Ttl(seconds) => {
                let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
                bound.becomes(Value::Is(&seconds.to_be_bytes()))
            }
            Self::Timestamp(us) => bound.becomes(Value::Is(&us.to_be_bytes())),
            Self::Unset => bound.becomes(Value::Unset),
        }
    }
}

/// A text that is being looked at.
struct Looking<'l, 't> {
    caps: &'l Caps,
    unix_us: Option<i64>,
    prepared: bool,
    sites: &'l Sites<'t>,
    edits: &'l mut Edits,
    markers: Vec<Marker>,
    /// How many markers have which name; counted when it is asked for.
    names: Option<HashMap<Box<str>, usize>>,
}

impl<'l, 't> Looking<'l, 't> {
    fn part(&mut self, part: &Part<'t>) -> Result<(), Refused> {
        let default = self.caps.default_ttl.filter(|_| {
            let has_cells = matches!(part.kind, StatementKind::Insert | StatementKind::Update);
            has_cells && !self.sites.counters
        });
        match (&part.using, default) {
            (None, None) => Ok(()),
            (None, Some(ttl)) => {
                let at = part.using_at..part.using_at;
                self.edits.push((at, format!(" USING TTL {ttl}")));
                Ok(())
            }
            (Some(using), default) => {
                if let (None, Some(ttl)) = (&using.ttl, default) {
                    // Where there was a timestamp alone, and perhaps is none any more.
                    let word = match self.removes_timestamp(using) {
                        true => "USING",
                        false => "AND",
                    };
                    let at = using.at.end..using.at.end;
                    self.edits.push((at, format!(" {word} TTL {ttl}")));
                }
                self.using(using)
            }
        }
    }

    fn removes_timestamp(&self, using: &Using<'t>) -> bool {
        let given = using.timestamp.as_ref();
        self.caps.clock == Some(Clock::Server) && given.is_some_and(|given| given.marker.is_none())
    }

    fn using(&mut self, using: &Using<'t>) -> Result<(), Refused> {
        let capped = match &using.ttl {
            None => None,
            Some(given) => match given.number {
                Number::Is(ttl) => self.caps.capped_ttl(ttl),
                Number::Marker => {
                    self.marker(given, Of::Ttl);
                    None
                }
            },
        };
        if self.removes_timestamp(using) && using.timeout {
            return Err(not_understood());
        }
        if self.removes_timestamp(using) {
            // It, and what binds it to a TTL: the clause is written anew.
            let clause = match (&using.ttl, capped) {
                (None, _) => String::new(),
                (Some(_), Some(ttl)) => format!("USING TTL {ttl}"),
                (Some(given), None) => match (given.number, &given.marker) {
                    (Number::Is(ttl), _) => format!("USING TTL {ttl}"),
                    (_, Some((_, Some(name)))) => format!("USING TTL :{}", written(*name)),
                    _ => "USING TTL ?".to_owned(),
                },
            };
            self.edits.push((using.at.clone(), clause));
            return Ok(());
        }
        if let (Some(given), Some(ttl)) = (&using.ttl, capped) {
            self.edits.push((given.at.clone(), ttl.to_string()));
        }
        let Some(given) = &using.timestamp else {
            return Ok(());
        };
        match given.number {
            Number::Marker => self.marker(given, Of::Timestamp),
            Number::Is(claimed) => {
                let capped = self.caps.capped_timestamp(claimed, self.unix_us)?;
                if capped.is_some() && self.prepared {
                    return Err(refusal(
                        "prepared_timestamp",
                        "the proxy's policy caps timestamps, and the statement that is prepared has one \
                         that is ahead; use `USING TIMESTAMP ?`",
                    ));
                }
                if let Some(capped) = capped {
                    self.edits.push((given.at.clone(), capped.to_string()));
                }
            }
        }
        Ok(())
    }

    fn marker(&mut self, given: &Given<'t>, of: Of) {
        let is_capped = match of {
            Of::Ttl => self.caps.max_ttl.is_some() || self.caps.default_ttl.is_some(),
            Of::Timestamp => self.caps.clock.is_some(),
        };
        let Some((position, name)) = given.marker.filter(|_| is_capped) else {
            return;
        };
        // As `Cql.g` calls markers without a name.
        let anonymous = match of {
            Of::Ttl => "[ttl]",
            Of::Timestamp => "[timestamp]",
        };
        let shared = name.is_some_and(|name| self.count_shared(name));
        self.markers.push(Marker {
            position,
            name: name.map_or(anonymous.into(), Name::to_boxed),
            shared,
            of,
        });
    }
}

impl<'l, 't> Looking<'l, 't> {
    /// Several markers have this name.
    fn count_shared(&mut self, name: Name<'t>) -> bool {
        let markers = &self.sites.markers;
        let count = || {
            let mut counts = HashMap::new();
            for name in markers.iter().flatten() {
                *counts.entry(name.to_boxed()).or_insert(0_usize) += 1;
            }
            counts
        };
        let counts = self.names.get_or_insert_with(count);
        counts.get(&name.to_boxed()).is_some_and(|count| *count > 1)
    }
}

/// A name as the text had it.
fn written(name: Name<'_>) -> String {
    match name {
        Name::Exact(name) | Name::Folded(name) => name.to_owned(),
        Name::Quoted(name) => format!("\"{name}\""),
    }
}

/// A number and a unit.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    let seconds = match unit {
        "ms" => return Some(Duration::from_millis(number)),
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    Some(Duration::from_secs(number.checked_mul(seconds)?))
}
