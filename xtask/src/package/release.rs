//! Facts that all files of a run of `package` share: the version, the processor, the time.

use std::{path::Path, process::Command};

use anyhow::{Context, Result};

use crate::{paths, run::capture};

/// Facts that all files of a run share.
pub struct Release {
    pub version: String,
    /// The processor, by Rust's name.
    pub processor: &'static str,
    /// Debian's name of it, which is that of container images, too.
    pub arch: &'static str,
    /// The time that all files have, in seconds since the epoch.
    pub epoch: u64,
    /// Whether files are compressed.
    pub compressed: bool,
}

/// Processors that packages are made for: Rust's name and Debian's.
const PROCESSORS: [(&str, &str); 2] = [("x86_64", "amd64"), ("aarch64", "arm64")];

/// Names a processor, in Rust's words and in Debian's; None: this one.
///
/// # Errors
/// No packages are made for it.
pub fn processor(target: Option<&str>) -> Result<(&'static str, &'static str)> {
    let wanted = match target {
        None => std::env::consts::ARCH,
        Some(target) => target
            .strip_suffix("-unknown-linux-gnu")
            .with_context(|| format!("expected PROCESSOR-unknown-linux-gnu, found {target}"))?,
    };
    let found = PROCESSORS.iter().find(|(name, _)| *name == wanted);
    let found = found.copied();
    found.with_context(|| format!("packages are made for x86_64 and aarch64, and this is {wanted}"))
}

impl Release {
    /// Whether the packages are for another processor than this one.
    pub fn is_cross(&self) -> bool {
        self.processor != std::env::consts::ARCH
    }

    /// Returns Rust's name of the target.
    pub fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.processor)
    }

    /// Returns Debian's name of the target.
    pub fn triple(&self) -> String {
        format!("{}-linux-gnu", self.processor)
    }

    /// Returns the name of one of binutils' tools for the target.
    pub fn tool(&self, name: &str) -> String {
        match self.is_cross() {
            true => format!("{}-{name}", self.triple()),
            false => name.to_owned(),
        }
    }

    /// Makes a command of a program of the target, which is emulated if it is for another processor.
    pub fn command(&self, program: &Path) -> Command {
        if !self.is_cross() {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.processor));
        command
            .arg("-L")
            .arg(format!("/usr/{}", self.triple()))
            .arg(program);
        command
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_one_that_packages_are_made_for() {
        let arm = processor(Some("aarch64-unknown-linux-gnu")).unwrap();
        assert_eq!(arm, ("aarch64", "arm64"));
        assert!(processor(None).is_ok());
        for wrong in [
            "aarch64",
            "aarch64-unknown-linux-musl",
            "riscv64gc-unknown-linux-gnu",
        ] {
            let error = processor(Some(wrong)).unwrap_err().to_string();
            assert!(
                error.contains(wrong.trim_end_matches("-unknown-linux-gnu")),
                "{error}"
            );
        }
    }

    #[test]
    fn tools_of_another_processor_have_its_name() {
        let release = |processor| Release {
            version: String::new(),
            processor,
            arch: "",
            epoch: 0,
            compressed: true,
        };
        assert_eq!(release(std::env::consts::ARCH).tool("strip"), "strip");
        let other = release("other");
        assert_eq!(other.tool("strip"), "other-linux-gnu-strip");
        assert_eq!(other.target(), "other-unknown-linux-gnu");
    }
}
