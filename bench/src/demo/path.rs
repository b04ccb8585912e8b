//! The compared ways to the database.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The way on which a client's connections travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// Past the agent: the client is in no cgroup that the agent is attached to.
    Direct,
    /// A second application that goes the same way: what it differs by from the first is noise.
    Again,
    /// Seen by the connect hook and left alone.
    Bypass,
    /// Read from copies of its packets. Its connections are there before the agent.
    Tap,
    /// Through the agent.
    Enrich,
}

impl Path {
    /// All of them, the one that the others are compared with first.
    pub const ALL: [Self; 5] = [
        Self::Direct,
        Self::Again,
        Self::Bypass,
        Self::Tap,
        Self::Enrich,
    ];

    /// Returns the name in tables and results, which is also the name of the path's rule.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Again => "direct, again",
            Self::Bypass => "bypass",
            Self::Tap => "tap",
            Self::Enrich => "enrich",
        }
    }

    /// Returns the name of the cgroup in which the path's application is.
    pub fn cgroup(self) -> &'static str {
        match self {
            Self::Again => Self::Direct.as_str(),
            _ => self.as_str(),
        }
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A value for each path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ByPath<T> {
    /// The value of [`Path::Direct`].
    pub direct: T,
    /// The value of [`Path::Again`].
    pub again: T,
    /// The value of [`Path::Bypass`].
    pub bypass: T,
    /// The value of [`Path::Tap`].
    pub tap: T,
    /// The value of [`Path::Enrich`].
    pub enrich: T,
}

impl<T> ByPath<T> {
    /// Makes one for each path.
    pub fn new(mut make: impl FnMut(Path) -> T) -> Self {
        Self {
            direct: make(Path::Direct),
            again: make(Path::Again),
            bypass: make(Path::Bypass),
            tap: make(Path::Tap),
            enrich: make(Path::Enrich),
        }
    }

    /// Makes one for each path, in order, until one cannot be made.
    pub fn try_new(mut make: impl FnMut(Path) -> anyhow::Result<T>) -> anyhow::Result<Self> {
        Ok(Self {
            direct: make(Path::Direct)?,
            again: make(Path::Again)?,
            bypass: make(Path::Bypass)?,
            tap: make(Path::Tap)?,
            enrich: make(Path::Enrich)?,
        })
    }

    /// Returns this path's value.
    pub fn of(&self, path: Path) -> &T {
        match path {
            Path::Direct => &self.direct,
            Path::Again => &self.again,
            Path::Bypass => &self.bypass,
            Path::Tap => &self.tap,
            Path::Enrich => &self.enrich,
        }
    }

    /// Returns this path's value, to be changed.
    pub fn of_mut(&mut self, path: Path) -> &mut T {
        match path {
            Path::Direct => &mut self.direct,
            Path::Again => &mut self.again,
            Path::Bypass => &mut self.bypass,
            Path::Tap => &mut self.tap,
            Path::Enrich => &mut self.enrich,
        }
    }

    /// Makes another value for each path from this one.
    pub fn map<U>(&self, mut make: impl FnMut(&T) -> U) -> ByPath<U> {
        ByPath::new(|path| make(self.of(path)))
    }
}
