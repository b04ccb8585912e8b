//! Rules that name containers, by what their runtime calls them.

pub mod cri;
mod docker;
pub mod ship;

use std::{
    fs,
    net::TcpListener,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use cri::Cri;
use docker::Docker;
use sandbox::{Agent, Netns, Sandbox, run_in};
use serde_json::Value;
use ship::{Container, Mood, passes};

use crate::common::{
    BINARY, PATIENCE, accept, eventually,
    frames::{query, ready, startup, void},
    rule, to,
};

const PORT: u16 = 9042;
/// The port of a database whose flows are left alone, and shown.
const OBSERVED: u16 = 9043;

/// How long the agent waits for an answer, and for its next turn.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

struct Host {
    sandbox: Sandbox,
    database: TcpListener,
    folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Self {
        let sandbox = Sandbox::new().unwrap();
        let database = sandbox.server(|| TcpListener::bind(("127.0.0.1", PORT)));
        Self {
            database: database.unwrap().unwrap(),
            sandbox,
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn docker(&self) -> Docker {
        Docker::start(&self.folder.path().join("docker.sock"))
    }

    fn cri(&self) -> Cri {
        Cri::start(&self.folder.path().join("cri.sock"))
    }

    /// A policy whose agent asks these sockets only.
    fn policy(&self, conditions: &str) -> String {
        let at = |name: &str| self.folder.path().join(name);
        let rest = format!("{}\n{conditions}", to(&[PORT]));
        format!(
            "[containers]\ndocker = [{:?}]\ncri = [{:?}]\n{}",
            at("docker.sock"),
            at("cri.sock"),
            rule("deny", &rest)
        )
    }

    fn agent(&self, conditions: &str) -> Agent<'_> {
        let (netns, cgroup) = (Some(&self.sandbox.netns), &self.sandbox.cgroup);
        let policy = self.policy(conditions);
        Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap()
    }

    fn denied(&self, container: &Container<'_>) -> bool {
        container.is_denied(&self.database)
    }
}

fn asked(agent: &Agent<'_>, speaks: &str, result: &str) -> f64 {
    let name = format!(
        "underpass_container_runtimes_asked_total{{result=\"{result}\",speaks=\"{speaks}\"}}"
    );
    agent.metric(&name).unwrap()
}

#[test]
fn a_rule_holds_for_the_container_of_that_name_and_for_no_other_in_the_same_network() {
    let host = Host::new();
    let docker = host.docker();
    let (billing, shop) = (Container::new(&host.sandbox), Container::new(&host.sandbox));
    let told = [
        billing.named("billing-app-1", &[]),
        shop.named("shop-app-1", &[]),
    ];
    docker.runtime.run(&told);
    let agent = host.agent("container = [\"billing-*\", \"other\"]");
    // From the first moment on: they ran before it.
    assert!(host.denied(&billing));
    assert!(!host.denied(&shop));
    eventually("it is said who was refused", || {
        let denied: Value = serde_json::from_str(&agent.get("/denied").unwrap()).unwrap();
        denied[0]["container"] == "billing-app-1"
    });
    assert_eq!(agent.metric("underpass_containers").unwrap(), 2.0);
    // A name that another container has given to it is not its own.
    let policy = host.policy("container = [\"alias\", \"other/alias\", \"shop-app-1\"]");
    agent.write_policy(&policy).unwrap();
    eventually("the next rule holds", || host.denied(&shop));
    assert!(!host.denied(&billing));
}

#[test]
fn containers_come_and_go() {
    let host = Host::new();
    let docker = host.docker();
    let agent = host.agent("container = [\"billing-*\"]");
    let mut first = Container::new(&host.sandbox);
    let second = Container::new(&host.sandbox);
    assert!(!host.denied(&first));
    eventually("it listens to the daemon", || docker.is_heard());
    docker.runtime.run(&[first.named("billing-1", &[])]);
    docker.tell();
    eventually("the first is known", || host.denied(&first));
    assert!(!host.denied(&second));
    // Renamed, and the name is another's now. Nobody tells: it looks by itself.
    let told = [first.named("old", &[]), second.named("billing-1", &[])];
    docker.runtime.run(&told);
    eventually("the second is known", || host.denied(&second));
    eventually("the first is another", || !host.denied(&first));
    docker.runtime.run(&[first.named("billing-1", &[])]);
    eventually("and again", || host.denied(&first));
    eventually("the second is gone for its runtime", || {
        !host.denied(&second)
    });
    // The same container in a new cgroup, of which the runtime has nothing to tell.
    first.restart();
    docker.runtime.run(&[first.named("billing-1", &[])]);
    eventually("the new cgroup is found", || host.denied(&first));
    drop(first);
    docker.runtime.run(&[]);
    eventually("nothing is known", || {
        agent.metric("underpass_containers").unwrap() == 0.0
    });
    assert_eq!(asked(&agent, "docker", "garbage"), 0.0);
    assert!(asked(&agent, "docker", "answered") >= 5.0);
    assert!(asked(&agent, "cri", "absent") >= 1.0);
}

#[test]
fn labels_are_the_containers_and_its_pods() {
    let host = Host::new();
    let cri = host.cri();
    let containers: Vec<_> = (0..3).map(|_| Container::new(&host.sandbox)).collect();
    let namespace = |ns| [("io.kubernetes.pod.namespace", ns), ("app", "billing")];
    cri.runtime.run(&[
        containers[0]
            .named("server", &[("tier", "db")])
            .in_pod(&namespace("shop")),
        containers[1]
            .named("server", &[])
            .in_pod(&namespace("other")),
        containers[2]
            .named("sidecar", &[])
            .in_pod(&namespace("shop")),
    ]);
    let agent = host.agent("labels = { \"io.kubernetes.pod.namespace\" = \"sh*\" }");
    let denied = || {
        containers
            .iter()
            .map(|c| host.denied(c))
            .collect::<Vec<_>>()
    };
    assert_eq!(denied(), [true, false, true]);
    assert!(asked(&agent, "cri", "answered") >= 1.0);
    for (conditions, expected) in [
        (
            "labels = { app = \"billing\", tier = \"*\" }",
            [true, false, false],
        ),
        (
            "container = [\"server\"]\nlabels = { app = \"billing\" }",
            [true, true, false],
        ),
        (
            "container = [\"sidecar\"]\nlabels = { tier = \"db\" }",
            [false; 3],
        ),
    ] {
        agent.write_policy(&host.policy(conditions)).unwrap();
        eventually(conditions, || denied() == expected);
    }
    cri.runtime
        .run(&[containers[1].named("sidecar", &[("tier", "db")])]);
    eventually("the third rule holds for one", || {
        denied() == [false, true, false]
    });
}

#[test]
fn a_runtime_that_does_not_answer_changes_nothing_and_holds_up_nobody() {
    let host = Host::new();
    let (docker, cri) = (host.docker(), host.cri());
    let (first, second) = (Container::new(&host.sandbox), Container::new(&host.sandbox));
    let agent = host.agent("container = [\"billing-*\"]");
    let moods = [
        (Mood::Garbage, "garbage", "garbage"),
        (Mood::Endless, "too_long", "too_long"),
        (Mood::Cut, "cut", "garbage"),
        (Mood::Refusing, "refused", "refused"),
        (Mood::Hanging, "late", "late"),
    ];
    let memory = resident_kib(agent.pid());
    for (mood, from_docker, from_cri) in moods {
        for (sick, speaks, how) in [
            (&docker.runtime, "docker", from_docker),
            (&cri.runtime, "cri", from_cri),
        ] {
            let well = match speaks {
                "docker" => &cri.runtime,
                _ => &docker.runtime,
            };
            sick.run(&[first.named("billing-1", &[])]);
            well.run(&[]);
            eventually("the first is known", || {
                host.denied(&first) && !host.denied(&second)
            });
            sick.be(mood);
            let before = asked(&agent, speaks, how);
            let began = Instant::now();
            // The other one is heard meanwhile.
            well.run(&[second.named("billing-2", &[])]);
            eventually("the second is known", || host.denied(&second));
            assert!(began.elapsed() < ASK_TIMEOUT, "{mood:?}");
            eventually("it was asked", || asked(&agent, speaks, how) > before);
            assert!(host.denied(&first), "{mood:?} of {speaks}");
            // What it would say now is not what it has said.
            sick.run(&[]);
            sick.be(Mood::Well);
            eventually("it is heard again", || !host.denied(&first));
        }
    }
    let grown = resident_kib(agent.pid()).saturating_sub(memory);
    // An answer that is read is 16 MiB at most, of each.
    assert!(grown < 64 * 1024, "{grown} KiB more than before");
}

fn resident_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let peak = status
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))
        .unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_daemon_that_dies_leaves_what_it_said_until_the_next_one_speaks() {
    let host = Host::new();
    let docker = host.docker();
    let (first, second) = (Container::new(&host.sandbox), Container::new(&host.sandbox));
    let mut agent = host.agent("container = [\"billing-*\"]");
    docker.runtime.run(&[first.named("billing-1", &[])]);
    eventually("the first is known", || host.denied(&first));
    drop(docker);
    eventually("nobody answers", || asked(&agent, "docker", "absent") > 1.0);
    assert!(host.denied(&first));
    // Of an agent that has heard nothing the rule holds for nobody.
    agent.kill().unwrap();
    agent.restart().unwrap();
    assert!(!host.denied(&first));
    agent.wait_for_log("no container runtime there").unwrap();
    let docker = host.docker();
    docker.runtime.run(&[second.named("billing-1", &[])]);
    eventually("the second is known", || host.denied(&second));
    assert!(!host.denied(&first));
}

#[test]
fn no_rule_holds_in_a_cgroup_that_is_not_named_after_the_container() {
    let host = Host::new();
    let docker = host.docker();
    let (own, shared) = (
        Container::new(&host.sandbox),
        Container::shared(&host.sandbox),
    );
    let told = [own.named("a", &[]), shared.named("b", &[])];
    docker.runtime.run(&told);
    let agent = host.agent("container = [\"*\"]");
    assert!(host.denied(&own));
    assert!(!host.denied(&shared));
    let name = "underpass_containers_unheld{reason=\"shared_cgroup\"}";
    assert_eq!(agent.metric(name).unwrap(), 1.0);
    // An id that could be part of any name is none.
    let mut short = shared.named("b", &[]);
    short.id = "container".into();
    docker.runtime.run(&[short]);
    eventually("nothing is known", || {
        agent.metric("underpass_containers").unwrap() == 0.0
    });
    assert!(!host.denied(&own) && !host.denied(&shared));
}

#[test]
fn a_container_that_a_rule_names_is_served_from_its_first_connection_on() {
    let host = Host::new();
    let docker = host.docker();
    let spaces = [Netns::new().unwrap(), Netns::new().unwrap()];
    let [named, other] = spaces.each_ref().map(|space| {
        let bind = || TcpListener::bind(("127.0.0.1", PORT)).unwrap();
        let listener = run_in(Some(space), None, bind).unwrap();
        (Container::within(&host.sandbox, space), listener)
    });
    let policy = host.policy("container = [\"billing-*\"]");
    let policy = policy.replace("\"deny\"", "\"enrich\"");
    let (netns, cgroup) = (Some(&host.sandbox.netns), &host.sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    let told = [named.0.named("billing-1", &[]), other.0.named("shop", &[])];
    docker.runtime.run(&told);
    eventually("somebody is served", || {
        agent.metric("underpass_namespaces").unwrap() > 0.0
    });
    for (container, listener) in [&named, &other] {
        assert!(!container.is_denied(listener));
    }
    for (outcome, count) in [("intercepted", 1.0), ("failed_open", 0.0)] {
        let name = format!("underpass_connections_total{{outcome=\"{outcome}\",rule=\"r\"}}");
        assert_eq!(agent.metric(&name).unwrap(), count, "{outcome}");
    }
    // Nobody else was intruded on.
    assert_eq!(agent.metric("underpass_namespaces").unwrap(), 1.0);
}

#[test]
fn check_and_doctor_say_what_nobody_can_tell() {
    let host = Host::new();
    let file = host.folder.path().join("policy.toml");
    fs::write(
        &file,
        host.policy("fail = \"closed\"\ncontainer = [\"billing-*\"]\nlabels = { app = \"x\" }"),
    )
    .unwrap();
    let check = |args: &[&str]| -> Value {
        let file = file.to_str().unwrap();
        let mut command = Command::new(BINARY);
        let output = command.args(["check", file, "--json"]).args(args).output();
        serde_json::from_slice(&output.unwrap().stdout).unwrap()
    };
    let warning = check(&[])["warnings"][0].as_str().unwrap().to_owned();
    assert!(warning.contains("holds for nobody"), "{warning}");
    assert!(
        warning.contains("docker.sock: nobody listens there"),
        "{warning}"
    );
    let rule_for = |args: &[&str]| {
        let to = ["--to", "127.0.0.1:9042"];
        let explained = check(&[&to, args].concat());
        explained["match"]["rule"].as_str().unwrap().to_owned()
    };
    assert_eq!(rule_for(&[]), "default");
    assert_eq!(
        rule_for(&["--container", "billing-1", "--label", "app=x"]),
        "r"
    );
    assert_eq!(rule_for(&["--container", "billing-1"]), "default");
    assert_eq!(
        rule_for(&["--container", "shop", "--label", "app=x"]),
        "default"
    );
    // Those that run here.
    let docker = host.docker();
    let container = Container::new(&host.sandbox);
    docker
        .runtime
        .run(&[container.named("billing-1", &[("app", "x")])]);
    assert_eq!(check(&[])["warnings"].as_array().unwrap().len(), 0);
    let cgroup = host.sandbox.cgroup.rule_path();
    let cgroup = cgroup.join(format!("docker-{}.scope/init.scope", container.id));
    assert_eq!(rule_for(&["--cgroup", cgroup.to_str().unwrap()]), "r");
    assert_eq!(rule_for(&["--cgroup", "/"]), "default");

    let doctor = || {
        let mut command = Command::new(BINARY);
        let output = command
            .args(["doctor", "--json", "--config"])
            .arg(&file)
            .output();
        let findings: Value = serde_json::from_slice(&output.unwrap().stdout).unwrap();
        let of = |speaks: &str| {
            let all = findings.as_array().unwrap().iter();
            let mut its = all.filter(|f| f["what"].as_str().unwrap().starts_with(speaks));
            let found = its.next().unwrap();
            [&found["state"], &found["detail"]].map(|v| v.as_str().unwrap().to_owned())
        };
        [of("docker "), of("cri ")]
    };
    let [of_docker, of_cri] = doctor();
    assert_eq!(of_docker, ["ok", "1 containers"]);
    assert_eq!(of_cri, ["notice", "nobody listens there"]);
    assert!(ASK_TIMEOUT < PATIENCE);
}

#[test]
fn records_name_the_container_and_its_pod() {
    let host = Host::new();
    let cri = host.cri();
    let web = Container::new(&host.sandbox);
    let pod = [
        ("io.kubernetes.pod.namespace", "shop"),
        ("io.kubernetes.pod.name", "web-1"),
        ("io.kubernetes.pod.uid", "u1"),
        ("app", "web"),
        ("team", "db"),
    ];
    let files = ["audit.log", "slow.log"].map(|name| host.folder.path().join(name));
    let [audit, slow] = &files;
    let pipeline = format!(
        "{}\nfail = \"open\"\npath = \"inline\"\npipeline = [{{ transform = \"audit\", file = {audit:?} }}, \
         {{ transform = \"slowlog\", over = \"0ms\", file = {slow:?} }}, {{ transform = \"stats\" }}]",
        to(&[PORT])
    );
    let policy = format!(
        "[containers]\ndocker = []\ncri = [{:?}]\nrecord_labels = [\"app\"]\n{}",
        host.folder.path().join("cri.sock"),
        rule("enrich", &pipeline) + &rule("observe", &to(&[OBSERVED])).replace("\"r\"", "\"seen\"")
    );
    let seen = host
        .sandbox
        .server(|| TcpListener::bind(("127.0.0.1", OBSERVED)));
    let seen = seen.unwrap().unwrap();
    let (netns, cgroup) = (Some(&host.sandbox.netns), &host.sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "", &policy).unwrap();
    let mut client = web.dial(host.database.local_addr().unwrap()).unwrap();
    let (mut server, _) = accept(&host.database);
    passes(
        &mut client,
        &mut server,
        &startup(4, &[("CQL_VERSION", "3.0.0")]),
    );
    passes(&mut server, &mut client, &ready(4));
    // No rule names a container: it is asked for records, and tells of one that dialled before.
    cri.runtime.run(&[web.named("main", &[]).in_pod(&pod)]);
    eventually("it is known", || {
        agent.metric("underpass_containers").unwrap() == 1.0
    });
    let flows: Value = serde_json::from_str(&agent.get("/flows").unwrap()).unwrap();
    assert_eq!(
        [&flows[0]["pod"], &flows[0]["namespace"]],
        ["web-1", "shop"]
    );
    // Of what is left alone, too.
    let untouched = web.dial(seen.local_addr().unwrap()).unwrap();
    let flows: Value = serde_json::from_str(&agent.get("/flows").unwrap()).unwrap();
    let flows = flows.as_array().unwrap();
    let observed = flows.iter().find(|flow| flow["rule"] == "seen").unwrap();
    assert_eq!(
        [
            &observed["container"],
            &observed["pod"],
            &observed["labels"]["app"]
        ],
        ["main", "web-1", "web"],
        "{observed}"
    );
    drop(untouched);
    let mut tail = Command::new(BINARY);
    let tail = tail
        .args(["tail", "--json", "--count", "1", "--admin"])
        .arg(agent.admin_socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it watches", || {
        agent.metric("underpass_tail_watchers").unwrap() == 1.0
    });
    passes(
        &mut client,
        &mut server,
        &query(4, 1, "SELECT v FROM shop.orders"),
    );
    passes(&mut server, &mut client, &void(4, 1));
    let told = tail.wait_with_output().unwrap().stdout;
    let told = String::from_utf8(told).unwrap();
    let told: Value = serde_json::from_str(told.lines().nth(1).unwrap()).unwrap();
    assert_eq!(
        [
            &told["container"],
            &told["pod"],
            &told["namespace"],
            &told["labels"]["app"]
        ],
        ["main", "web-1", "shop", "web"],
        "{told}"
    );
    for file in &files {
        let mut lines = Vec::new();
        eventually("its record is written", || {
            let text = fs::read_to_string(file).unwrap_or_default();
            let whole = text
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            lines = whole
                .map(|line| serde_json::from_str::<Value>(line).unwrap())
                .filter(|line| line["kind"] == "select")
                .collect();
            !lines.is_empty()
        });
        let line = &lines[0];
        assert_eq!(
            [&line["container"], &line["pod"], &line["namespace"]],
            ["main", "web-1", "shop"],
            "{line}"
        );
        assert_eq!(line["labels"], serde_json::json!({"app": "web"}), "{line}");
        assert_eq!(line["owner"], Value::Null);
    }
    let of_pod = "underpass_container_seconds_count{container=\"main\",label_app=\"web\",namespace=\"shop\",owner=\"\",pod=\"web-1\",rule=\"r\"} 1";
    eventually("it is counted", || {
        let metrics = agent.get("/metrics").unwrap();
        metrics.lines().any(|line| line == of_pod)
    });
}
