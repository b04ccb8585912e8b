//! Facts that all files of a run of `package` share: the version, the processor, the time.

use std::process::Command;

use anyhow::{Context, Result};

use crate::{paths, processor::Processor, run::capture};

/// Facts that all files of a run share.
pub struct Release {
    pub version: String,
    /// The processor that the programs are for.
    pub processor: Processor,
    /// The time that all files have, in seconds since the epoch.
    pub epoch: u64,
    /// Whether files are compressed.
    pub compressed: bool,
}

impl Release {
    /// Returns dpkg-deb's option for it.
    pub fn compression(&self) -> &'static str {
        match self.compressed {
            true => "-Zxz",
            false => "-Znone",
        }
    }

    /// Returns how hard gzip(1) tries.
    pub fn level(&self) -> &'static str {
        match self.compressed {
            true => "--best",
            false => "--fast",
        }
    }
}

/// The time of the last commit, unless the environment says otherwise.
pub fn epoch() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .parse()
            .context("SOURCE_DATE_EPOCH: expected seconds since 1970");
    }
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(paths::root());
    let said = capture(&mut git).context(
        "the files' time is that of the last commit: set SOURCE_DATE_EPOCH where there is none",
    )?;
    Ok(String::from_utf8(said)?.trim().parse()?)
}
