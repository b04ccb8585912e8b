//! The page for browsers, in a browser.

use std::{
    io::{self, BufRead, BufReader},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{net::UnixStream, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Instant,
};

use base64::prelude::{BASE64_STANDARD, Engine};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use serde_json::json;

use super::*;
use crate::common::{operating, operator::Operator};

/// Gives whoever connects to the returned address the admin socket, as `ssh -L` does. Ends with the process.
pub(super) fn forward(socket: PathBuf) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for browser in listener.incoming().flatten() {
            let Ok(agent) = UnixStream::connect(&socket) else {
                continue;
            };
            let (from, to) = (browser.try_clone().unwrap(), agent.try_clone().unwrap());
            thread::spawn(move || pass(from, to));
            thread::spawn(move || pass(agent, browser));
        }
    });
    address
}

/// Passes bytes on until one side ends.
fn pass(mut from: impl Read, mut to: impl Write) {
    // A browser that closes early is none of the agent's faults.
    let _ = io::copy(&mut from, &mut to);
}

/// A browser with a page, driven by the Chrome DevTools protocol over two pipes.
struct Browser {
    process: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    session: Value,
    calls: u64,
    /// Messages of the page's console: errors, and what its policy has kept from being loaded.
    complaints: Vec<String>,
}

impl Browser {
    fn open(folder: &Path, url: &str) -> Self {
        // The pipes are descriptors 3 and 4.
        let script = "exec chromium --headless --no-sandbox --disable-gpu --no-first-run --disable-sync \
            --disable-background-networking --disable-component-update --remote-debugging-pipe \
            --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' --user-data-dir=\"$0\" 3<&0 4>&1 1>&2";
        let mut process = Command::new("bash")
            .args(["-c", script])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let (to, from) = (
            process.stdin.take().unwrap(),
            process.stdout.take().unwrap(),
        );
        let mut browser = Self {
            process,
            to,
            from: BufReader::new(from),
            session: Value::Null,
            calls: 0,
            complaints: Vec::new(),
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        browser.session = browser.call("Target.attachToTarget", attach)["sessionId"].clone();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser.call("Page.navigate", json!({"url": url}));
        browser
    }

    fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut call = json!({"id": id, "method": method, "params": params});
        if !self.session.is_null() {
            call["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{call}\0").as_bytes()).unwrap();
        loop {
            let mut message = Vec::new();
            self.from.read_until(0, &mut message).unwrap();
            message.pop().unwrap();
            let message: Value = serde_json::from_slice(&message).unwrap();
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let said = message["method"].as_str().unwrap_or_default();
            if [
                "Runtime.consoleAPICalled",
                "Runtime.exceptionThrown",
                "Log.entryAdded",
            ]
            .contains(&said)
            {
                self.complaints.push(message.to_string());
            }
        }
    }

    fn evaluate(&mut self, script: &str) -> String {
        let result = self.call("Runtime.evaluate", json!({"expression": script}));
        assert!(result["exceptionDetails"].is_null(), "{script}: {result}");
        result["result"]["value"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    /// The lines that can be read on the page, of an application `web` on the host `db1`.
    fn reads(&mut self, process: &str) -> String {
        let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        let page = self
            .evaluate("document.body.innerText")
            .replace(process, "web");
        let own = format!(" on {}", own.trim());
        let page = page.replace(&own, " on db1").replace('\t', "  ");
        let lines = page
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Waits until this text can be read on the page.
    fn shows(&mut self, text: &str, mut meanwhile: impl FnMut()) {
        let begun = Instant::now();
        loop {
            let page = self.evaluate("document.body?.innerText ?? ''");
            if page.contains(text) {
                return;
            }
            assert!(begun.elapsed() < common::PATIENCE, "no {text:?} in\n{page}");
            meanwhile();
        }
    }

    /// Keeps a picture of the page for a person to look at.
    fn pictures(&mut self, folder: &Path, name: &str, width: u32, scheme: &str) {
        let size =
            json!({"width": width, "height": 520, "deviceScaleFactor": 1, "mobile": width < 500});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let scheme = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", scheme);
        let picture = self.call("Page.captureScreenshot", json!({}));
        let picture = BASE64_STANDARD.decode(picture["data"].as_str().unwrap());
        fs::write(folder.join(name).with_extension("png"), picture.unwrap()).unwrap();
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Its processes are a group; it has ended if its test has failed by that.
        let _ = killpg(Pid::from_raw(self.process.id() as i32), Signal::SIGKILL);
        let _ = self.process.wait();
    }
}

#[test]
fn a_browser_shows_what_is_asked_and_by_which_rules() {
    let folder = tempfile::tempdir().unwrap();
    let pictures = std::env::var_os("UNDERPASS_PICTURES").map(PathBuf::from);
    // A client's text is text on the page, too.
    let odd = "SELECT v FROM shop.\"<img src=x>\" WHERE id = 1";
    host(|host| {
        host.policy(&policy("", "{ transform = \"stats\" }"));
        let at = forward(host.agent.admin_socket());
        let mut c = begin(host, 4);
        let process = host.flow(&c)["process"].as_str().unwrap().to_owned();
        let mut asks = || {
            for text in [SELECT, odd] {
                c.client_sends(&query(4, 1, text));
                c.server_sends(&void(4, 1));
            }
            thread::sleep(Duration::from_millis(50));
        };
        Operator::of(host).mark(&["process=nobody", "bypass"]);
        let mut browser = Browser::open(folder.path(), &format!("http://{at}/"));
        let select = "SELECT v FROM shop.orders WHERE id = ?";
        for text in [
            "live",
            select,
            "<img src=x>",
            &process,
            "tap",
            "shop.orders",
        ] {
            browser.shows(text, &mut asks);
        }
        let mut read = Vec::new();
        let opens = |tab: &str| {
            format!(
                "[...document.querySelectorAll('nav button')].find(b => b.textContent === '{tab}').click()"
            )
        };
        for (tab, texts) in [
            ("Flows", &[process.as_str(), "127.0.0.1:", "tap"][..]),
            ("Rules", &["untouched 1"]),
            ("Denied", &["Nothing was refused in the agent"]),
            ("Marks", &["process=nobody", "running and later"]),
            ("Backends", &["No rule has backends."]),
            ("Health", &["policy files that are refused"]),
            ("Statements", &[select]),
        ] {
            browser.evaluate(&opens(tab));
            for text in texts {
                browser.shows(text, &mut asks);
            }
            if tab == "Rules" {
                read.push(browser.reads(&process));
            }
            if let Some(folder) = &pictures {
                for (look, width, scheme) in [
                    ("phone", 390, "light"),
                    ("dark", 1400, "dark"),
                    ("light", 1400, "light"),
                ] {
                    browser.pictures(folder, &format!("{tab}-{look}"), width, scheme);
                }
            }
        }
        browser.evaluate("byId('filter').value = 'orders'; byId('filter').oninput(); ''");
        browser.shows(select, &mut asks);
        read.insert(0, browser.reads(&process));
        operating::holds("In a browser", &read);
        browser.evaluate("byId('filter').value = 'IMG'; byId('filter').oninput(); ''");
        browser.shows("<img src=x>", &mut asks);
        assert!(!browser.evaluate("document.body.innerText").contains(select));
        browser.evaluate("document.querySelector('tbody tr').click()");
        browser.shows("asked by", &mut asks);
        assert_eq!(
            browser.evaluate("String(document.querySelectorAll('img').length)"),
            "0"
        );
        assert_eq!(browser.complaints, Vec::<String>::new());
        drop(browser);
        c.ends();
    });
}

#[test]
fn only_its_own_script_runs_and_others_pages_read_nothing() {
    host(|host| {
        let at = forward(host.agent.admin_socket());
        let ask = |path: &str, host: &str| {
            let mut agent = TcpStream::connect(at).unwrap();
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\r\n");
            agent.write_all(request.as_bytes()).unwrap();
            let mut answer = vec![0; 8192];
            let read = agent.read(&mut answer).unwrap();
            String::from_utf8_lossy(&answer[..read]).into_owned()
        };
        let page = ask("/", "localhost");
        assert!(
            page.contains("default-src 'none'; script-src 'nonce-"),
            "{page}"
        );
        assert_ne!(
            page.find("nonce-").map(|at| page[at..at + 38].to_owned()),
            {
                let again = ask("/", "localhost");
                again.find("nonce-").map(|at| again[at..at + 38].to_owned())
            }
        );
        for path in ["/", "/live", "/flows", "/statements/top"] {
            let own = ask(path, "localhost:9180");
            assert!(
                own.starts_with("HTTP/1.1 200") && !own.contains("access-control"),
                "{own}"
            );
            let rebound = ask(path, "attacker.example:9180");
            assert!(rebound.starts_with("HTTP/1.1 421"), "{rebound}");
        }
        // Those who look are few.
        let mut looking = Vec::new();
        let crowded = loop {
            let mut agent = TcpStream::connect(at).unwrap();
            agent
                .write_all(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .unwrap();
            let mut answer = [0; 12];
            agent.read_exact(&mut answer).unwrap();
            looking.push(agent);
            if answer.ends_with(b"503") || looking.len() > 20 {
                break looking.len();
            }
        };
        assert!(crowded <= 9, "{crowded}");
        drop(looking);
        eventually("room again", || {
            ask("/live", "localhost").starts_with("HTTP/1.1 200")
        });
    });
}
