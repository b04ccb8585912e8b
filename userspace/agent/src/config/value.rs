//! Values of several keys, and the refusal of a value.

use std::{
    path::{Component, Path, PathBuf},
    time::Duration,
};

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
    expected(key, text, &choice)
}
