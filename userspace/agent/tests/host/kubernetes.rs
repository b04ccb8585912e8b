//! An agent at a real API server of Kubernetes: the chart is accepted, bad policies are refused, good ones followed, and what the chart's
//! service account may do is enough. Containers are those of a runtime (CRI) that a test plays; no kubelet runs.

mod busy;
mod cluster;
mod page;
pub mod played;
mod scale;
mod stale;

use std::{
    fs::{self, Permissions},
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use sandbox::{Agent, Sandbox, run_in, skip::skip};
use serde_json::Value;

use self::cluster::{Cluster, SERVER};
use super::containers::{
    cri::Cri,
    ship::{Container, passes},
};
use crate::common::{
    BINARY, accept, eventually,
    frames::{ready, startup},
    operating::blocks_of,
};

const PORT: u16 = 9042;

/// Several times what it takes on a machine with nothing else to do.
const COUNTED_WITHIN: Duration = Duration::from_secs(60);

const CHART: &str = "../../deploy/helm/underpass";

/// Objects of two teams, one of which has a Deployment whose pod is on this node.
const TEAMS: &str = r#"
{"apiVersion": "v1", "kind": "List", "items": [
  {"apiVersion": "v1", "kind": "Pod",
   "metadata": {"name": "web-5d9c-x", "namespace": "shop", "labels": {"app": "web", "pod-template-hash": "5d9c"},
     "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d9c", "uid": "0c0ffee0-0000-4000-8000-000000000001", "controller": true}]},
   "spec": {"nodeName": "node1", "serviceAccountName": "web", "containers": [{"name": "main", "image": "web"}]}},
  {"apiVersion": "v1", "kind": "Pod",
   "metadata": {"name": "ledger-0", "namespace": "bank", "labels": {"app": "web"}},
   "spec": {"nodeName": "node1", "serviceAccountName": "ledger", "containers": [{"name": "main", "image": "ledger"}]}}
]}"#;

fn policy(kind: &str, at: &str, rule: &str) -> String {
    let (namespace, name) = at.split_once('/').unwrap_or(("", at));
    let namespace = match namespace {
        "" => String::new(),
        namespace => format!("\"namespace\": \"{namespace}\", "),
    };
    format!(
        "{{\"apiVersion\": \"underpass.dev/v1alpha1\", \"kind\": \"{kind}\", \"metadata\": {{{namespace}\"name\": \"{name}\"}}, \
         \"spec\": {{\"rules\": [{rule}]}}}}"
    )
}

pub fn tenants(at: &str, rule: &str) -> String {
    policy("UnderpassPolicy", at, rule)
}

pub fn clusters(name: &str, rule: &str) -> String {
    policy("ClusterUnderpassPolicy", name, rule)
}

/// Returns what the agent of the node says.
fn state(cluster: &Cluster<'_>) -> Value {
    let said = cluster.kubectl(
        &[
            "get",
            "underpassnode",
            "node1",
            "-n",
            "underpass",
            "-o",
            "json",
        ],
        None,
    );
    let object: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
    object["state"].clone()
}

/// Writes the token of a service account, by which a program is known.
fn token(cluster: &Cluster<'_>, account: &str, file: &Path) {
    let token = cluster.does(&["create", "token", account, "-n", "underpass"]);
    fs::write(file, token).unwrap();
    fs::set_permissions(file, Permissions::from_mode(0o600)).unwrap();
}

/// The chart's counter, which ends with this.
struct Counter(Child);

impl Counter {
    /// Starts with the token in `counter.token`.
    fn start(host: &Sandbox, folder: &Path, ca: &Path, daemon_set: &str) -> Self {
        let settings = format!(
            "[policy]\nsource = \"kubernetes\"\nserver = \"{SERVER}\"\ntls = {{ ca = {ca:?} }}\ntoken_file = {:?}\n",
            folder.join("counter.token"),
        );
        let file = folder.join("counter.toml");
        fs::write(&file, settings).unwrap();
        let log = fs::File::create(folder.join("counter.log")).unwrap();
        let mut command = Command::new(BINARY);
        command
            .args(["policy", "count", "--daemon-set", daemon_set, "--config"])
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let spawned = run_in(Some(&host.netns), None, move || command.spawn());
        Self(spawned.unwrap().unwrap())
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the policy `web` of the namespace `shop`.
fn web_policy(cluster: &Cluster<'_>) -> Value {
    let said = cluster.kubectl(
        &["get", "underpasspolicy", "web", "-n", "shop", "-o", "json"],
        None,
    );
    serde_json::from_slice(&said.stdout).unwrap_or_default()
}

/// Waits as long as it takes to count: agents answer within seconds, and what is not complete is counted again only later.
fn in_time(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + COUNTED_WITHIN;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Waits until the policy's status has these nodes, and returns its conditions: `InForce` and `Refused`.
fn counted(cluster: &Cluster<'_>, nodes: &str) -> [Value; 2] {
    let mut conditions = Value::Null;
    in_time(nodes, || {
        let policy = web_policy(cluster);
        let status = &policy["status"];
        conditions = status["conditions"].clone();
        status["inForce"] == nodes
            && status["observedGeneration"] == policy["metadata"]["generation"]
    });
    ["InForce", "Refused"].map(|kind| {
        let mut conditions = conditions.as_array().unwrap().iter();
        conditions.find(|one| one["type"] == kind).unwrap().clone()
    })
}

fn start<'h>(host: &'h Sandbox, folder: &Path, ca: &Path) -> Agent<'h> {
    let at = |name: &str| folder.join(name);
    let settings = format!(
        "[containers]\ndocker = []\ncri = [{:?}]\n[host]\nname = \"node1\"\n[policy]\nsource = \"kubernetes\"\nserver = \"{SERVER}\"\n\
         tls = {{ ca = {ca:?} }}\ntoken_file = {:?}\ncache = {:?}\n",
        at("cri.sock"),
        at("token"),
        at("kept/policy.json"),
    );
    Agent::start(
        Path::new(BINARY),
        Some(&host.netns),
        &host.cgroup,
        "",
        &settings,
    )
    .unwrap()
}

#[test]
fn policies_are_objects_of_kubernetes() {
    let host = Sandbox::new().unwrap();
    let Some(mut cluster) = Cluster::start(&host.netns) else {
        skip(
            "policies_are_objects_of_kubernetes",
            "UNDERPASS_KUBERNETES names no API server: `cargo xtask kubernetes` builds one",
        );
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let database = host.server(|| TcpListener::bind(("127.0.0.1", PORT)));
    let database = database.unwrap().unwrap();

    // The chart as it is, into a namespace of its own; the API server looks at each field.
    for namespace in ["underpass", "shop", "bank"] {
        cluster.does(&["create", "namespace", namespace]);
    }
    let operators = cluster.applies_operators();
    assert_eq!(operators, 2, "the kinds of Prometheus Operator");
    let everything = ["dashboards", "metrics.podMonitor", "metrics.rules"];
    let everything = everything
        .map(|part| format!("{part}.enabled=true"))
        .join(",");
    let chart = cluster.chart(Path::new(CHART), &["--set", &everything]);
    let accepted = cluster.applies(&chart);
    for kind in [
        "daemonset.apps/u-underpass",
        "clusterrole.rbac",
        "role.rbac",
        "configmap/u-underpass ",
        "podmonitor.monitoring.coreos.com/u-underpass",
        "prometheusrule.monitoring.coreos.com/u-underpass",
    ] {
        assert!(accepted.contains(kind), "{kind}: {accepted}");
    }
    cluster.does(&[
        "wait",
        "--for=condition=Established",
        "crd",
        "--all",
        "--timeout=60s",
    ]);
    cluster.applies(TEAMS);

    // Policies as the page has them.
    for block in blocks_of("kubernetes.md")
        .iter()
        .filter(|block| block.kind == "yaml")
    {
        let said = cluster.kubectl(
            &["apply", "--server-side", "--dry-run=server"],
            Some(&block.text),
        );
        assert!(said.status.success(), "{said:?}");
    }

    // A bad policy is refused before any node has seen it.
    for (policy, said) in [
        (
            tenants("shop/a", r#"{"name": "a", "action": "deny"}"#),
            "in a rule that denies",
        ),
        (
            tenants("shop/a", r#"{"name": "a", "action": "refuse"}"#),
            "Unsupported value",
        ),
        (
            tenants("shop/a", r#"{"name": "a b", "action": "bypass"}"#),
            "should match",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "colour": 1}"#,
            ),
            "unknown field",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "from": ["10.0.0.0/8"]}"#,
            ),
            "unknown field",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "namespace": ["bank"]}"#,
            ),
            "unknown field",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "enrich", "fail": "open", "pipeline": [{"transform": "audit", "file": "/etc/shadow"}]}"#,
            ),
            "unknown field",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "enrich", "fail": "open", "pipeline": [{"transform": "audit"}]}"#,
            ),
            "Unsupported value",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "pipeline": [{"transform": "stats"}]}"#,
            ),
            "needs action `enrich`",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "to": [":9042", "nonsense"]}"#,
            ),
            "spec.rules[0].to[1] in body should match",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass", "to": ["cluster:9042"]}"#,
            ),
            "spec.rules[0].to[0]",
        ),
        (
            tenants("shop/a", r#"{"name": "default", "action": "bypass"}"#),
            "are the agent's",
        ),
        (
            tenants(
                "shop/a",
                r#"{"name": "a", "action": "bypass"}, {"name": "a", "action": "bypass"}"#,
            ),
            "Duplicate value",
        ),
        (
            clusters(
                "a",
                r#"{"name": "a", "action": "enrich", "pipeline": [{"transform": "guard", "refuse": ["ddl"]}]}"#,
            ),
            "in a rule with the steps",
        ),
    ] {
        let refused = cluster.refuses(&policy);
        assert!(refused.contains(said), "{policy}: {refused}");
    }

    // An agent of this node, by the token of the chart's service account.
    let cri = Cri::start(&folder.path().join("cri.sock"));
    let (web, ledger) = (Container::new(&host), Container::new(&host));
    let uid = |namespace: &str, pod: &str| {
        cluster.does(&[
            "get",
            "pod",
            pod,
            "-n",
            namespace,
            "-o",
            "jsonpath={.metadata.uid}",
        ])
    };
    let (of_web, of_ledger) = (uid("shop", "web-5d9c-x"), uid("bank", "ledger-0"));
    let labels = |namespace, name, uid| {
        [
            ("io.kubernetes.pod.namespace", namespace),
            ("io.kubernetes.pod.name", name),
            ("io.kubernetes.pod.uid", uid),
        ]
    };
    cri.runtime.run(&[
        web.named("main", &[])
            .in_pod(&labels("shop", "web-5d9c-x", &of_web)),
        ledger
            .named("main", &[])
            .in_pod(&labels("bank", "ledger-0", &of_ledger)),
    ]);
    token(&cluster, "u-underpass", &folder.path().join("token"));
    token(
        &cluster,
        "u-underpass-counter",
        &folder.path().join("counter.token"),
    );
    // Two nodes should have an agent, as no controller says here.
    let wanted = r#"{"status": {"currentNumberScheduled": 2, "desiredNumberScheduled": 2, "numberMisscheduled": 0, "numberReady": 1}}"#;
    cluster.does(&[
        "patch",
        "daemonset",
        "u-underpass",
        "-n",
        "underpass",
        "--subresource=status",
        "--type=merge",
        "-p",
        wanted,
    ]);
    let _counter = Counter::start(&host, folder.path(), &cluster.path("ca.crt"), "u-underpass");
    let agent = start(&host, folder.path(), &cluster.path("ca.crt"));
    let metric = |name: &str| agent.metric(name).unwrap();
    eventually("it follows", || {
        metric("underpass_policy_source_in_step") == 1.0
    });
    let denied = || (web.is_denied(&database), ledger.is_denied(&database));
    assert_eq!(denied(), (false, false));

    // Records name pod and owner.
    let log = folder.path().join("audit.log");
    cluster.applies(&clusters(
        "audit",
        &format!(
            r#"{{"name": "all", "action": "enrich", "fail": "open", "path": "inline", "to": [":9042"], "pipeline": [{{"transform": "audit", "file": {log:?}}}]}}"#
        ),
    ));
    let audits = || state(&cluster)["inForce"]["clusterunderpasspolicies/audit"] == 1;
    eventually("it audits", audits);
    let mut client = web.dial(database.local_addr().unwrap()).unwrap();
    let (mut server, _) = accept(&database);
    passes(
        &mut client,
        &mut server,
        &startup(4, &[("CQL_VERSION", "3.0.0")]),
    );
    passes(&mut server, &mut client, &ready(4));
    eventually("it is written", || {
        let lines = fs::read_to_string(&log).unwrap_or_default();
        let line: Value =
            serde_json::from_str(lines.lines().next().unwrap_or_default()).unwrap_or_default();
        [&line["pod"], &line["namespace"], &line["owner"]]
            == ["web-5d9c-x", "shop", "deployment/web"]
    });
    drop((client, server));
    cluster.does(&["delete", "clusterunderpasspolicy", "audit"]);
    eventually("it is gone", || !audits());

    // A namespace's rule without a condition holds for its own pods, and for nobody else.
    let deny = r#"{"name": "all", "action": "deny", "fail": "closed", "to": [":9042"]}"#;
    cluster.applies(&tenants("shop/web", deny));
    eventually("the rule holds", || denied() == (true, false));
    eventually("the node says so", || {
        state(&cluster)["inForce"]["underpasspolicies/shop/web"] == 1
    });
    let [in_force, refused] = counted(&cluster, "1/2");
    assert_eq!(
        [&in_force["status"], &in_force["reason"], &refused["status"]],
        ["False", "OnSomeNodes", "False"]
    );
    assert!(
        in_force["message"]
            .as_str()
            .is_some_and(|said| said.contains("1 have not answered")),
        "{in_force}"
    );
    cluster.applies(
        r#"{"apiVersion": "underpass.dev/v1alpha1", "kind": "UnderpassNode", "metadata": {"name": "node2", "namespace": "underpass"},
            "state": {"agent": "0", "policies": 1, "refusals": 0, "inForce": {"underpasspolicies/shop/web": 1}, "refused": {}}}"#,
    );
    let [in_force, _] = counted(&cluster, "2/2");
    assert_eq!(
        [&in_force["status"], &in_force["reason"]],
        ["True", "OnEveryNode"]
    );
    // A status that says what is so is not written again.
    let version = || web_policy(&cluster)["metadata"]["resourceVersion"].clone();
    let before = version();
    thread::sleep(Duration::from_secs(6));
    assert_eq!(version(), before);
    // Neither do agents write it, nor does the counter write anything else.
    let may = |account: &str, asked: &str| {
        let account = format!("--as=system:serviceaccount:underpass:{account}");
        let mut args = vec!["auth", "can-i", "-n", "shop", &account];
        args.extend(asked.split(' '));
        cluster.kubectl(&args, None).status.success()
    };
    let status = "patch underpasspolicies.underpass.dev --subresource=status";
    assert!(may("u-underpass-counter", status) && !may("u-underpass", status));
    for asked in [
        "patch underpasspolicies.underpass.dev",
        "create underpasspolicies.underpass.dev",
        "list pods",
        "get secrets",
    ] {
        assert!(!may("u-underpass-counter", asked), "{asked}");
    }
    for (condition, holds) in [
        (r#""owner": ["deploy/web"]"#, true),
        (r#""owner": ["sts/web"]"#, false),
        (r#""service_account": ["web"]"#, true),
        (r#""labels": {"app": "we*"}"#, true),
        (r#""service_account": ["ledger"]"#, false),
    ] {
        let rule = deny.replace(r#""to""#, &format!("{condition}, \"to\""));
        cluster.applies(&tenants("shop/web", &rule));
        eventually(condition, || denied() == (holds, false));
    }
    // A label that changes, of which a runtime does not know.
    cluster.applies(&tenants(
        "shop/web",
        &deny.replace(r#""to""#, r#""labels": {"app": "new"}, "to""#),
    ));
    cluster.does(&[
        "label",
        "pod",
        "web-5d9c-x",
        "-n",
        "shop",
        "--overwrite",
        "app=new",
    ]);
    eventually("the label is known", || denied() == (true, false));

    // What only an agent finds: that policy stays as it was, and another team's change is put into force all the same.
    cluster.applies(&tenants(
        "shop/web",
        r#"{"name": "all", "action": "bypass", "to": ["10.0.0.1/8"]}"#,
    ));
    eventually("it is refused", || {
        let state = state(&cluster);
        let why = state["refused"]["underpasspolicies/shop/web"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        why.starts_with("kubernetes:underpasspolicies/shop/web:1:")
            && why.contains("rule.to: expected")
    });
    assert_eq!(metric("underpass_policy_source_refused"), 1.0);
    let [_, refused] = counted(&cluster, "0/2");
    assert_eq!(refused["status"], "True");
    let why = refused["message"].as_str().unwrap();
    assert!(
        why.starts_with("node1: kubernetes:underpasspolicies/shop/web:1:"),
        "{why}"
    );
    let table = cluster.does(&["get", "underpasspolicies", "-n", "shop"]);
    assert!(
        table.contains("IN FORCE") && table.contains("0/2") && table.contains("True"),
        "{table}"
    );
    // So is one that is nested deeper than an agent reads.
    let deep = "[".repeat(150) + &"]".repeat(150);
    let deep = format!(r#"{{"name": "all", "action": "bypass", "hosts": {{"name": {deep}}}}}"#);
    cluster.applies(&tenants("shop/deep", &deep));
    eventually("it is refused", || {
        let state = state(&cluster);
        let why = &state["refused"]["underpasspolicies/shop/deep"]["message"];
        why.as_str()
            .is_some_and(|why| why.contains("recursion limit"))
    });
    cluster.applies(&tenants("bank/ledger", deny));
    eventually("the other holds", || denied() == (true, true));
    eventually("the node says so", || {
        state(&cluster)["inForce"]["underpasspolicies/bank/ledger"] == 1
    });

    // The cluster's own rules come before those of namespaces.
    cluster.applies(&clusters(
        "free",
        r#"{"name": "all", "action": "bypass", "to": [":9042"], "namespace": ["ba*"]}"#,
    ));
    eventually("it comes first", || denied() == (true, false));
    cluster.does(&["delete", "clusterunderpasspolicy", "free"]);
    eventually("it is gone", || denied() == (true, true));

    // The API server is away: what is in force stays, also for an agent that starts.
    cluster.does(&["delete", "underpasspolicy", "web", "-n", "shop"]);
    eventually("it is gone", || denied() == (false, true));
    eventually("it is kept", || {
        fs::read_to_string(folder.path().join("kept/policy.json"))
            .is_ok_and(|kept| !kept.contains("shop"))
    });
    cluster.end();
    eventually("it is away", || {
        metric("underpass_policy_source_in_step") == 0.0
    });
    assert_eq!(denied(), (false, true));
    drop(agent);
    let agent = start(&host, folder.path(), &cluster.path("ca.crt"));
    assert_eq!(denied(), (false, true));
    cluster.begin();
    cluster.applies(&tenants("shop/web", deny));
    eventually("it follows again", || denied() == (true, true));
    drop(agent);
}
