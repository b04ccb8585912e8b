//! The jars, by Maven's ordinary client, and a Java that can run them.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use super::home;
use crate::run::{find_program, run};

/// Names Cassandra's version; the jars are fetched again when it changes.
const POM: &str = include_str!("../../cassandra/pom.xml");
/// The goal that Maven runs, which fetches no more than the jars themselves.
pub const COPY_JARS: &str =
    "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
/// The Java version that cassandra/java.options is written for; Cassandra 5.0 refuses newer ones.
const JAVA_MAJOR: &str = "17";

/// The folder of the jars, once [`ensure`] has succeeded.
pub fn lib() -> PathBuf {
    home::dir().join("lib")
}

/// Fetches the jars unless they are here. They are put together aside and appear by one
/// rename, so an interrupted download is never taken for a complete one.
pub fn ensure() -> Result<()> {
    let stamp = lib().join("pom.xml");
    if fs::read_to_string(&stamp).is_ok_and(|have| have == POM) {
        return Ok(());
    }
    let aside = home::dir().join("lib.new");
    for old in [&aside, &lib()] {
        if old.exists() {
            fs::remove_dir_all(old).with_context(|| format!("cannot remove {}", old.display()))?;
        }
    }
    let pom = aside.join("pom.xml");
    fs::create_dir_all(&aside)
        .and_then(|()| fs::write(&pom, POM))
        .with_context(|| format!("cannot write {}", pom.display()))?;
    eprintln!("fetching Cassandra's jars with Maven (about 70 MB, once)");
    run(Command::new("mvn")
        .args(["-B", "-q", "-Dstyle.color=never", "-f"])
        .arg(&pom)
        .arg(COPY_JARS)
        .arg("-DincludeScope=runtime")
        .arg(format!("-DoutputDirectory={}", aside.display())))
    .context("Maven could not fetch Cassandra's jars; can it reach a repository? Then try again")?;
    fs::rename(&aside, lib()).context("cannot move the jars into place")
}

/// A Java 17: of JAVA_HOME, of PATH, or where Debian puts one that is not the default.
pub fn find_java() -> Option<PathBuf> {
    let home = env::var_os("JAVA_HOME").map(|home| PathBuf::from(home).join("bin/java"));
    let debian = fs::read_dir("/usr/lib/jvm").into_iter().flatten().flatten();
    home.into_iter()
        .chain(find_program("java"))
        .chain(debian.map(|jvm| jvm.path().join("bin/java")))
        .find(is_java_17)
}

fn is_java_17(java: &PathBuf) -> bool {
    let output = Command::new(java)
        .arg("-version")
        .stdin(Stdio::null())
        .output();
    output.is_ok_and(|output| {
        major_version(&String::from_utf8_lossy(&output.stderr)) == Some(JAVA_MAJOR)
    })
}

/// Reads the version from the line `openjdk version "17.0.15" 2025-04-15`.
fn major_version(text: &str) -> Option<&str> {
    let quoted = text.split_once("version \"")?.1;
    quoted.split(['.', '"', '-', '+']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn major_version_of_several_javas() {
        let of = |version: &str| major_version(version).map(str::to_owned);
        assert_eq!(
            of("openjdk version \"17.0.15\" 2025-04-15"),
            Some("17".into())
        );
        assert_eq!(of("openjdk version \"17\" 2021-09-14"), Some("17".into()));
        assert_eq!(of("java version \"1.8.0_392\""), Some("1".into()));
        assert_eq!(of("warning\nopenjdk version \"21-ea\""), Some("21".into()));
        assert_eq!(of("not java"), None);
    }
}
