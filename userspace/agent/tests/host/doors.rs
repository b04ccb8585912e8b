//! The agent's own doors: who may come in, how long anybody may stand in one, and which files it trusts.

use std::{
    fs::{self, Permissions},
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::{
        fs::{MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Sandbox, run_in};

use crate::common::{BINARY, PATIENCE, eventually};

/// A user who is nobody's.
const STRANGER: u32 = 65_534;

/// An agent without a rule, and what is tried on it.
fn with_agent(settings: &str, policy: &str, body: impl FnOnce(&Sandbox, &Agent<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, settings, policy).unwrap();
    body(&sandbox, &agent);
}

/// Runs this in the sandbox's network, on a thread of its own.
pub fn inside<T: Send>(sandbox: &Sandbox, body: impl FnOnce() -> T + Send) -> T {
    run_in(Some(&sandbox.netns), None, body).unwrap()
}

/// Bytes that come until the other side ends.
fn answer(mut stream: impl Read) -> String {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        Err(error) => panic!("{error}"),
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn asks(address: SocketAddr, head: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(head.as_bytes()).unwrap();
    answer(stream)
}

#[test]
fn the_admin_socket_answers_root_and_the_group_alone() {
    with_agent("", "", |_, agent| {
        let socket = agent.admin_socket();
        let mode = fs::metadata(&socket).unwrap().mode() & 0o777;
        // The group is there on some hosts.
        assert!([0o600, 0o660].contains(&mode), "{mode:o}");
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream
            .write_all(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        assert!(answer(stream).ends_with("ready\n"));
        let shown = Command::new(BINARY)
            .args(["flows", "--json", "--admin", socket.to_str().unwrap()])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&shown.stdout), "[]\n");
        let mut open = Command::new(BINARY);
        // Its folder is the test's, which nobody else can enter.
        open.args(["flows", "--admin", socket.to_str().unwrap()])
            .uid(STRANGER);
        assert!(!open.output().is_ok_and(|output| output.status.success()));
    });
}

#[test]
fn without_admin_nothing_listens_on_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = Sandbox::new().unwrap();
    let (admin, control) = (folder.path().join("a"), folder.path().join("c"));
    let pins = format!("/sys/fs/bpf/underpass-test-doors-{}", std::process::id());
    let file = folder.path().join("policy.toml");
    let text = format!(
        "[agent]\nadmin_socket = {admin:?}\ncontrol = {control:?}\npins = {pins:?}\ncgroup = {:?}\n\
         splice = \"off\"\nmax_namespaces = 0\n",
        sandbox.cgroup.path()
    );
    fs::write(&file, text).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["run", "--config", file.to_str().unwrap()]);
    let mut agent = inside(&sandbox, || command.stderr(Stdio::null()).spawn().unwrap());
    eventually("it is ready", || {
        UnixStream::connect(&admin).is_ok_and(|mut stream| {
            let asked = stream.write_all(b"GET /readyz HTTP/1.0\r\n\r\n");
            asked.is_ok() && answer(stream).ends_with("ready\n")
        })
    });
    let listening = inside(&sandbox, || {
        let table = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let ports = table.lines().skip(1).filter_map(|line| {
            let mut fields = line.split_ascii_whitespace();
            let (local, state) = (fields.nth(1)?, fields.nth(1)?);
            let port = u16::from_str_radix(local.split_once(':')?.1, 16).ok()?;
            // The listeners of flows are below 1024.
            (state == "0A" && port >= 1024).then_some(port)
        });
        ports.collect::<Vec<_>>()
    });
    agent.kill().unwrap();
    agent.wait().unwrap();
    let gone = Command::new(BINARY)
        .args([
            "detach",
            "--pins",
            &pins,
            "--control",
            control.to_str().unwrap(),
        ])
        .output()
        .unwrap();
    assert!(gone.status.success(), "{gone:?}");
    assert_eq!(listening, [0_u16; 0]);
}

#[test]
fn stuck_requests_do_not_keep_a_probe_waiting() {
    with_agent("", "", |sandbox, agent| {
        let address = agent.admin();
        inside(sandbox, || {
            let heads = ["", "G", "GET /metrics HTTP/1.1\r\nHost: localhost\r\n"];
            let stuck: Vec<TcpStream> = (0..300)
                .map(|n| {
                    let mut stream = TcpStream::connect(address).unwrap();
                    // One that was sent away already cannot write.
                    let _ = stream.write_all(heads[n % heads.len()].as_bytes());
                    stream
                })
                .collect();
            let begun = Instant::now();
            let said = asks(address, "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
            assert!(said.ends_with("ready\n"), "{said}");
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
            drop(stuck);
        });
        assert!(
            agent
                .metric("underpass_admin_refused_total{reason=\"crowded\"}")
                .unwrap()
                > 0.0
        );
    });
}

#[test]
fn a_request_that_does_not_come_and_one_that_trickles_end() {
    with_agent("", "", |sandbox, agent| {
        let address = agent.admin();
        inside(sandbox, || {
            let begun = Instant::now();
            let silent = TcpStream::connect(address).unwrap();
            let mut trickling = TcpStream::connect(address).unwrap();
            let trickle = trickling.try_clone().unwrap();
            let writer = thread::spawn(move || {
                let ended = |e: &std::io::Error| e.kind() != ErrorKind::WouldBlock;
                while !trickling.write_all(b"G").is_err_and(|e| ended(&e)) {
                    thread::sleep(Duration::from_millis(200));
                    assert!(begun.elapsed() < 2 * PATIENCE, "it may go on for ever");
                }
            });
            for stream in [silent, trickle] {
                stream.set_read_timeout(Some(2 * PATIENCE)).unwrap();
                answer(stream);
            }
            writer.join().unwrap();
            assert!(begun.elapsed() < 2 * PATIENCE, "{:?}", begun.elapsed());
        });
    });
}

#[test]
fn a_page_with_a_name_of_its_own_is_not_answered() {
    let hosts = "admin_hosts = [\"db1.example.org\"]";
    with_agent(hosts, "", |sandbox, agent| {
        let address = agent.admin();
        let status = |host: &str| {
            let head = format!("GET /flows HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let said = inside(sandbox, || asks(address, &head));
            said.split(' ').nth(1).unwrap_or_default().to_owned()
        };
        for host in [
            "127.0.0.1:9180",
            "localhost",
            "[::1]:1",
            "DB1.example.org:9180",
        ] {
            assert_eq!(status(host), "200", "{host}");
        }
        for host in ["rebind.example.org:9180", "127.0.0.1.example.org", "db1"] {
            assert_eq!(status(host), "421", "{host}");
        }
        let refused = "underpass_admin_refused_total{reason=\"host\"}";
        assert_eq!(agent.metric(refused).unwrap(), 3.0);
    });
}

/// Runs this on a thread that is another user. The process stays root's.
#[test]
fn metrics_alone_are_at_their_own_address() {
    with_agent("metrics = \"127.0.0.1:9464\"", "", |sandbox, agent| {
        let address = "127.0.0.1:9464".parse().unwrap();
        let at = |path: &str, host: &str| {
            let head = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            inside(sandbox, || asks(address, &head))
        };
        let metrics = at("/metrics", "127.0.0.1:9464");
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(metrics.contains("\nunderpass_build_info{"), "{metrics}");
        assert!(at("/healthz", "localhost").contains("ok\n"));
        for path in [
            "/",
            "/flows",
            "/statements",
            "/overhead",
            "/live",
            "/tail",
            "/denied",
        ] {
            let answer = at(path, "127.0.0.1");
            assert!(answer.starts_with("HTTP/1.1 404"), "{path}: {answer}");
        }
        let refused = at("/metrics", "rebind.attacker.example");
        assert!(refused.starts_with("HTTP/1.1 421"), "{refused}");
        assert!(
            agent.get("/flows").is_ok(),
            "the admin address has all of it"
        );
    });
}

fn as_stranger<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    use rustix::thread::set_thread_uid;
    thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            set_thread_uid(rustix::process::Uid::from_raw(STRANGER)).unwrap();
            body()
        });
        stranger.join().unwrap()
    })
}

fn refusal(output: Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn an_agent_that_is_not_roots_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    let path = folder.path().join("admin.sock");
    let _listening = as_stranger(|| UnixListener::bind(&path).unwrap());
    let tcp = as_stranger(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let address = tcp.local_addr().unwrap().to_string();
    for (command, option, at) in [
        ("flows", "--admin", path.to_str().unwrap()),
        ("statements", "--admin", path.to_str().unwrap()),
        ("marks", "--control", path.to_str().unwrap()),
        ("flows", "--admin", &address),
        ("backends", "--admin", &address),
    ] {
        let output = Command::new(BINARY).args([command, option, at]).output();
        let said = refusal(output.unwrap());
        assert!(said.contains(&format!("uid {STRANGER}")), "{said}");
        assert!(said.contains(&format!("check {option}")), "{said}");
    }
}

/// Files that a policy names, and the policy itself, before anything is attached.
#[test]
fn what_others_can_change_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let policy = folder.path().join("policy.toml");
    let run = |command: &[&str]| {
        let args = [command, &[policy.to_str().unwrap()]].concat();
        refusal(Command::new(BINARY).args(args).output().unwrap())
    };
    let commands: [&[&str]; 2] = [&["run", "--config"], &["check"]];
    fs::write(&policy, "").unwrap();
    fs::set_permissions(&policy, Permissions::from_mode(0o666)).unwrap();
    for command in commands {
        let said = run(command);
        assert!(said.contains("others can write to"), "{said}");
        assert!(
            said.contains(&format!("chmod go-w {}", policy.display())),
            "{said}"
        );
    }
    fs::remove_file(&policy).unwrap();
    nix::unistd::mkfifo(&policy, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for command in commands {
        let said = run(command);
        assert!(said.contains("is a pipe: expected a file"), "{said}");
    }
    let stranger = Some(nix::unistd::Uid::from_raw(STRANGER));
    fs::remove_file(&policy).unwrap();
    fs::write(&policy, "").unwrap();
    nix::unistd::chown(&policy, stranger, None).unwrap();
    for command in commands {
        let said = run(command);
        assert!(said.contains("chown root"), "{said}");
    }
}

/// One rule with an audit in this file.
pub fn audited(file: &Path) -> String {
    format!(
        "[[rule]]\nname = \"r\"\nto = [\":9\"]\naction = \"enrich\"\nfail = \"closed\"\n\
         pipeline = [{{ transform = \"audit\", file = {file:?} }}]\n"
    )
}

#[test]
fn a_journal_is_never_a_pipe_a_device_a_link_or_anothers_file() {
    with_agent("", "", |_, agent| {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        fs::write(at("target"), "").unwrap();
        std::os::unix::fs::symlink(at("target"), at("link")).unwrap();
        fs::write(at("another"), "").unwrap();
        let stranger = Some(nix::unistd::Uid::from_raw(STRANGER));
        nix::unistd::chown(&at("another"), stranger, None).unwrap();
        fs::create_dir(at("open")).unwrap();
        fs::set_permissions(at("open"), Permissions::from_mode(0o777)).unwrap();
        for (file, why) in [
            (at("pipe"), "is a pipe"),
            ("/dev/full".into(), "is a device"),
            (at("link"), "is a symbolic link"),
            (at("another"), "belongs to uid 65534"),
            (at("open").join("audit.log"), "others can write to"),
        ] {
            agent.write_policy(&audited(&file)).unwrap();
            // It has not been hung up by opening the file: it says so, and answers.
            let said = agent.wait_for_log(why).unwrap();
            assert!(said.contains("cannot reload the file"), "{said}");
            assert_eq!(agent.get("/readyz").unwrap(), "ready\n");
        }
        assert_eq!(fs::read_dir(at("open")).unwrap().count(), 0);
        agent.write_policy(&audited(&at("audit.log"))).unwrap();
        agent.wait_for_log("policy reloaded").unwrap();
        let found = fs::metadata(at("audit.log")).unwrap();
        assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600));
    });
}

/// Bits of capability.h that are kept: CHOWN, DAC_READ_SEARCH, NET_BIND_SERVICE, NET_ADMIN, NET_RAW, SYS_PTRACE, SYS_ADMIN,
/// SYS_RESOURCE, PERFMON, BPF.
const KEPT: u64 = (1 << 0)
    | (1 << 2)
    | (1 << 10)
    | (1 << 12)
    | (1 << 13)
    | (1 << 19)
    | (1 << 21)
    | (1 << 24)
    | (1 << 38)
    | (1 << 39);

#[test]
fn every_thread_gives_up_what_it_does_not_need() {
    let policy = "[[rule]]\nname = \"r\"\nto = [\":9\"]\naction = \"enrich\"\n";
    with_agent("", policy, |_, agent| {
        // Its workers are there soon after it is ready.
        eventually("it has workers", || {
            let threads = fs::read_dir(format!("/proc/{}/task", agent.pid())).unwrap();
            let mut live = 0;
            for thread in threads.flatten() {
                // One that was busy for the start alone may have ended by now.
                let Ok(status) = fs::read_to_string(thread.path().join("status")) else {
                    continue;
                };
                live += 1;
                let value = |key: &str| {
                    let line = status.lines().find_map(|line| line.strip_prefix(key));
                    line.unwrap_or_default().trim().to_owned()
                };
                assert_eq!(value("NoNewPrivs:"), "1", "{status}");
                assert_eq!(value("Seccomp:"), "2", "{status}");
                for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
                    let bits = u64::from_str_radix(&value(set), 16).unwrap();
                    assert_eq!(bits & !KEPT, 0, "{set} {status}");
                }
            }
            live > 1
        });
    });
}

/// An agent with these capabilities alone intercepts. `docs/running.md` and the README name them.
#[test]
fn the_documented_capabilities_suffice() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("underpass");
    let five = "-all,+bpf,+net_admin,+net_bind_service,+net_raw,+perfmon";
    let text = format!("exec setpriv --inh-caps=-all --bounding-set={five} {BINARY} \"$@\"");
    sandbox::program::script(&script, &text).unwrap();
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let to = listener.local_addr().unwrap();
    let policy = format!(
        "[[rule]]\nname = \"r\"\nto = [\":{}\"]\naction = \"enrich\"\nfail = \"closed\"\n",
        to.port()
    );
    let netns = Some(&sandbox.netns);
    let settings = "max_flows = 100";
    let agent = Agent::start(&script, netns, &sandbox.cgroup, settings, &policy).unwrap();
    let client = sandbox.client(|| TcpStream::connect(to)).unwrap().unwrap();
    assert_eq!(client.peer_addr().unwrap(), to);
    assert_eq!(agent.metric("underpass_flows").unwrap(), 1.0);
    let page = include_str!("../../../../docs/running.md");
    let bounding = page
        .lines()
        .find(|line| line.starts_with("CapabilityBoundingSet="));
    let mut named: Vec<String> = five
        .split(",+")
        .skip(1)
        .map(|name| format!("CAP_{}", name.to_uppercase()))
        .collect();
    named.sort();
    assert_eq!(
        bounding.unwrap(),
        format!("CapabilityBoundingSet={}", named.join(" "))
    );
    let readme = include_str!("../../../../README.md");
    for name in named {
        assert!(readme.contains(&name), "{name}");
    }
}

/// `underpass tail`, and what it has said when it ended.
fn tails(args: &[&str], socket: &Path) -> Output {
    let mut tail = Command::new(BINARY);
    tail.arg("tail").args(args).arg("--admin").arg(socket);
    tail.output().unwrap()
}

#[test]
fn statements_are_told_at_the_socket_alone_to_so_many_and_until_the_agent_ends() {
    with_agent("", "", |sandbox, agent| {
        let (address, socket) = (agent.admin(), agent.admin_socket());
        let said = inside(sandbox, || {
            asks(address, "GET /tail HTTP/1.1\r\nHost: localhost\r\n\r\n")
        });
        assert!(said.starts_with("HTTP/1.1 404"), "{said}");
        let said = refusal(tails(&[], Path::new(&address.to_string())));
        assert!(said.contains("at the admin socket alone"), "{said}");
        let output = tails(&["--filter", "usr=ann"], &socket);
        assert_eq!(output.status.code(), Some(2));
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.contains("there is no key \"usr\"; keys here: ")
                && said.contains(": did you mean `user`?"),
            "{said}"
        );
        thread::scope(|scope| {
            let watching: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| tails(&[], &socket)))
                .collect();
            eventually("they watch", || {
                agent.metric("underpass_tail_watchers").unwrap() == 8.0
            });
            let said = refusal(tails(&[], &socket));
            assert!(said.contains("8 others watch already"), "{said}");
            assert_eq!(agent.metric("underpass_tail_refused_total").unwrap(), 1.0);
            agent.signal(nix::sys::signal::Signal::SIGTERM).unwrap();
            for tail in watching {
                let said = refusal(tail.join().unwrap());
                assert!(said.contains("underpass: the agent has stopped"), "{said}");
            }
        });
    });
}
