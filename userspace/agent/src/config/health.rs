//! `[health]`: how backends are checked.

use std::time::Duration;

use serde::Deserialize;
use steps::duration;
use toml::Spanned;

use super::bounds::{DURATION, ESTABLISHED, MOST_IN_A_ROW, names};
use super::{
    error::Flaw,
    value::{expected, one_of, whole, within},
};
use crate::backends::{HealthCheck, longest_timeout};

/// How backends are checked, and what happens to connections of a backend that is found dead.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [{"interval": "1s", "fall": 2, "established": "leave"}]))]
pub(super) struct RawHealth {
    /// Time between two checks of a backend.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "default" = "1s", "x-min" = "100ms", "x-max" = "60s")
    )]
    pub interval: Option<Spanned<String>>,
    /// Time that a check may take. `fall` of them have to fit into nine tenths of `interval`. Without this key: two
    /// fifths of `interval`, or what fits.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "examples" = ["400ms"])
    )]
    pub timeout: Option<Spanned<String>>,
    /// Good checks in a row that bring a backend back.
    #[schemars(with = "Option<i64>", range(min = 1, max = MOST_IN_A_ROW), extend("default" = 2))]
    pub rise: Option<Spanned<i64>>,
    /// Failed checks in a row that take a backend out.
    #[schemars(with = "Option<i64>", range(min = 1, max = MOST_IN_A_ROW), extend("default" = 2))]
    pub fall: Option<Spanned<i64>>,
    /// Time after which a backend that comes back has its full share of new connections.
    #[schemars(
        with = "Option<String>",
        regex(pattern = DURATION),
        extend("title" = "duration", "default" = "10s", "x-min" = "0ms", "x-max" = "3600s")
    )]
    pub slow_start: Option<Spanned<String>>,
    /// `true`: a backend has to answer OPTIONS in CQL; `false`: to accept a connection is enough, as for databases
    /// that speak TLS only.
    #[schemars(extend("default" = true))]
    pub cql: Option<bool>,
    /// Treatment of established connections of a backend that is found dead. `leave`: nothing; `reset`: they are
    /// reset.
    #[schemars(
        with = "Option<String>",
        extend("enum" = names(&ESTABLISHED), "default" = "leave")
    )]
    pub established: Option<Spanned<String>>,
}

/// Shortest interval between checks. More checks would be a load of their own.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);
const LONGEST_INTERVAL: Duration = Duration::from_secs(60);
/// A backend that has to prove itself for longer is better drained.
const LONGEST_SLOW_START: Duration = Duration::from_secs(3600);

pub(super) fn settings(raw: RawHealth) -> Result<HealthCheck, Flaw> {
    let or = HealthCheck::default();
    let interval = match &raw.interval {
        Some(text) => within("health.interval", text, SHORTEST_INTERVAL, LONGEST_INTERVAL)?,
        None => or.interval,
    };
    let in_a_row = |key, n: Option<&Spanned<i64>>, or: u32| match n {
        Some(n) => whole(key, n, MOST_IN_A_ROW).map(|n| n as u32),
        None => Ok(or),
    };
    let fall = in_a_row("health.fall", raw.fall.as_ref(), or.fall)?;
    Ok(HealthCheck {
        interval,
        timeout: timeout(raw.timeout.as_ref(), interval, fall)?,
        rise: in_a_row("health.rise", raw.rise.as_ref(), or.rise)?,
        fall,
        slow_start: match &raw.slow_start {
            Some(text) => within(
                "health.slow_start",
                text,
                Duration::ZERO,
                LONGEST_SLOW_START,
            )?,
            None => or.slow_start,
        },
        cql: raw.cql.unwrap_or(or.cql),
        established: match &raw.established {
            Some(text) => one_of("health.established", text, &ESTABLISHED)?,
            None => or.established,
        },
    })
}

/// Two fifths of the interval, as the default is of its own, or what still fits.
fn timeout(
    text: Option<&Spanned<String>>,
    interval: Duration,
    fall: u32,
) -> Result<Duration, Flaw> {
    let longest = longest_timeout(interval, fall);
    let Some(text) = text else {
        return Ok((interval * 2 / 5).min(longest));
    };
    match duration(text.get_ref()) {
        Some(timeout) if !timeout.is_zero() && timeout <= longest => Ok(timeout),
        _ => {
            let what = format!(
                "at most {} ms, so that {fall} failed checks are over within two intervals of {} ms",
                longest.as_millis(),
                interval.as_millis()
            );
            expected("health.timeout", text, &what)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::Established;
    use crate::config::tests::parse;

    #[test]
    fn health_is_read_and_what_it_cannot_keep_is_refused() {
        let health = |text: &str| parse(&format!("[health]\n{text}\n")).map(|config| config.health);
        let default = health("").unwrap();
        assert_eq!(default, HealthCheck::default());
        let all = health(
            "interval = \"5s\"\ntimeout = \"1s\"\nrise = 3\nfall = 4\nslow_start = \"1m\"\n\
             cql = false\nestablished = \"reset\"",
        );
        let expected = HealthCheck {
            interval: Duration::from_secs(5),
            timeout: Duration::from_secs(1),
            rise: 3,
            fall: 4,
            slow_start: Duration::from_secs(60),
            cql: false,
            established: Established::Reset,
        };
        assert_eq!(all.unwrap(), expected);
        // What fits is chosen where the file does not say.
        assert_eq!(health("fall = 9").unwrap().timeout.as_millis(), 100);
        assert_eq!(
            health("interval = \"200ms\"").unwrap().timeout.as_millis(),
            80
        );
        for (text, said) in [
            (
                "timeout = \"451ms\"",
                "health.timeout: expected at most 450 ms",
            ),
            ("timeout = \"0s\"", "health.timeout: expected at most"),
            (
                "timeout = \"400ms\"\nfall = 3",
                "health.timeout: expected at most 300 ms",
            ),
            (
                "interval = \"50ms\"",
                "health.interval: expected from 100ms to 60s",
            ),
            (
                "interval = \"2m\"",
                "health.interval: expected from 100ms to 60s",
            ),
            ("interval = \"1\"", "health.interval: expected"),
            ("interval = \"s\"", "health.interval: expected"),
            (
                "slow_start = \"61m\"",
                "health.slow_start: expected from 0ms to 3600s",
            ),
            (
                "slow_start = \"99999999999999999999m\"",
                "health.slow_start: expected",
            ),
            (
                "rise = 0",
                "health.rise: expected a whole number from 1 to 10",
            ),
            (
                "fall = 11",
                "health.fall: expected a whole number from 1 to 10",
            ),
            (
                "established = \"keep\"",
                "health.established: expected `leave` or `reset`",
            ),
            ("often = true", "unknown field `often`"),
        ] {
            let refused = health(text).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
            assert!(refused.starts_with("policy.toml:2:"), "{refused}");
        }
    }
}
