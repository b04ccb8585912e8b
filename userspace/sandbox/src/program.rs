//! Programs that a test makes and then runs.
//!
//! Another process writes them. If this one did, whatever another thread starts meanwhile would
//! inherit the open file until its own `exec`, and until then nobody could run the program:
//! "text file busy".

use std::{
    fs::{Permissions, set_permissions},
    io::Write,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

/// A shell script at `path`, in place of what is there, for everyone to run. `text` is what
/// follows its first line.
///
/// # Errors
/// The folder does not take it.
pub fn script(path: &Path, text: &str) -> Result<()> {
    install("/dev/stdin".as_ref(), path, &format!("#!/bin/sh\n{text}\n"))
}

/// `binary` with a switch for tests set (`NAME=value`), as a program of its own at `path`.
///
/// # Errors
/// The folder does not take it.
pub fn switched(path: &Path, binary: &str, switch: &str) -> Result<()> {
    script(path, &format!("{switch} exec {binary} \"$@\""))
}

/// A copy of `binary` at `path`, for everyone to run.
///
/// # Errors
/// There is no such binary, or the folder does not take it.
pub fn copy(binary: impl AsRef<Path>, path: &Path) -> Result<()> {
    install(binary.as_ref(), path, "")
}

/// The id of the user and of the group who own nothing.
const NOBODY: u32 = 65_534;

/// A copy of a program that every user can reach, which the one that was built need not be.
#[derive(Debug)]
pub struct Reachable {
    folder: tempfile::TempDir,
}

impl Reachable {
    /// Copies a program.
    ///
    /// # Errors
    /// There is no such program, or no room for its copy.
    pub fn of(binary: impl AsRef<Path>) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        copy(binary, &folder.path().join("program"))?;
        Ok(Self { folder })
    }

    /// Makes a command that runs it as nobody.
    pub fn as_nobody(&self, args: &[&str]) -> Command {
        let mut command = Command::new(self.folder.path().join("program"));
        command.args(args).uid(NOBODY).gid(NOBODY).current_dir("/");
        command
    }
}

fn install(from: &Path, path: &Path, input: &str) -> Result<()> {
    let mut install = Command::new("install");
    install.arg("--mode=755").args([from, path]);
    let mut install = install
        .stdin(Stdio::piped())
        .spawn()
        .context("install (coreutils) does not run")?;
    let mut stdin = install.stdin.take().context("no standard input")?;
    stdin.write_all(input.as_bytes())?;
    drop(stdin);
    ensure!(install.wait()?.success(), "cannot write {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written in this process, one in some hundreds is busy.
    const ROUNDS: usize = 300;

    #[test]
    fn what_is_written_runs_however_much_else_starts() {
        let folder = tempfile::tempdir().unwrap();
        let ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Whatever is open for writing here, these hold as well for a moment.
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(std::sync::atomic::Ordering::Relaxed) {
                        // With another user it is a whole fork, which takes longer.
                        Command::new("/bin/true").uid(0).status().unwrap();
                    }
                });
            }
            let path = folder.path().join("program");
            let tried: Vec<_> = (0..ROUNDS)
                .map(|i| {
                    script(&path, &format!("echo {i}"))?;
                    Ok(Command::new(&path).output()?.stdout)
                })
                .collect::<Result<_>>()
                .unwrap_or_default();
            ended.store(true, std::sync::atomic::Ordering::Relaxed);
            let said: Vec<_> = (0..ROUNDS).map(|i| format!("{i}\n").into_bytes()).collect();
            assert_eq!(tried, said);
        });
    }

    #[test]
    fn a_switch_is_set_and_arguments_are_passed_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("switched");
        switched(&path, "/usr/bin/env", "UNDERPASS_TEST=1").unwrap();
        let said = Command::new(&path)
            .args(["printenv", "UNDERPASS_TEST"])
            .output();
        assert_eq!(said.unwrap().stdout, b"1\n");
    }

    #[test]
    fn a_missing_binary_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy");
        assert!(copy("/nonexistent", &path).is_err());
        assert!(!path.exists());
    }
}
