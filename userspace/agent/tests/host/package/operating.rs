//! `docs/operating.md`: every command that it shows is run, in the order of the page, on a host where an application was
//! connected before the agent came, and says what the page has it say but for numbers. `UPDATE_DOCS=1` writes what they say.

use std::{fmt::Write, fs, path::PathBuf, thread, time::Duration};

use super::*;

/// Files of the page that a `cat` shows: they are written from it.
const SHOWS: &str = "# cat ";

/// The time that a command of the page has.
const PATIENCE_SECONDS: &str = "10";

/// A process by this name whose first argument is a shell script.
fn runs<'h>(host: &OtherHost<'h>, name: &str, script: &str) -> Held {
    host.succeeds(&["cp", "/bin/bash", &format!("/usr/bin/{name}")]);
    let mut command = host.command(&[name, "-c", script]);
    command.stderr(Stdio::null());
    let child = host.sandbox.client(|| command.spawn());
    Held(child.unwrap().unwrap())
}

/// A process that ends with the test.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes as `printf` takes them.
fn escaped(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "\\{byte:03o}");
        text
    })
}

/// An application that asks four times as often for what there is as for what there is not.
fn web() -> String {
    let asks = |text: &str| format!("printf '{}' >&3; sleep 0.01", escaped(&query(4, 1, text)));
    let good = asks("SELECT v FROM shop.orders WHERE id = 1");
    let bad = asks("SELECT nothing FROM shop.orders WHERE id = 1");
    format!(
        "exec 3<>/dev/tcp/127.0.0.1/9042; cat <&3 >/dev/null &\nprintf '{}' >&3; sleep 0.1\n\
         while {good} && {good} && {good} && {good} && {bad}; do :; done",
        escaped(&startup(4, &[("CQL_VERSION", "3.0.0")]))
    )
}

/// An application that wants three connections at the same time, again and again.
const BATCH: &str =
    "while :; do for fd in 3 4 5; do exec {fd}<>/dev/tcp/127.0.0.1/9042; done; sleep 0.2; done";

/// The page's blocks of commands, each with its place in the page.
fn blocks(page: &str) -> Vec<std::ops::Range<usize>> {
    let begin = "```console\n";
    let begins = page.match_indices(begin).map(|(at, _)| at + begin.len());
    begins
        .map(|at| at..at + page[at..].find("```").unwrap())
        .collect()
}

/// Runs a block's commands, and returns what they say; the page's own text is written to a file that is shown.
fn said(host: &OtherHost<'_>, block: &str) -> String {
    let mut said = String::new();
    let commands: Vec<&str> = block
        .lines()
        .filter(|line| line.starts_with("# "))
        .collect();
    for line in commands {
        let command = &line[2..];
        if let Some(file) = line.strip_prefix(SHOWS) {
            let after = &block[block.find(line).unwrap() + line.len() + 1..];
            let text = after.split("\n# ").next().unwrap();
            put(host, file, &format!("{}\n", text.trim_end_matches('\n')));
        }
        let script = format!("cd /root; {command} 2>&1");
        let output = host.run(&["timeout", PATIENCE_SECONDS, "sh", "-c", &script]);
        assert_ne!(
            output.status.code(),
            Some(124),
            "it does not end: {line}: {output:?}"
        );
        let text = String::from_utf8(output.stdout).unwrap();
        if command.contains("/etc/underpass/conf.d/") {
            eventually("the application is read", || {
                host.succeeds(&["underpass", "flows"]).contains("web")
            });
        }
        let _ = write!(said, "{line}\n{text}");
    }
    said
}

/// Writes a file; one of the policy is in force when this returns.
fn put(host: &OtherHost<'_>, file: &str, text: &str) {
    let in_force = || host.succeeds(&["underpass", "config"]);
    let is_policy = file.starts_with("/etc/underpass/");
    let before = is_policy.then(in_force);
    let write = "cd /root; printf %s \"$2\" > \"$1\"";
    host.succeeds(&["sh", "-c", write, "sh", file, text]);
    eventually("it is in force", || {
        before.as_ref().is_none_or(|before| *before != in_force())
    });
}

/// A text without what differs from run to run: numbers, the units behind them, and how wide columns are.
fn shape(text: &str) -> String {
    let is_number = |word: &str| {
        let word = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let rest = word.trim_start_matches(|c: char| c.is_ascii_digit() || ".,:-+TZ".contains(c));
        rest.len() < word.len() && ["", "µs", "ms", "s", "k", "M", "µ"].contains(&rest)
    };
    let shaped = |word: &str| match word == "-" || is_number(word) {
        true => "0".to_owned(),
        false => word
            .split(|c: char| c.is_ascii_digit())
            .filter(|part| !part.is_empty())
            .collect::<Vec<_>>()
            .join("0"),
    };
    let lines = text.lines().map(|line| {
        let words = line.split_whitespace().map(shaped);
        words.collect::<Vec<_>>().join(" ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn every_command_of_the_page_says_what_the_page_has_it_say() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = fs::read_to_string(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let options = NodeOptions {
        listen: "127.0.0.1:9042".parse().unwrap(),
        ..with_a_table()
    };
    let _database = sandbox.server(|| Node::start(options)).unwrap().unwrap();
    let host = OtherHost::new(&sandbox);
    host.succeeds(&["ln", "-s", BINARY, "/usr/bin/underpass"]);
    host.succeeds(&[
        "mkdir",
        "-p",
        "/etc/underpass/conf.d",
        "/run/underpass",
        "/var/log/underpass",
    ]);
    let write = "printf %s \"$2\" > \"$1\"; chmod 755 \"$1\"";
    let agent = format!("[agent]\ncgroup = {:?}\n", sandbox.cgroup.path());
    // Nothing of a service is in the journal.
    let journal = "#!/bin/sh\necho 'INFO ready'\n";
    for (file, text) in [(FILE, agent.as_str()), ("/usr/bin/journalctl", journal)] {
        host.succeeds(&["sh", "-c", write, "sh", file, text]);
    }
    let _web = runs(&host, "web", &web());
    let mut run = host.command(&["underpass", "run"]);
    run.env("UNDERPASS_TEST_HOOKS", "strict_calls=true");
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let agent = sandbox.server(|| run.stderr(log).spawn()).unwrap();
    let _agent = Held(agent.unwrap());
    eventually("the agent runs", || {
        host.run(&["underpass", "flows"]).status.success()
    });
    let mut batch = None;
    let mut now = page.clone();
    for block in blocks(&page) {
        let old = &page[block.clone()];
        let new = said(&host, old);
        // What the first policy of the page lets `batch` have.
        if old.contains("limit = {") {
            batch.get_or_insert_with(|| runs(&host, "batch", BATCH));
            thread::sleep(Duration::from_millis(500));
        }
        if std::env::var_os("UPDATE_DOCS").is_some() {
            now = now.replacen(old, &new, 1);
            continue;
        }
        assert_eq!(
            shape(old),
            shape(&new),
            "docs/operating.md is stale: set UPDATE_DOCS=1 and run this test again"
        );
    }
    if now != page {
        fs::write(&path, now).unwrap();
    }
}
