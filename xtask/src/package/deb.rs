//! Debian packages around a tree of files, and the tarball of one.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::{release::Release, tree};
use crate::{
    paths,
    run::{capture, run as run_command},
};

/// The maintainer's scripts of the agent's package.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// The fields of a package that differ from one to another.
pub struct Package {
    name: &'static str,
    depends: String,
    section: &'static str,
    description: &'static str,
    /// Whether it has scripts, and files that an operator changes.
    serves: bool,
}

impl Package {
    /// The agent's package.
    pub fn agent(depends: &str) -> Self {
        Self {
            name: "underpass",
            depends: depends.to_owned(),
            section: "net",
            description: "transparent database proxy that costs next to nothing where it has nothing to do\n \
                 underpass sits between applications and a Cassandra database without either of them\n \
                 noticing. eBPF decides, connection by connection, whether to leave it alone, to read\n \
                 copies of its packets, or to take it through a proxy that throttles, refuses or\n \
                 rewrites requests. As installed it does nothing until its policy says so.",
            serves: true,
        }
    }

    /// The package of the agent's debug information.
    pub fn symbols(release: &Release) -> Self {
        Self {
            name: "underpass-dbgsym",
            depends: format!("underpass (= {})", release.version),
            section: "debug",
            description: "debug symbols for underpass",
            serves: false,
        }
    }

    fn control(&self, release: &Release, kib: u64) -> String {
        let (name, version, arch) = (self.name, &release.version, release.processor.arch);
        let (depends, section, description) = (&self.depends, self.section, self.description);
        let recommends = match self.serves {
            true => "Recommends: systemd, logrotate\n",
            false => "",
        };
        format!(
            "Package: {name}\nVersion: {version}\nArchitecture: {arch}\nSection: {section}\nPriority: optional\n\
             Maintainer: The underpass contributors <underpass@localhost>\nInstalled-Size: {kib}\n\
             Depends: {depends}\n{recommends}Description: {description}\n"
        )
    }
}

/// Builds a package of the files beneath `files` into `out`, and returns its path.
pub fn build(release: &Release, package: &Package, files: &Path, out: &Path) -> Result<PathBuf> {
    let about = files.join("DEBIAN");
    fs::create_dir_all(&about)?;
    let mut sums = String::new();
    let mut bytes = 0;
    for file in tree::files(files)? {
        bytes += fs::metadata(&file)?.len();
        let said = capture(Command::new("md5sum").arg("--binary").arg(&file))?;
        let said = String::from_utf8_lossy(&said);
        let (sum, _) = said.split_once(' ').context("md5sum says no sum")?;
        sums.push_str(&format!("{sum}  {}\n", file.strip_prefix(files)?.display()));
    }
    fs::write(
        about.join("control"),
        package.control(release, bytes.div_ceil(1024)),
    )?;
    fs::write(about.join("md5sums"), sums)?;
    if package.serves {
        fs::write(
            about.join("conffiles"),
            tree::CONFIGURATION.join("\n") + "\n",
        )?;
        for script in SCRIPTS {
            let (from, to) = (
                paths::root().join("packaging/debian").join(script),
                about.join(script),
            );
            fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
            fs::set_permissions(&to, Permissions::from_mode(0o755))?;
        }
    }
    tree::settle(files, release.epoch)?;
    let name = format!(
        "{}_{}_{}.deb",
        package.name, release.version, release.processor.arch
    );
    let mut build = Command::new("dpkg-deb");
    build
        .args(["--root-owner-group", release.compression(), "--build"])
        .arg(files)
        .arg(out.join(&name))
        .env("SOURCE_DATE_EPOCH", release.epoch.to_string());
    capture(&mut build)?;
    Ok(out.join(name))
}

/// Packs the files beneath `files` into a tarball in `out`, and returns its path.
pub fn tarball(release: &Release, files: &Path, out: &Path) -> Result<PathBuf> {
    let name = format!("underpass-{}-{}", release.version, release.processor.arch);
    let packed = out.join(format!("{name}.tar.gz"));
    let renames = format!("s,^\\.,{name},");
    let mut tar = tar(release, files, &packed, &renames);
    run_command(tar.arg(format!(
        "--use-compress-program=gzip --no-name {}",
        release.level()
    )))?;
    Ok(packed)
}

/// Makes the command that packs the files beneath a folder, by names that sed(1) changes.
pub fn tar(release: &Release, files: &Path, to: &Path, renames: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.args([
        "--create",
        "--sort=name",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
    ])
    .arg("--format=gnu")
    .arg(format!("--mtime=@{}", release.epoch))
    .arg(format!("--transform={renames}"))
    .arg("--file")
    .arg(to)
    .arg("--directory")
    .arg(files)
    .arg(".");
    tar
}
