//! `underpass top`, in a terminal and without one.

use std::{
    fs::File,
    io::{Read, Write},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

use nix::pty::{Winsize, openpty};
use sandbox::Agent;

use super::*;
use crate::common::operating;

const SIZE: Winsize = Winsize {
    ws_row: 40,
    ws_col: 200,
    ws_xpixel: 0,
    ws_ypixel: 0,
};

/// `underpass top` in a terminal of its own.
struct Terminal {
    top: Child,
    keys: File,
    screen: Arc<Mutex<vt100::Parser>>,
}

impl Terminal {
    fn open(agent: &Agent<'_>) -> Self {
        let pty = openpty(Some(&SIZE), None).unwrap();
        let end = |fd: &OwnedFd| Stdio::from(fd.try_clone().unwrap());
        // It becomes the terminal that the program is controlled by, as a shell's is.
        let top = Command::new("setsid")
            .args([
                "--ctty",
                "--wait",
                common::BINARY,
                "top",
                "--interval",
                "0.1",
            ])
            .arg("--admin")
            .arg(agent.admin_socket())
            .arg("--control")
            .arg(agent.control())
            .env("TERM", "xterm-256color")
            .stdin(end(&pty.slave))
            .stdout(end(&pty.slave))
            .stderr(end(&pty.slave))
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(SIZE.ws_row, SIZE.ws_col, 0)));
        let keys = File::from(pty.master);
        let (mut drawn, into) = (keys.try_clone().unwrap(), screen.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The read fails when the program has closed its end.
            while let Ok(n @ 1..) = drawn.read(&mut bytes) {
                into.lock().unwrap().process(&bytes[..n]);
            }
        });
        Self { top, keys, screen }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// The words on the screen once it ends like this, without frames and charts: of the application `web`, where an
    /// agent has its usual socket.
    fn drawn(&self, end: &str, host: &Host<'_>, process: &str) -> String {
        self.shows(end);
        let socket = host.agent.admin_socket().display().to_string();
        let text = self.text().replace(process, "web");
        let text = text.replace(&socket, "/run/underpass/admin.sock");
        let is_drawn = |c: char| c.is_whitespace() || ('─'..='█').contains(&c);
        let lines = text.lines().map(|line| line.trim_matches(is_drawn));
        let lines = lines.filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    }

    fn shows(&self, text: &str) {
        let begun = std::time::Instant::now();
        while !self.text().contains(text) {
            assert!(
                begun.elapsed() < common::PATIENCE,
                "no {text:?} in\n{}",
                self.text()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended, unless its test has failed.
        let _ = self.top.kill();
        let _ = self.top.wait();
    }
}

#[test]
fn who_asks_what_is_on_the_screen_and_can_be_marked() {
    host(|host| {
        host.policy(&policy("", "{ transform = \"stats\" }"));
        let mut terminal = Terminal::open(&host.agent);
        terminal.shows("Nothing was asked lately");
        let mut c = begin(host, 4);
        let process = host.flow(&c)["process"].as_str().unwrap().to_owned();
        asks_everything(&mut c, 4);
        let (select, delete) = (
            "SELECT v FROM shop.orders WHERE id = ?",
            "DELETE FROM shop.orders",
        );
        for text in [
            select,
            "UPDATE shop.orders",
            delete,
            "shop.orders",
            &process,
            "OP/s",
        ] {
            terminal.shows(text);
        }
        assert!(!terminal.text().contains("secret"));
        terminal.press("/delete\r");
        terminal.shows("filter: delete");
        terminal.shows(delete);
        let mut drawn = vec![terminal.drawn("filter: delete   ↑↓ choose", host, &process)];
        assert!(!terminal.text().contains(select), "{}", terminal.text());
        terminal.press("\r");
        terminal.shows(&format!("asked by   {process}"));
        terminal.shows("path       tap");
        drawn.push(terminal.drawn("──┘", host, &process));
        // Any key closes it; another question is answered with no.
        terminal.press("x");
        terminal.press("mo");
        terminal.shows(&format!("Mark {process} with observe for 10m?"));
        terminal.press("n");
        terminal.shows("nothing was marked");
        terminal.press("mo");
        terminal.shows("New connections are counted, and not decoded");
        drawn.push(terminal.drawn("y: yes   any other key: no", host, &process));
        operating::holds("In a terminal", &drawn);
        terminal.press("y");
        terminal.shows("`underpass unmark");
        let marks = Command::new(common::BINARY)
            .args(["marks", "--json", "--control"])
            .arg(host.agent.control())
            .output()
            .unwrap();
        let marks = String::from_utf8(marks.stdout).unwrap();
        assert!(marks.contains(&format!("process={process}")), "{marks}");
        terminal.press("q");
        assert!(terminal.top.wait().unwrap().success());
        c.ends();
    });
}

#[test]
fn without_a_terminal_it_prints_or_says_what_to_do() {
    host(|host| {
        host.policy(&policy("", "{ transform = \"stats\" }"));
        let top = |args: &[&str]| {
            let mut top = Command::new(common::BINARY);
            top.arg("top")
                .args(args)
                .arg("--admin")
                .arg(host.agent.admin_socket());
            top.output().unwrap()
        };
        let said = top(&[]);
        assert!(!said.status.success());
        let said = String::from_utf8(said.stderr).unwrap();
        assert!(
            said.contains("there is no terminal to draw on: --once prints a table"),
            "{said}"
        );

        let mut c = begin(host, 4);
        let asked = thread::scope(|scope| {
            let asked = scope.spawn(|| top(&["--json", "--filter", "update", "--interval", "2"]));
            let begun = std::time::Instant::now();
            while !asked.is_finished() && begun.elapsed() < Duration::from_secs(3) {
                asks_everything(&mut c, 4);
            }
            asked.join().unwrap()
        });
        let rows: Value = serde_json::from_slice(&asked.stdout).unwrap();
        let row = the(
            &rows,
            "fingerprint",
            "UPDATE shop.orders SET v = ? WHERE id = ?",
        );
        assert!(row["per_second"].as_f64().unwrap() > 1.0, "{rows}");
        let ratio =
            row["errors_per_second"].as_f64().unwrap() / row["per_second"].as_f64().unwrap();
        // Every other UPDATE is answered by an error.
        assert!((0.3..0.7).contains(&ratio), "{rows}");
        assert_eq!((&row["path"], &row["rule"]), (&"tap".into(), &"r".into()));
        assert!(top(&["--once"]).stdout.starts_with(b"CLIENT"));
        c.ends();
    });
}
