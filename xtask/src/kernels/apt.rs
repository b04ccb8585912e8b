//! Packages of Debian, for whatever processor, unpacked into a folder and not installed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    processor::Processor,
    run::{capture, run},
};

/// A place that packages come from.
pub struct Apt<'f> {
    processor: Processor,
    folder: &'f Path,
    /// Options of apt's programs.
    options: Vec<String>,
}

impl<'f> Apt<'f> {
    /// Prepares to fetch packages for a processor into a folder. Of another processor the lists are fetched first, into the
    /// folder as well: this host stays as it is.
    pub fn of(processor: Processor, folder: &'f Path) -> Result<Self> {
        let mut apt = Self {
            processor,
            folder,
            options: Vec::new(),
        };
        if !processor.is_cross() {
            return Ok(apt);
        }
        let (lists, cache) = (folder.join("apt/lists"), folder.join("apt/cache"));
        let is_known = lists.exists();
        for part in [lists.join("partial"), cache.join("archives/partial")] {
            fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
        }
        let arch = processor.arch;
        for option in [
            format!("APT::Architecture={arch}"),
            format!("APT::Architectures={arch}"),
            format!("Dir::State::Lists={}", lists.display()),
            format!("Dir::Cache={}", cache.display()),
        ] {
            apt.options.extend(["-o".to_owned(), option]);
        }
        if !is_known {
            let updated = run(apt.program("apt-get").arg("update"));
            if updated.is_err() {
                // Not to be taken for complete.
                let _ = fs::remove_dir_all(&lists);
            }
            updated?;
        }
        Ok(apt)
    }

    fn program(&self, name: &str) -> Command {
        let mut program = Command::new(name);
        program.args(&self.options).current_dir(self.folder);
        program
    }

    /// The names of packages that begin so.
    pub fn names(&self, begin: &str) -> Result<Vec<String>> {
        let names = capture(self.program("apt-cache").args(["pkgnames", begin]))?;
        let names = String::from_utf8(names)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Fetches and unpacks a package, unless it is here, and returns its files' folder.
    pub fn unpacked(&self, name: &str) -> Result<PathBuf> {
        let root = self.folder.join(format!("{name}_{}", self.processor.arch));
        if root.exists() {
            return Ok(root);
        }
        run(self.program("apt-get").args(["download", name]))?;
        let begin = format!("{name}_");
        let package = fs::read_dir(self.folder)?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| {
                let file = path.file_name().unwrap_or_default().to_string_lossy();
                file.starts_with(&begin) && file.ends_with(".deb")
            })
            .context("apt-get has downloaded nothing")?;
        run(Command::new("dpkg-deb").arg("-x").arg(&package).arg(&root))?;
        fs::remove_file(package)?;
        Ok(root)
    }
}
