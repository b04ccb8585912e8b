//! The program of a package: built, and parted from its debug information.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::release::Release;
use crate::run::run as run_command;

/// The agent's binary as a package has it.
pub struct Program {
    /// The binary without debug information.
    pub stripped: PathBuf,
    /// The debug information.
    pub symbols: PathBuf,
    /// The name by which debuggers find the one for the other, in hexadecimal digits.
    pub build_id: String,
}

impl Program {
    /// Parts a binary from its debug information, which may be compressed. Both halves are written to `work`.
    pub fn split(release: &Release, binary: &Path, work: &Path) -> Result<Self> {
        std::fs::create_dir_all(work)?;
        let (stripped, symbols) = (work.join("underpass"), work.join("underpass.debug"));
        let mut objcopy = Command::new(release.processor.tool("objcopy"));
        objcopy
            .arg("--only-keep-debug")
            .args(release.compressed.then_some("--compress-debug-sections"));
        run_command(objcopy.arg(binary).arg(&symbols))?;
        let mut strip = Command::new(release.processor.tool("strip"));
        strip.args(["--strip-unneeded", "--remove-section=.comment", "-o"]);
        run_command(strip.arg(&stripped).arg(binary))?;
        let notes = release.processor.readelf("--notes", &stripped)?;
        let id = notes.split("Build ID: ").nth(1);
        let build_id = id.and_then(|rest| rest.split_whitespace().next());
        let build_id = build_id.context(
            "the linker gives binaries no build id: build with a linker that knows --build-id",
        )?;
        Ok(Self {
            stripped,
            symbols,
            build_id: build_id.to_owned(),
        })
    }

    /// The Debian packages that the binary needs: the C library of the newest symbol that it asks for, and the compiler's.
    pub fn needs(&self, release: &Release) -> Result<String> {
        let said = release
            .processor
            .readelf("--version-info", &self.stripped)?;
        let version = newest_glibc(&said).context("the binary asks for no symbol of glibc")?;
        let version: Vec<String> = version.iter().map(u32::to_string).collect();
        Ok(format!("libc6 (>= {}), libgcc-s1", version.join(".")))
    }
}

/// The highest version behind `GLIBC_` in a list of symbols' versions.
fn newest_glibc(said: &str) -> Option<Vec<u32>> {
    let versions = said.split("GLIBC_").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let text = rest.get(..end.unwrap_or(rest.len()))?;
        text.split('.').map(|n| n.parse().ok()).collect()
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        let said =
            "Name: GLIBC_2.9  Flags: none\n Name: GLIBC_2.34\n GLIBC_2.3.4 (4) GLIBC_PRIVATE";
        assert_eq!(newest_glibc(said), Some(vec![2, 34]));
        assert_eq!(newest_glibc("GCC_3.0"), None);
    }
}
