//! The package, as an operator has it: installed on a host, started by its unit, upgraded, removed, purged.

mod image;
mod operating;
mod other_host;
mod unit;

use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use cql_node::{Node, NodeOptions};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sandbox::Sandbox;

use self::other_host::{OtherHost, shown};
use super::service_manager::Manager;
use crate::common::{
    frames::{query, startup},
    *,
};

/// Where the package has its policy.
const FILE: &str = "/etc/underpass/underpass.toml";

/// Makes the package of this version, of the binary under test, and returns its path.
fn package(folder: &Path, version: &str) -> PathBuf {
    let file = made(folder, version, "packages");
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with(&format!("underpass_{version}_")), "{name}");
    file
}

/// Makes files of this kind, and returns the path of the first.
fn made(folder: &Path, version: &str, kind: &str) -> PathBuf {
    let xtask = Path::new(BINARY).with_file_name("xtask");
    assert!(
        xtask.exists(),
        "there is no {}: run `cargo build --workspace --bins`",
        xtask.display()
    );
    let mut make = Command::new(xtask);
    // It is that of this crate.
    make.env_remove("CARGO_MANIFEST_DIR");
    make.args(["package", "--binary", BINARY, "--version", version]);
    make.args(["--only", kind, "--out"]);
    let made = make.arg(folder).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let said = String::from_utf8(made.stdout).unwrap();
    said.split(' ').next().unwrap().into()
}

/// The agent as its unit starts it, and the test as its service manager.
struct Service<'h> {
    host: &'h OtherHost<'h>,
    manager: Manager,
    agent: Child,
}

impl<'h> Service<'h> {
    fn start(host: &'h OtherHost<'h>, folder: &Path) -> Self {
        let socket = folder.join("notify");
        let _ = fs::remove_file(&socket);
        let manager = Manager::at(&socket);
        let unit = host.read("/usr/lib/systemd/system/underpass.service");
        let command = unit
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="));
        let words: Vec<&str> = command.unwrap().split(' ').collect();
        let mut command = host.command(&words);
        command.env("NOTIFY_SOCKET", &socket);
        command.env("UNDERPASS_TEST_HOOKS", "strict_calls=true");
        let log = fs::File::create(folder.join("log")).unwrap();
        let agent = host.sandbox.server(|| command.stderr(log).spawn());
        let agent = agent.unwrap().unwrap();
        manager.waits_for("READY=1");
        Self {
            host,
            manager,
            agent,
        }
    }

    /// Stops it as the unit does: the keeper is left alone.
    fn stop(mut self) {
        let pid = Pid::from_raw(self.agent.id() as i32);
        kill(pid, Signal::SIGTERM).unwrap();
        self.manager.waits_for("STOPPING=1");
        assert!(self.agent.wait().unwrap().success());
    }

    fn runs_on(&mut self) -> bool {
        self.agent.try_wait().unwrap().is_none()
    }

    /// Statements on the table that it has counted.
    fn counted(&self) -> u64 {
        let said = self.host.succeeds(&["underpass", "statements", "--json"]);
        let list: serde_json::Value = serde_json::from_str(&said).unwrap();
        let mut rows = list.as_array().unwrap().iter();
        let row = rows.find(|row| row["table"] == "orders");
        row.map_or(0, |row| row["count"].as_u64().unwrap())
    }
}

impl Drop for Service<'_> {
    fn drop(&mut self) {
        // A test that has failed leaves it running.
        let _ = self.agent.kill();
        let _ = self.agent.wait();
    }
}

/// An application that has one connection all the time.
struct Application(TcpStream);

impl Application {
    fn new(sandbox: &Sandbox, to: SocketAddr) -> Self {
        let stream = sandbox.client(|| TcpStream::connect(to)).unwrap().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut application = Self(stream);
        let answer = application.asks(&startup(4, &[("CQL_VERSION", "3.0.0")]));
        assert_eq!(answer, frames::READY);
        application
    }

    fn selects(&mut self) {
        let answer = self.asks(&query(4, 1, "SELECT * FROM shop.orders"));
        assert_eq!(answer, frames::RESULT);
    }

    /// The opcode of the answer.
    fn asks(&mut self, request: &[u8]) -> u8 {
        self.0.write_all(request).unwrap();
        let mut header = [0; 9];
        self.0.read_exact(&mut header).unwrap();
        let [_, _, _, _, opcode, a, b, c, d] = header;
        let mut body = vec![0; u32::from_be_bytes([a, b, c, d]) as usize];
        self.0.read_exact(&mut body).unwrap();
        opcode
    }
}

fn database(sandbox: &Sandbox) -> Node {
    sandbox
        .server(|| Node::start(with_a_table()))
        .unwrap()
        .unwrap()
}

/// Options of a database with a table.
fn with_a_table() -> NodeOptions {
    let schema = [
        "CREATE KEYSPACE shop WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE shop.orders (id int PRIMARY KEY, v text)",
    ];
    NodeOptions {
        schema: schema.map(str::to_owned).to_vec(),
        ..NodeOptions::default()
    }
}

/// The file that the package brings, as an operator edits it: without the marks of comment, and here with the database's
/// port and the test's cgroup.
fn uncommented(file: &str, sandbox: &Sandbox, to: SocketAddr) -> String {
    let (head, rule) = file.split_at(file.find("# [[rule]]").unwrap());
    let lines = rule
        .lines()
        .map(|line| line.strip_prefix("# ").unwrap_or(line));
    let rule = lines.collect::<Vec<_>>().join("\n") + "\n";
    format!("{head}{}{rule}", in_a_test(sandbox)).replace(":9042", &format!(":{}", to.port()))
}

/// The settings of an agent in a test: its cgroup, and no connection that is left out.
fn in_a_test(sandbox: &Sandbox) -> String {
    let cgroup = sandbox.cgroup.path();
    format!("\n[agent]\ncgroup = {cgroup:?}\nholdout = \"0%\"\n")
}

/// A newcomer's first minute: two commands beside an agent without a rule, and the application that was connected before is
/// seen with what it asks. Nothing is started again.
fn sees_what_runs(host: &OtherHost<'_>, application: &mut Application, to: SocketAddr) {
    const A_MINUTE: Duration = Duration::from_secs(60);
    let begun = Instant::now();
    let written = "/etc/underpass/conf.d/first.toml";
    let port = to.port().to_string();
    host.succeeds(&["underpass", "init", "--port", &port, "--output", written]);
    loop {
        let mut top = host.command(&["underpass", "top", "--once"]);
        let top = top.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut top = host.sandbox.server(|| top.spawn()).unwrap().unwrap();
        // It looks at what passes in an interval of a second.
        while top.try_wait().unwrap().is_none() {
            application.selects();
            thread::sleep(Duration::from_millis(20));
        }
        let said = top.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        if said.contains("shop.orders") {
            break;
        }
        assert!(begun.elapsed() < A_MINUTE, "{said}");
    }
    host.succeeds(&["rm", written]);
}

#[test]
fn a_package_is_installed_started_upgraded_removed_and_purged() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let database = database(&sandbox);
    let to = database.addr();
    let mut application = Application::new(&sandbox, to);
    let host = OtherHost::new(&sandbox);
    let [first, second] = ["0.1.0", "0.1.1"].map(|version| package(folder.path(), version));
    host.dpkg("--install", shown(&first));
    unit::check(&host);
    check_pages(&host);

    // As installed it runs, and does nothing.
    let as_installed = host.read(FILE);
    let checked = host.run(&["underpass", "check", FILE]);
    assert!(
        checked.status.success() && checked.stderr.is_empty(),
        "{checked:?}"
    );
    assert!(!as_installed.contains("\n[[rule]]"), "{as_installed}");

    let empty = as_installed.clone() + &in_a_test(&sandbox);
    host.write(FILE, &empty);
    let mut service = Service::start(&host, folder.path());
    sees_what_runs(&host, &mut application, to);

    let edited = uncommented(&as_installed, &sandbox, to);
    host.write(FILE, &edited);
    application.selects();
    application.selects();
    eventually("it is read", || service.counted() > 0);

    host.dpkg("--install", shown(&second));
    assert!(service.runs_on(), "the agent of before runs on");
    assert_eq!(host.read(FILE), edited);
    let before = service.counted();
    application.selects();
    eventually("it reads on", || service.counted() > before);
    service.stop();
    application.selects();
    let service = Service::start(&host, folder.path());
    application.selects();
    application.selects();
    eventually("the new one reads it", || service.counted() > 0);

    service.stop();
    host.dpkg("--remove", "underpass");
    assert_eq!(host.read(FILE), edited);
    host.dpkg("--purge", "underpass");
    assert_eq!(host.left(), Vec::<String>::new());
    application.selects();
    drop(host);
    serves_under_systemd(&sandbox, folder.path());
}

/// Holds both packages to what they do where systemd runs, and where their scripts speak to it.
fn serves_under_systemd(sandbox: &Sandbox, packages: &Path) {
    let host = OtherHost::booted(sandbox, packages);
    // As in a container: nothing is written to a disk, and man pages are indexed when somebody asks.
    let dpkg = "printf 'force-unsafe-io\\nno-triggers\\n' > /etc/dpkg/dpkg.cfg.d/test";
    host.succeeds(&["sh", "-c", dpkg]);
    let shows = |what: &str| {
        let said = host.succeeds(&[
            "systemctl",
            "show",
            "--value",
            "--property",
            what,
            "underpass",
        ]);
        said.trim().to_owned()
    };
    let log = || {
        host.succeeds(&[
            "journalctl",
            "--unit=underpass",
            "--output=cat",
            "--no-pager",
        ])
    };
    operating::holds(&host, "Installing");
    // The package has started it, and a start that returns is one that is attached.
    assert_eq!(shows("ActiveState"), "active", "{}", log());
    assert!(log().contains("ready cgroup="), "{}", log());
    // Its log has fields, by which the journal finds records.
    operating::holds(&host, "In the journal");
    assert!(!log().contains("not filtered"), "{}", log());
    eventually("it says what it does", || {
        shows("StatusText").starts_with("0 rules in force")
    });
    let main = shows("MainPID");

    let file = host.read(FILE);
    let (head, rule) = file.split_at(file.find("# [[rule]]").unwrap());
    host.write(
        FILE,
        &format!(
            "{head}{}",
            rule.replace("\n# ", "\n").trim_start_matches("# ")
        ),
    );
    host.succeeds(&["systemctl", "reload", "underpass"]);
    eventually("it has read the file", || log().contains("policy reloaded"));

    operating::holds(&host, "Upgrading");
    assert_eq!(shows("ActiveState"), "active", "{}", log());
    assert_ne!(shows("MainPID"), main);

    operating::holds(&host, "Removing");
    assert_eq!(host.left(), Vec::<String>::new());
}

fn check_pages(host: &OtherHost<'_>) {
    let page = "/usr/share/man/man1/underpass-check.1.gz";
    let page = host.succeeds(&["gzip", "--decompress", "--stdout", page]);
    assert!(page.contains(".TH underpass-check 1"), "{page}");
    let bash = ". /usr/share/bash-completion/completions/underpass; COMP_WORDS=(underpass sta); COMP_CWORD=1; \
                _underpass underpass sta underpass; echo \"${COMPREPLY[@]}\"";
    assert_eq!(host.succeeds(&["bash", "-c", bash]).trim(), "statements");
    let zsh = host.read("/usr/share/zsh/vendor-completions/_underpass");
    assert!(zsh.starts_with("#compdef underpass"), "{zsh}");
    let fish = host.read("/usr/share/fish/vendor_completions.d/underpass.fish");
    assert!(fish.contains("complete -c underpass"), "{fish}");
    // Commands that only the program itself uses are in none of them.
    for hidden in ["keep", "pages"] {
        assert!(
            !host
                .run(&[
                    "test",
                    "-e",
                    &format!("/usr/share/man/man1/underpass-{hidden}.1.gz")
                ])
                .status
                .success()
        );
    }
}
