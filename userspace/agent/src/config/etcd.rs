//! Where an etcd is: the keys that `[policy]` and `[limits]` have alike.

use std::ops::Range;

use policy_source::{ETCD, Login, MAX_ENDPOINTS, MAX_PREFIX_BYTES, Settings};
use tls::Endpoint;
use toml::Spanned;

use super::{bounds::DEFAULT_PREFIX, error::Flaw, value::expected};

/// The keys of a table.
pub(super) struct RawEtcd {
    /// The table's name.
    pub table: &'static str,
    /// Where a key that is missing is missed.
    pub span: Range<usize>,
    pub endpoints: Vec<Spanned<String>>,
    pub prefix: Option<Spanned<String>>,
    pub user: Option<Spanned<String>>,
    pub password_file: Option<Spanned<String>>,
    pub tls: Option<tls::RawDialling>,
}

/// Reads where an etcd is. `decides`: what whoever is in between could decide.
pub(super) fn of(
    raw: RawEtcd,
    decides: &str,
    warnings: &mut Vec<String>,
) -> Result<Settings, Flaw> {
    let table = raw.table;
    let endpoints = endpoints(&raw)?;
    let is_encrypted = endpoints.iter().any(Endpoint::is_encrypted);
    let tls = raw.tls.map(tls::RawDialling::read).transpose();
    let tls = tls.map_err(|why| Flaw::new(raw.span.clone(), format!("{table}.tls: {why}")))?;
    let wrong = |why: &str| Err(Flaw::new(raw.span.clone(), format!("{table}.tls: {why}")));
    match (is_encrypted, &tls) {
        (true, None) => {
            return wrong(
                "expected with `https://`: `{ ca = \"/PATH\" }`, who has to have signed the members' certificates; found none",
            );
        }
        (false, Some(_)) => return wrong("expected with `https://` only; found `http://`"),
        _ => {}
    }
    if !is_encrypted && !endpoints.iter().all(Endpoint::is_here) {
        warnings.push(format!(
            "{table}.endpoints: without TLS, whoever is between this host and etcd decides {decides}"
        ));
    }
    let login = match (raw.user, raw.password_file) {
        (None, None) => None,
        (Some(user), Some(file)) => {
            let span = file.span();
            let path = tls::secret(&format!("{table}.password_file"), file.into_inner());
            Some(Login {
                user: user.into_inner(),
                password_file: path.map_err(|why| Flaw::new(span, why))?,
            })
        }
        (Some(one), None) | (None, Some(one)) => {
            let what = "both `user` and `password_file`, or neither; found one of them";
            return Err(Flaw::new(one.span(), format!("{table}: expected {what}")));
        }
    };
    let prefix = match raw.prefix {
        None => DEFAULT_PREFIX.to_owned(),
        Some(prefix) => checked_prefix(table, &prefix)?,
    };
    Ok(Settings {
        endpoints,
        prefix,
        login,
        tls,
    })
}

fn endpoints(raw: &RawEtcd) -> Result<Vec<Endpoint>, Flaw> {
    let key = format!("{}.endpoints", raw.table);
    if raw.endpoints.is_empty() || raw.endpoints.len() > MAX_ENDPOINTS {
        let found = raw.endpoints.len();
        let message =
            format!("{key}: expected 1 to {MAX_ENDPOINTS} members of etcd; found {found}");
        return Err(Flaw::new(raw.span.clone(), message));
    }
    let read = |text: &Spanned<String>| {
        let endpoint = Endpoint::parse(text.get_ref(), ETCD);
        endpoint.map_err(|why| Flaw::new(text.span(), format!("{key}: {why}")))
    };
    let endpoints: Vec<Endpoint> = raw.endpoints.iter().map(read).collect::<Result<_, _>>()?;
    let plain = endpoints
        .iter()
        .zip(&raw.endpoints)
        .find(|(one, _)| !one.is_encrypted());
    match plain {
        // A login would go to it in the clear, however the others are reached.
        Some((_, text)) if endpoints.iter().any(Endpoint::is_encrypted) => {
            expected(&key, text, "`https://` for each, or for none")
        }
        _ => Ok(endpoints),
    }
}

fn checked_prefix(table: &str, prefix: &Spanned<String>) -> Result<String, Flaw> {
    let text = prefix.get_ref();
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let is_prefix = text.starts_with('/')
        && !text.trim_end_matches('/').is_empty()
        && text.len() <= MAX_PREFIX_BYTES
        && text.chars().all(legal);
    match is_prefix {
        true => Ok(text.trim_end_matches('/').to_owned()),
        false => {
            let what = format!(
                "a key that begins with `/`, of at most {MAX_PREFIX_BYTES} letters, digits, `-`, `_`, `.`, `/`"
            );
            expected(&format!("{table}.prefix"), prefix, &what)
        }
    }
}
