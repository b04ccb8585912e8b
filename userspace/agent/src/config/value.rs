//! Values of several keys, and the refusal of a value.

use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

use policy::did_you_mean;
use steps::duration;
use toml::Spanned;

use super::error::Flaw;

/// `sun_path` of unix(7), without its end.
pub const MAX_SOCKET_PATH_BYTES: usize = 107;

pub(super) fn absolute(key: &str, text: &Spanned<String>) -> Result<PathBuf, Flaw> {
    let path = Path::new(text.get_ref());
    let plain = |c: Component<'_>| matches!(c, Component::RootDir | Component::Normal(_));
    if path.is_absolute() && path.components().all(plain) {
        Ok(path.to_owned())
    } else {
        expected(key, text, "an absolute path without `..`")
    }
}

pub(super) fn socket_path(key: &str, text: &Spanned<String>) -> Result<PathBuf, Flaw> {
    if text.get_ref().len() > MAX_SOCKET_PATH_BYTES {
        let meant = format!("a path of at most {MAX_SOCKET_PATH_BYTES} bytes, as sockets have");
        return expected(key, text, &meant);
    }
    absolute(key, text)
}

pub(super) fn whole(key: &str, n: &Spanned<i64>, most: usize) -> Result<usize, Flaw> {
    match usize::try_from(*n.get_ref()) {
        Ok(value) if (1..=most).contains(&value) => Ok(value),
        _ => expected(key, n, &format!("a whole number from 1 to {most}")),
    }
}

pub(super) fn expected<T, V: std::fmt::Debug>(
    key: &str,
    found: &Spanned<V>,
    expected: &str,
) -> Result<T, Flaw> {
    let message = format!("{key}: expected {expected}; found {:?}", found.get_ref());
    Err(Flaw::new(found.span(), message))
}

/// The duration that a text says, within bounds.
pub(super) fn within(
    key: &str,
    text: &Spanned<String>,
    least: Duration,
    most: Duration,
) -> Result<Duration, Flaw> {
    match duration(text.get_ref()) {
        Some(found) if (least..=most).contains(&found) => Ok(found),
        _ => {
            let (least, most) = (least.as_millis(), most.as_secs());
            let what = format!("from {least}ms to {most}s: `500ms`, `2s`, `1m`");
            expected(key, text, &what)
        }
    }
}

/// The value that a text names, of `all` values with their names.
pub(super) fn one_of<T: Copy>(
    key: &str,
    text: &Spanned<String>,
    all: &[(&str, T)],
) -> Result<T, Flaw> {
    if let Some((_, value)) = all.iter().find(|(name, _)| name == text.get_ref()) {
        return Ok(*value);
    }
    let names: Vec<String> = all.iter().map(|(name, _)| format!("`{name}`")).collect();
    let choice = match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    };
    let mut message = format!("{key}: expected {choice}; found {:?}", text.get_ref());
    message += &did_you_mean(text.get_ref(), all.iter().map(|(name, _)| *name));
    Err(Flaw::new(text.span(), message))
}

/// The parser's error in one line, with the key or value that was probably meant by one that is not known.
pub(super) fn said_by_parser(error: &toml::de::Error) -> String {
    let mut message = error.message().replace('\n', ", ");
    message += &meant(&message);
    message
}

/// The key that was probably meant by one that is not known, from what the parser says of it: ``unknown field `a`,
/// expected one of `b`, `c` ``.
fn meant(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"];
    let rest = unknown
        .iter()
        .find_map(|begins| message.strip_prefix(begins));
    let Some((found, expected)) = rest.and_then(|rest| rest.split_once('`')) else {
        return String::new();
    };
    // Between the quotes.
    let keys = expected.split('`').skip(1).step_by(2);
    did_you_mean(found, keys)
}
