//! Where in etcd what is.
//!
//! `<prefix>/rules/<name>.toml` are the files of the policy, `<prefix>/head` the number of the version that was pushed last,
//! `<prefix>/pushed` that number and how many files it has, by which hosts know what they follow,
//! `<prefix>/history/<number>` the versions, and `<prefix>/status/<host>` what a host made of the policy. `<prefix>/limits/` is what
//! hosts share limits by ([`crate::Sharer`]).

/// The longest prefix: keys stay short.
pub const MAX_PREFIX_BYTES: usize = 256;

/// The last part of the leader's key, and of the levels'.
pub(crate) const LEADER: &[u8] = b"leader";
pub(crate) const LEVELS: &[u8] = b"levels";

/// The keys beneath a prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        let prefix = prefix.trim_end_matches('/').to_owned();
        Self { prefix }
    }

    pub(crate) fn rules(&self) -> String {
        format!("{}/rules/", self.prefix)
    }

    pub(crate) fn rule(&self, name: &str) -> String {
        format!("{}{name}", self.rules())
    }

    pub(crate) fn head(&self) -> String {
        format!("{}/head", self.prefix)
    }

    pub(crate) fn pushed(&self) -> String {
        format!("{}/pushed", self.prefix)
    }

    pub(crate) fn versions(&self) -> String {
        format!("{}/history/", self.prefix)
    }

    /// Padded: the order of the names is that of the numbers.
    pub(crate) fn version(&self, number: u64) -> String {
        format!("{}{number:010}", self.versions())
    }

    pub(crate) fn statuses(&self) -> String {
        format!("{}/status/", self.prefix)
    }

    pub(crate) fn status(&self, host: &str) -> String {
        format!("{}{host}", self.statuses())
    }

    /// Keys that all hosts watch: the leader's and the levels'.
    pub(crate) fn sharing(&self) -> String {
        format!("{}/limits/fleet/", self.prefix)
    }

    pub(crate) fn leader(&self) -> String {
        format!("{}leader", self.sharing())
    }

    pub(crate) fn levels(&self) -> String {
        format!("{}levels", self.sharing())
    }

    /// Keys that the leader watches: what each host wants.
    pub(crate) fn wants(&self) -> String {
        format!("{}/limits/hosts/", self.prefix)
    }

    pub(crate) fn want(&self, host: &str) -> String {
        format!("{}{host}", self.wants())
    }
}
