//! The Go toolchain that a module asks for. Debian's may be older, and one of before 1.21 does not fetch another by itself.

use std::{
    env::consts::ARCH,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::run::capture;

/// A version of Go: 1.25.0 is `[1, 25, 0]`.
type Version = [u32; 3];

/// The first that fetches the toolchain which a module asks for, unless GOTOOLCHAIN says otherwise.
const FETCHES: Version = [1, 21, 0];

/// Returns `go` in the folder of a module, of the version that its `go.mod` asks for: that of PATH, or the one that it gets
/// through its module proxy.
pub fn go_in(module: &Path) -> Result<Command> {
    let file = module.join("go.mod");
    let text = fs::read_to_string(&file);
    let text = text.with_context(|| format!("cannot read {}", file.display()))?;
    let asked = text.lines().find_map(|line| line.strip_prefix("go "));
    let asked = asked.with_context(|| format!("{} names no version", file.display()))?;
    let asked = version(asked)?;
    let here = capture(Command::new("go").args(["env", "GOVERSION"]))?;
    // One that calls itself otherwise, as of somebody's own making, is taken as it is.
    let here = version(&String::from_utf8_lossy(&here)).ok();
    let mut go = match here.is_none_or(|here| here >= FETCHES.min(asked)) {
        true => Command::new("go"),
        false => {
            let mut go = Command::new(fetched(asked)?);
            go.env_remove("GOROOT").env("GOTOOLCHAIN", "local");
            go
        }
    };
    go.current_dir(module);
    Ok(go)
}

/// A module as `go mod download` tells of it.
pub fn download(module: &str) -> Result<Value> {
    let said = capture(Command::new("go").args(["mod", "download", "-json", module]))
        .with_context(|| format!("cannot get {module}: can Go reach a module proxy?"))?;
    serde_json::from_slice(&said).context("go prints no JSON")
}

/// Gets a toolchain, which is a module, too; returns its `go`. Modules have no file that can be executed.
fn fetched([major, minor, patch]: Version) -> Result<PathBuf> {
    let version = format!("{major}.{minor}.{patch}");
    let arch = match ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => bail!("no toolchain of Go {version} for {other}: install one"),
    };
    let module = format!("golang.org/toolchain@v0.0.1-go{version}.linux-{arch}");
    let said = download(&module)?;
    let folder = said.get("Dir").and_then(Value::as_str);
    let folder = Path::new(folder.context("go names no folder")?);
    for programs in ["bin", &format!("pkg/tool/linux_{arch}")] {
        let programs = folder.join(programs);
        allow_to_run(&programs)
            .with_context(|| format!("cannot make programs of {}", programs.display()))?;
    }
    Ok(folder.join("bin/go"))
}

fn allow_to_run(folder: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Reads a version such as `1.25.0`, `1.19` or `go1.26.8`.
fn version(text: &str) -> Result<Version> {
    let text = text.trim();
    let mut parts = text
        .trim_start_matches("go")
        .split('.')
        .map(|part| part.parse().ok());
    let version = [(); 3].map(|()| parts.next().unwrap_or(Some(0)));
    match version {
        [Some(major), Some(minor), Some(patch)] => Ok([major, minor, patch]),
        _ => bail!("`{text}` is no version of Go"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(version("go1.26.8\n").unwrap(), [1, 26, 8]);
        assert_eq!(version("1.19").unwrap(), [1, 19, 0]);
        assert!(version("1.9.7").unwrap() < version("go1.21").unwrap());
        for text in ["", "go", "devel", "1.x", "1.25rc1"] {
            assert!(version(text).is_err(), "{text}");
        }
    }
}
