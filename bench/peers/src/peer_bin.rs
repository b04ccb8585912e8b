//! The option `--peer-bin NAME=PATH`, parsed.

use std::collections::BTreeMap;

use crate::{all, find::Overrides};

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
            let text = text.as_ref();
            let (name, path) = text
                .split_once('=')
                .filter(|(name, path)| !name.is_empty() && !path.is_empty())
                .ok_or_else(|| BadOverride::Form(text.to_owned()))?;
            if crate::named(name).is_none() {
                let known: Vec<_> = all().iter().map(|peer| peer.name).collect();
                return Err(BadOverride::Unknown {
                    name: name.to_owned(),
                    known: known.join(", "),
                });
            }
            if paths.insert(name.to_owned(), path.into()).is_some() {
                return Err(BadOverride::Twice(name.to_owned()));
            }
        }
        Ok(Self(paths))
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
    fn mistakes_say_what_would_be_right() {
        let unknown = Overrides::parse(["squid=/bin/squid"]).unwrap_err();
        assert_eq!(
            unknown.to_string(),
            "--peer-bin squid=…: no peer is called that; there are haproxy, nginx, envoy, shotover"
        );
        for text in ["haproxy", "=/bin/haproxy", "haproxy=", ""] {
            let wrong = Overrides::parse([text]);
            assert_eq!(wrong, Err(BadOverride::Form(text.into())), "{text:?}");
        }
        let twice = Overrides::parse(["nginx=a", "nginx=b"]);
        assert_eq!(twice, Err(BadOverride::Twice("nginx".into())));
    }
}
