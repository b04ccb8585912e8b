//! Processors that programs are built for: this one, or another that Debian has a compiler for.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{
    paths,
    run::{capture, cargo, run},
    setup::{self, Part},
};

/// Rust's names, and Debian's.
const PROCESSORS: [Processor; 2] = [
    Processor {
        name: "x86_64",
        arch: "amd64",
    },
    Processor {
        name: "aarch64",
        arch: "arm64",
    },
];

/// Two to this power is the largest page, in bytes, that Linux has on arm64.
const LARGEST_PAGE: &str = "16";

/// A processor.
#[derive(Clone, Copy)]
pub struct Processor {
    /// Rust's name.
    pub name: &'static str,
    /// Debian's name, which is that of container images, too.
    pub arch: &'static str,
}

impl Processor {
    /// Finds a processor by Rust's name of a target; None: this one.
    ///
    /// # Errors
    /// Nothing is built for it.
    pub fn of(target: Option<&str>) -> Result<Self> {
        let wanted = match target {
            None => std::env::consts::ARCH,
            Some(target) => target
                .strip_suffix("-unknown-linux-gnu")
                .with_context(|| format!("expected PROCESSOR-unknown-linux-gnu, found {target}"))?,
        };
        let found = PROCESSORS.into_iter().find(|one| one.name == wanted);
        found.with_context(|| {
            format!("programs are built for x86_64 and aarch64, and this is {wanted}")
        })
    }

    /// Whether it is another than this one.
    pub fn is_cross(self) -> bool {
        self.name != std::env::consts::ARCH
    }

    /// Returns Rust's name of the target.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    /// Returns Debian's name of the target.
    pub fn triple(self) -> String {
        format!("{}-linux-gnu", self.name)
    }

    /// Returns the name of one of binutils' tools for it.
    pub fn tool(self, name: &str) -> String {
        match self.is_cross() {
            true => format!("{}-{name}", self.triple()),
            false => name.to_owned(),
        }
    }

    /// Makes a command of a program for it, which is emulated if it is another processor's.
    pub fn command(self, program: &Path) -> Command {
        if !self.is_cross() {
            return Command::new(program);
        }
        let mut command = Command::new(format!("qemu-{}", self.name));
        command
            .arg("-L")
            .arg(format!("/usr/{}", self.triple()))
            .arg(program);
        command
    }

    /// Installs what it takes to build for it.
    pub fn ensure(self) -> Result<()> {
        setup::ensure(&[Part::Build])?;
        if self.is_cross() {
            setup::ensure(&[Part::Package])?;
            setup::ensure_target(&self.target())?;
        }
        Ok(())
    }

    /// Builds what these arguments of cargo name, with a profile, and returns the folder of the programs.
    pub fn build(self, profile: &str, what: &[&str]) -> Result<PathBuf> {
        let mut build = cargo();
        build.args(["build", "--profile", profile]).args(what);
        let mut folder = paths::target();
        if self.is_cross() {
            let (target, triple) = (self.target(), self.triple());
            let variable = target.replace('-', "_");
            let compiler = format!("{triple}-gcc");
            build.args(["--target", &target]);
            build.env(format!("CC_{variable}"), &compiler);
            build.env(
                format!("CARGO_TARGET_{}_LINKER", variable.to_uppercase()),
                &compiler,
            );
            // The largest pages that such a kernel may have; the allocator wants to know when it is built.
            build.env("JEMALLOC_SYS_WITH_LG_PAGE", LARGEST_PAGE);
            folder.push(target);
        }
        run(&mut build).with_context(|| format!("the profile `{profile}` does not build"))?;
        Ok(folder.join(profile))
    }

    /// Asks readelf(1) about a binary.
    pub fn readelf(self, option: &str, binary: &Path) -> Result<String> {
        let said = capture(
            Command::new(self.tool("readelf"))
                .args([option, "--wide"])
                .arg(binary),
        )?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// Finds the libraries that a binary loads, and the program that loads them: where each is on this host, and where the
    /// binary looks for it.
    pub fn libraries(self, binary: &Path) -> Result<Vec<(PathBuf, PathBuf)>> {
        let loader = self.readelf("--program-headers", binary)?;
        let loader = loader.split("interpreter: ").nth(1);
        let loader = loader.and_then(|rest| rest.split(']').next());
        let loader = PathBuf::from(loader.context("the binary names no loader")?);
        let mut found = vec![(self.here(&loader)?, loader)];
        let (mut known, mut look) = (BTreeSet::new(), vec![binary.to_owned()]);
        while let Some(file) = look.pop() {
            for name in needed(&self.readelf("--dynamic", &file)?) {
                let is_loader = found.iter().any(|(_, to)| to.ends_with(&name));
                if is_loader || !known.insert(name.clone()) {
                    continue;
                }
                let to = Path::new("/lib").join(self.triple()).join(&name);
                let from = self.here(&to)?;
                look.push(from.clone());
                found.push((from, to));
            }
        }
        Ok(found)
    }

    /// Finds one of its libraries on this host.
    fn here(self, library: &Path) -> Result<PathBuf> {
        let name = library.file_name().context("a library without a name")?;
        let cross = Path::new("/usr").join(self.triple()).join("lib").join(name);
        let places = match self.is_cross() {
            true => vec![cross],
            false => vec![library.to_owned(), Path::new("/usr/lib").join(name)],
        };
        let found = places.iter().find(|place| place.exists());
        let found = found.with_context(|| format!("{} is not on this host", library.display()))?;
        Ok(fs::canonicalize(found)?)
    }
}

/// The names of libraries in what readelf says.
fn needed(said: &str) -> Vec<String> {
    let lines = said.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| line.split(['[', ']']).nth(1));
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_one_that_programs_are_built_for() {
        let arm = Processor::of(Some("aarch64-unknown-linux-gnu")).unwrap();
        assert_eq!((arm.name, arm.arch), ("aarch64", "arm64"));
        assert!(!Processor::of(None).unwrap().is_cross());
        for wrong in [
            "aarch64",
            "aarch64-unknown-linux-musl",
            "riscv64gc-unknown-linux-gnu",
        ] {
            let error = Processor::of(Some(wrong)).err().unwrap().to_string();
            assert!(
                error.contains(wrong.trim_end_matches("-unknown-linux-gnu")),
                "{error}"
            );
        }
    }

    #[test]
    fn tools_of_another_processor_have_its_name() {
        assert_eq!(Processor::of(None).unwrap().tool("strip"), "strip");
        let other = Processor {
            name: "other",
            arch: "",
        };
        assert_eq!(other.tool("strip"), "other-linux-gnu-strip");
        assert_eq!(other.target(), "other-unknown-linux-gnu");
    }

    #[test]
    fn libraries_are_read_from_what_readelf_says() {
        let said = " 0x1 (NEEDED)  Shared library: [libc.so.6]\n 0x1 (NEEDED) Shared library: [ld-linux-aarch64.so.1]\n 0xe (SONAME) [x]\n";
        assert_eq!(needed(said), ["libc.so.6", "ld-linux-aarch64.so.1"]);
    }
}
