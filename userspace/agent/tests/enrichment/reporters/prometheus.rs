//! The dashboard and the alerts of `config/`, by a Prometheus that scrapes an agent.

use std::{
    collections::BTreeSet,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use super::{page::forward, *};

/// The folder `config/` of the source.
fn config() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config")
}

/// A Prometheus that scrapes one agent. Ends with this.
struct Prometheus {
    process: Child,
    at: SocketAddr,
}

impl Prometheus {
    fn start(folder: &Path, agent: SocketAddr) -> Self {
        let rules = config().join("prometheus/underpass.rules.yml");
        let rules = rules.canonicalize().unwrap();
        let text = format!(
            "global: {{ scrape_interval: 500ms, evaluation_interval: 500ms }}\nrule_files: [{rules:?}]\n\
             scrape_configs: [{{ job_name: underpass, static_configs: [{{ targets: [\"{agent}\"] }}] }}]\n"
        );
        let file = folder.join("prometheus.yml");
        fs::write(&file, text).unwrap();
        // Free a moment ago, and whoever takes it meanwhile is found out below.
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = free.local_addr().unwrap();
        drop(free);
        let process = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.join("data").display()
            ))
            .arg(format!("--web.listen-address={at}"))
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.join("log")).unwrap())
            .spawn();
        let prometheus = Self {
            process: process.unwrap_or_else(|e| panic!("no prometheus ({e}): cargo xtask setup")),
            at,
        };
        // It listens before it answers.
        let is_ready = |answer: String| answer.starts_with("HTTP/1.0 200");
        eventually("Prometheus is ready", || {
            prometheus.answer("/-/ready").is_ok_and(is_ready)
        });
        prometheus
    }

    fn answer(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.at)?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    fn get(&self, path: &str) -> Value {
        let answer = self.answer(path).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|e| panic!("{path}: {e}: {answer}"))
    }

    /// Returns the number of series that a query finds.
    fn count(&self, query: &str) -> usize {
        let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/api/v1/query?query={escaped}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].as_array().unwrap().len()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The queries of the dashboard's panels, with their variables as Grafana fills them in.
fn queries() -> Vec<String> {
    let text = fs::read_to_string(config().join("grafana/underpass.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let queries = targets
        .flatten()
        .map(|target| target["expr"].as_str().unwrap());
    let filled = [
        ("$job", ".*"),
        ("$instance", ".*"),
        ("$__rate_interval", "5s"),
    ];
    queries
        .map(|query| {
            let fill = |query: String, (name, value): &(&str, &str)| query.replace(name, value);
            filled.iter().fold(query.to_owned(), fill)
        })
        .collect()
}

/// Returns the metrics that a text names.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let metrics = words.filter(|word| word.starts_with("underpass_"));
    metrics
        .map(|name| name.trim_end_matches("_bucket").to_owned())
        .collect()
}

fn promtool(args: &[&str], input: &str) {
    let mut check = Command::new("promtool");
    check
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{args:?}: {output:?}"
    );
}

#[test]
fn every_panel_and_every_alert_finds_its_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let overloaded = [&0x1001_u32.to_be_bytes()[..], &[0, 1, b'x']].concat();
    let mut metrics = String::new();
    host(|host| {
        host.policy(&format!(
            "{}[[rule]]\nname = \"b\"\nto = [\"10.9.0.10:9042\"]\nbackends = [\"127.0.0.1:1\"]\naction = \"bypass\"\n",
            policy("", "{ transform = \"stats\" }")
        ));
        let prometheus = Prometheus::start(folder.path(), forward(host.agent.admin_socket()));
        let mut c = begin(host, 4);
        let mut missing: Vec<String> = queries();
        assert!(missing.len() > 15, "{missing:?}");
        let begun = Instant::now();
        while !missing.is_empty() {
            assert!(
                begun.elapsed() < common::PATIENCE,
                "nothing comes of {missing:#?}"
            );
            for answer in [void(4, 1), frame(RESPONSE | 4, 1, 0, &overloaded)] {
                c.client_sends(&query(4, 1, SELECT));
                c.server_sends(&answer);
            }
            thread::sleep(Duration::from_millis(100));
            missing.retain(|query| prometheus.count(query) == 0);
        }
        let rules = prometheus.get("/api/v1/rules");
        let rules = rules["data"]["groups"][0]["rules"].as_array().unwrap();
        assert!(rules.len() > 5, "{rules:?}");
        for rule in rules {
            assert_eq!(rule["health"], "ok", "{rule}");
        }
        metrics = host.agent.get("/metrics").unwrap();
        promtool(&["check", "metrics"], &metrics);
        c.ends();
    });
    let rules = config().join("prometheus/underpass.rules.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let told = metrics.lines().filter(|line| !line.starts_with('#'));
    let told: Vec<&str> = told
        .filter_map(|line| line.split(['{', ' ']).next())
        .collect();
    let known = named(&fs::read_to_string(pages).unwrap());
    let mut used = named(&fs::read_to_string(&rules).unwrap());
    used.extend(queries().iter().flat_map(|query| named(query)));
    let of_histograms =
        |name: &str| name.ends_with("_seconds_sum") || name.ends_with("_seconds_count");
    used.extend(
        named(&told.join(" "))
            .into_iter()
            .filter(|name| !of_histograms(name)),
    );
    let unknown: Vec<_> = used.difference(&known).collect();
    assert!(unknown.is_empty(), "no such metrics: {unknown:?}");
}
