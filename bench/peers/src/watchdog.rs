//! The end of a peer whose starter is killed.
//!
//! A shell waits at the end of a pipe that only we hold open. However we end, it then ends the
//! peer's process group. The kernel's own way (PR_SET_PDEATHSIG) is no use here: it fires at
//! the end of the *thread* that started the peer.

use std::{
    io,
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// `$1` is a process group (`-s`: dash takes no `--` after `-TERM`). The pause is what a peer is given to end by itself.
const SCRIPT: &str = r#"
read -r _
kill -s TERM -- "-$1"
sleep 5
kill -s KILL -- "-$1"
"#;

/// A shell that waits; dropping this sends it away without doing anything.
#[derive(Debug)]
pub(crate) struct Watchdog(Child);

impl Watchdog {
    /// Ends this process group when this process ends.
    pub(crate) fn over(group: u32) -> io::Result<Self> {
        Command::new("/bin/sh")
            .args(["-c", SCRIPT, "peer-watchdog", &group.to_string()])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A ctrl-C in the terminal is not for it.
            .process_group(0)
            .spawn()
            .map(Self)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // The pipe is still open, so it has not begun.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        thread,
        time::{Duration, Instant},
    };

    use super::*;

    #[test]
    fn a_closed_pipe_ends_the_group() {
        let mut sleeper = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        let mut watchdog = Watchdog::over(sleeper.id()).unwrap();
        thread::sleep(Duration::from_millis(50));
        assert!(sleeper.try_wait().unwrap().is_none());
        drop(watchdog.0.stdin.take());
        let deadline = Instant::now() + Duration::from_secs(4);
        while sleeper.try_wait().unwrap().is_none() {
            assert!(Instant::now() < deadline, "the sleeper was not ended");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_dropped_watchdog_ends_nothing() {
        let mut sleeper = Command::new("sleep")
            .arg("60")
            .process_group(0)
            .spawn()
            .unwrap();
        drop(Watchdog::over(sleeper.id()).unwrap());
        thread::sleep(Duration::from_millis(100));
        assert!(sleeper.try_wait().unwrap().is_none());
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
}
