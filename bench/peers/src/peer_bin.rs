//! The option `--peer-bin NAME=PATH`, parsed.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{all, overrides::Overrides};

/// A `--peer-bin` that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOverride {
    /// There is no `=`, or nothing on a side of it.
    #[error("--peer-bin {0:?}: it has to be NAME=PATH, as in haproxy=/opt/haproxy/haproxy")]
    Form(String),
    /// No peer has this name.
    #[error("--peer-bin {name}=…: no peer is called that; there are {known}")]
    Unknown {
        /// The name that was given.
        name: String,
        /// The known names.
        known: String,
    },
    /// A peer has two paths.
    #[error("--peer-bin {0}=… is given twice")]
    Twice(String),
}

impl Overrides {
    /// Reads every `NAME=PATH` of a command line.
    ///
    /// # Errors
    /// The first that is not of that form, or names no peer, or one that was named before.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, BadOverride> {
        let mut paths = BTreeMap::new();
        for text in texts {
            let (name, path) = Self::parse_one(text.as_ref())?;
            if paths.insert(name.clone(), path).is_some() {
                return Err(BadOverride::Twice(name));
            }
        }
        Ok(Self(paths))
    }

    /// Reads one `NAME=PATH`: for a command line parser that wants to say where it is.
    ///
    /// # Errors
    /// It is not of that form, or names no peer.
    pub fn parse_one(text: &str) -> Result<(String, PathBuf), BadOverride> {
        let (name, path) = text
            .split_once('=')
            .filter(|(name, path)| !name.is_empty() && !path.is_empty())
            .ok_or_else(|| BadOverride::Form(text.to_owned()))?;
        if !all().iter().any(|peer| peer.name() == name) {
            let known: Vec<_> = all().iter().map(|peer| peer.name()).collect();
            return Err(BadOverride::Unknown {
                name: name.to_owned(),
                known: known.join(", "),
            });
        }
        Ok((name.to_owned(), PathBuf::from(path)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_named_binary_is_kept() {
        let overrides = Overrides::parse(["envoy=/opt/a=b/envoy", "haproxy=x"]).unwrap();
        assert_eq!(overrides.get("envoy"), Some(Path::new("/opt/a=b/envoy")));
        assert_eq!(overrides.get("haproxy"), Some(Path::new("x")));
        assert_eq!(overrides.get("nginx"), None);
    }

    #[test]
    fn an_unknown_name_is_told_the_known_ones() {
        let said = Overrides::parse(["squid=/bin/squid"])
            .unwrap_err()
            .to_string();
        assert_eq!(
            said,
            "--peer-bin squid=…: no peer is called that; there are \
             haproxy, nginx, envoy, shotover, cql-proxy, zdm-proxy"
        );
    }

    #[test]
    fn a_bad_form_is_refused() {
        for text in ["haproxy", "=/bin/haproxy", "haproxy=", ""] {
            assert_eq!(
                Overrides::parse([text]),
                Err(BadOverride::Form(text.into())),
                "{text:?}"
            );
        }
    }

    #[test]
    fn a_peer_has_one_binary() {
        assert_eq!(
            Overrides::parse(["nginx=a", "nginx=b"]),
            Err(BadOverride::Twice("nginx".into()))
        );
    }
}
