//! The search for a peer's binary and its version.

use std::{
    collections::BTreeMap,
    env,
    ffi::OsStr,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Pause between two looks at a process that is awaited.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The folders of daemons, which a user's PATH often lacks.
const DAEMON_FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// The time limit for a binary to tell its version; a wrapper script on a cold disk takes a second
/// or two.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// The most bytes that are read of its answer. That is less than a pipe holds, so a binary that
/// says more does not block us.
const ANSWER_BYTES: u64 = 32 << 10;

/// A peer's binary, and its source.
#[derive(Clone, Copy, Debug)]
pub struct Binary {
    /// The file name to look for on PATH.
    pub name: &'static str,
    /// The arguments that make it tell its version.
    pub version_args: &'static [&'static str],
    /// The word before the version in its answer.
    pub version_after: &'static str,
    /// The source of the binary, for the message when it is not there.
    pub from: &'static str,
}

/// Binaries that are named on the command line, by peer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Overrides(pub(crate) BTreeMap<String, PathBuf>);

impl Overrides {
    /// The binary that was named for this peer.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Path> {
        self.0.get(name).map(PathBuf::as_path)
    }
}

/// A binary that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The binary's path.
    pub path: PathBuf,
    /// The version that it reports; None: it reports none.
    pub version: Option<String>,
}

/// The reason why a peer cannot be compared on this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Absent {
    /// The reason for reports, and advice.
    pub why: String,
}

/// Looks for `binary`: where the command line says, which may be a name on PATH; else on PATH.
pub(crate) fn find(name: &str, binary: &Binary, overrides: &Overrides) -> Result<Found, Absent> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let path = match overrides.get(name) {
        Some(path) => named(&folders, path).map_err(|why| Absent {
            why: format!("not installed: --peer-bin {name}={} {why}", path.display()),
        })?,
        None => on_path(&folders, Path::new(binary.name)).ok_or_else(|| Absent {
            why: format!(
                "not installed: {} is not on PATH ({}, or --peer-bin {name}=PATH)",
                binary.name, binary.from
            ),
        })?,
    };
    let version = ask(&path, binary.version_args);
    let version = version.and_then(|said| word_after(&said, binary.version_after));
    // The process is started in another folder.
    let path = path.canonicalize().unwrap_or(path);
    Ok(Found { path, version })
}

/// Returns a binary's output on both streams; None: it could not be run or took too long.
pub(crate) fn ask(path: &Path, args: &[&str]) -> Option<String> {
    let mut child = Command::new(path)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .ok()?;
    let outputs = (child.stdout.take(), child.stderr.take());
    let deadline = Instant::now() + ANSWER_LIMIT;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(_)) => break true,
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK_EVERY),
            _ => break false,
        }
    };
    if !ended {
        let _ = child.kill();
        let _ = child.wait();
        return None;
    }
    let mut said = Vec::new();
    if let Some(stdout) = outputs.0 {
        stdout.take(ANSWER_BYTES).read_to_end(&mut said).ok()?;
    }
    if let Some(stderr) = outputs.1 {
        stderr.take(ANSWER_BYTES).read_to_end(&mut said).ok()?;
    }
    Some(String::from_utf8_lossy(&said).into_owned())
}

/// The first word after `marker`.
fn word_after(text: &str, marker: &str) -> Option<String> {
    let (_, rest) = text.split_once(marker)?;
    rest.split_whitespace().next().map(str::to_owned)
}

/// Returns the file that a shell would run: a word without a slash is looked for on PATH, and not
/// in this folder.
fn named(folders: &OsStr, path: &Path) -> Result<PathBuf, String> {
    let is_bare = !path.as_os_str().as_encoded_bytes().contains(&b'/');
    match is_bare {
        true => on_path(folders, path).ok_or_else(|| {
            let path = path.display();
            format!("is not on PATH (./{path} would be that in this folder)")
        }),
        false if executable(path) => Ok(path.to_owned()),
        false => Err("is not an executable file".to_owned()),
    }
}

fn on_path(path: &OsStr, file: &Path) -> Option<PathBuf> {
    env::split_paths(path)
        .chain(DAEMON_FOLDERS.map(PathBuf::from))
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(file))
        .find(|candidate| executable(candidate))
}

fn executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TRUE: Binary = Binary {
        name: "underpass-no-such-binary",
        version_args: &["-c", "true"],
        version_after: "",
        from: "apt-get install nothing",
    };

    #[test]
    fn what_is_missing_says_how_to_get_it() {
        let absent = find("haproxy", &TRUE, &Overrides::default()).unwrap_err();
        assert_eq!(
            absent.to_string(),
            "not installed: underpass-no-such-binary is not on PATH \
             (apt-get install nothing, or --peer-bin haproxy=PATH)"
        );
    }

    #[test]
    fn a_named_binary_has_to_be_executable() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = format!("haproxy={}", file.path().display());
        let overrides = Overrides::parse([&named]).unwrap();
        let absent = find("haproxy", &TRUE, &overrides).unwrap_err();
        assert_eq!(
            absent.why,
            format!("not installed: --peer-bin {named} is not an executable file")
        );
    }

    #[test]
    fn a_bare_name_is_looked_for_on_path() {
        let folder = tempfile::tempdir().unwrap();
        let folders = folder.path().as_os_str();
        let file = folder.path().join("underpass-peer");
        let looks = |path: &str| named(folders, Path::new(path));
        let absent = looks("underpass-peer").unwrap_err();
        assert_eq!(
            absent,
            "is not on PATH (./underpass-peer would be that in this folder)"
        );
        fs::write(&file, "").unwrap();
        assert!(looks("underpass-peer").is_err(), "nobody may execute it");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(looks("underpass-peer"), Ok(file.clone()));
        // A word with a slash is a path, from here.
        let absent = looks("./underpass-peer").unwrap_err();
        assert_eq!(absent, "is not an executable file");
        assert_eq!(looks(file.to_str().unwrap()), Ok(file));
        for odd in [".", ".."] {
            assert!(looks(odd).is_err(), "a folder is none");
        }
    }

    #[test]
    fn a_bare_name_of_the_command_line_is_a_binary() {
        let overrides = Overrides::parse(["haproxy=sh"]).unwrap();
        let found = find("haproxy", &TRUE, &overrides).unwrap();
        assert!(executable(&found.path) && found.path.is_absolute());
        let overrides = Overrides::parse(["haproxy=underpass-no-such-binary"]).unwrap();
        let absent = find("haproxy", &TRUE, &overrides).unwrap_err();
        assert_eq!(
            absent.why,
            "not installed: --peer-bin haproxy=underpass-no-such-binary is not on PATH \
             (./underpass-no-such-binary would be that in this folder)"
        );
    }

    #[test]
    fn relative_folders_of_path_are_not_searched() {
        let on_path = |path: &str| on_path(OsStr::new(path), Path::new("sh"));
        assert_eq!(on_path("bin:.:/nowhere"), None);
        assert_eq!(on_path("/nowhere:/bin"), Some(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn versions_are_read_as_they_are_said() {
        for (said, version) in [
            (
                "HAProxy version 2.6.12-1+deb12u4 2026/10/17 - https://haproxy.org/\n",
                "2.6.12-1+deb12u4",
            ),
            ("shotover 0.7.4\n", ""),
        ] {
            let read = word_after(said, "version ");
            assert_eq!(read.unwrap_or_default(), version);
        }
        assert_eq!(
            word_after("nginx version: nginx/1.22.1\n", "nginx/").as_deref(),
            Some("1.22.1")
        );
    }

    #[test]
    fn both_outputs_are_an_answer() {
        let said = ask(Path::new("/bin/sh"), &["-c", "echo out; echo err >&2"]);
        assert_eq!(said.as_deref(), Some("out\nerr\n"));
        assert_eq!(ask(Path::new("/nowhere"), &[]), None);
    }
}
