//! [`WindowSettings`]: a window as the policy file has it.

use jiff::{civil::Time, tz};
use serde::Deserialize;

use super::{Days, Hours, Window};
use crate::did_you_mean;

/// Days and hours during which it holds, by the clocks of a time zone. Outside of them it is as if it were not there.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("examples" = [
    {"days": "mon-fri", "from": "06:00", "to": "22:00", "tz": "Europe/Berlin"}
]))]
pub struct WindowSettings {
    /// Days of the week, with `-` between the first and the last of several, and commas. Hours over midnight belong to the day
    /// on which they begin. Without this key: every day.
    #[schemars(extend("examples" = ["mon-fri", "sat,sun"]))]
    pub days: Option<String>,
    /// Beginning of the hours, `HH:MM`. Goes with `to`.
    #[schemars(extend("examples" = ["22:00"]))]
    pub from: Option<String>,
    /// End of the hours; what is before `from` is on the next day. Without both keys: the whole day.
    #[schemars(extend("examples" = ["06:00", "24:00"]))]
    pub to: Option<String>,
    /// Name of the time zone in the IANA database. It is looked up in the host's copy when the file is read.
    #[schemars(extend("examples" = ["Europe/Berlin", "UTC"]))]
    pub tz: String,
}

impl WindowSettings {
    /// Reads the window.
    ///
    /// # Errors
    /// Says which key cannot be, and what it should be.
    pub fn build(&self) -> Result<Window, String> {
        let hours = match (&self.from, &self.to) {
            (Some(from), Some(to)) => Some(hours(from, to)?),
            (None, None) => None,
            (Some(_), None) => return Err("when: expected `to` beside `from`".to_owned()),
            (None, Some(_)) => return Err("when: expected `from` beside `to`".to_owned()),
        };
        if self.days.is_none() && hours.is_none() {
            return Err("when: expected `days`, or `from` and `to`".to_owned());
        }
        let days = self.days.as_deref().map(days).transpose()?;
        let zone = tz::db().get(&self.tz).map_err(|_| no_zone(&self.tz))?;
        Ok(Window {
            days: days.unwrap_or(Days([true; 7])),
            hours,
            zone_name: zone.iana_name().unwrap_or(&self.tz).into(),
            zone,
        })
    }
}

fn no_zone(found: &str) -> String {
    let names: Vec<String> = tz::db().available().map(|name| name.to_string()).collect();
    let lower: Vec<String> = names.iter().map(|name| name.to_lowercase()).collect();
    let nearest = did_you_mean(found, lower.iter().map(String::as_str));
    // In the letters in which zones are written.
    let nearest = names
        .iter()
        .zip(&lower)
        .fold(nearest, |said, (name, lower)| {
            said.replace(&format!("`{lower}`"), &format!("`{name}`"))
        });
    format!(
        "when.tz: expected a time zone such as `Europe/Berlin` or `UTC`; found {found:?}{nearest}"
    )
}

fn hours(from: &str, to: &str) -> Result<Hours, String> {
    let from_time = time("from", from)?;
    let to_time = match to {
        "24:00" => None,
        _ => Some(time("to", to)?),
    };
    if to_time == Some(from_time) {
        return Err(format!(
            "when.to: expected another time than `from`; found {to:?} (without both: the whole day)"
        ));
    }
    Ok(Hours {
        from: from_time,
        to: to_time,
    })
}

/// `HH:MM`, or `HH:MM:SS`
fn time(key: &str, text: &str) -> Result<Time, String> {
    let wrong = || {
        let most = if key == "to" { "24:00" } else { "23:59" };
        format!("when.{key}: expected a time from 00:00 to {most}; found {text:?}")
    };
    let number = |part: &str| {
        let is_plain = part.len() == 2 && part.bytes().all(|b| b.is_ascii_digit());
        is_plain.then(|| part.parse::<i8>().ok()).flatten()
    };
    let parts: Option<Vec<i8>> = text.split(':').map(number).collect();
    let (hour, minute, second) = match parts.as_deref() {
        Some([hour, minute]) => (*hour, *minute, 0),
        Some([hour, minute, second]) => (*hour, *minute, *second),
        _ => return Err(wrong()),
    };
    Time::new(hour, minute, second, 0).map_err(|_| wrong())
}

/// `mon-fri`, `sat,sun`
fn days(text: &str) -> Result<Days, String> {
    let day = |name: &str| {
        let name = name.trim();
        let found = Days::NAMES.iter().position(|day| *day == name);
        found.ok_or_else(|| {
            let names = Days::NAMES.join(", ");
            let meant = did_you_mean(name, Days::NAMES);
            format!(
                "when.days: expected days ({names}), as in `mon-fri` or `sat,sun`; found {name:?}{meant}"
            )
        })
    };
    let mut days = Days([false; 7]);
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (day(first)?, day(last)?);
        let count = (last + Days::NAMES.len() - first) % Days::NAMES.len();
        for index in (first..=first + count).map(|index| index % Days::NAMES.len()) {
            if let Some(is_in) = days.0.get_mut(index) {
                *is_in = true;
            }
        }
    }
    Ok(days)
}
