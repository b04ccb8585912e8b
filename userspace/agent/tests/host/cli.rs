//! Mistakes of a new user: wrong flags, missing files, missing root, a port in use.

use std::{
    net::TcpListener,
    process::{Command, Output},
};

const BINARY: &str = env!("CARGO_BIN_EXE_underpass");

fn underpass(args: &[&str]) -> Output {
    Command::new(BINARY).args(args).output().unwrap()
}

/// The one line that a failure says.
fn complaint(output: &Output) -> String {
    let said = String::from_utf8(output.stderr.clone()).unwrap();
    let lines: Vec<&str> = said
        .lines()
        .filter(|l| l.starts_with("underpass: "))
        .collect();
    assert_eq!(lines.len(), 1, "one line: {said}");
    lines[0].to_owned()
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn path(file: &tempfile::NamedTempFile) -> &str {
    file.path().to_str().unwrap()
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &["frobnicate"][..],
        &["check"],
        &["run", "--konfig", "x"],
        &[],
    ] {
        assert_eq!(underpass(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn check_says_ok_or_where_the_mistake_is() {
    let good = file("[[rule]]\nname = \"a\"\nto = [\":9042\"]\naction = \"enrich\"\n");
    let output = underpass(&["check", path(&good)]);
    assert!(output.status.success());
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("ok, 1 rules")
    );
    let bad = file("[[rule]]\nname = \"a\"\naction = \"enrich\"\nto = [\"nonsense\"]\n");
    let output = underpass(&["check", path(&bad)]);
    assert_eq!(output.status.code(), Some(1));
    let said = complaint(&output);
    assert!(
        said.contains(&format!("{}:4:7: rule.to: expected", path(&bad))),
        "{said}"
    );
    for (text, meant) in [
        (
            "[[rule]]\nname = \"a\"\naction = \"bypass\"\npipline = []\n",
            "pipeline",
        ),
        ("[agent]\nadmin_sockt = \"/a\"\n", "admin_socket"),
        ("[[rules]]\nname = \"a\"\n", "rule"),
    ] {
        let said = complaint(&underpass(&["check", path(&file(text))]));
        assert!(
            said.ends_with(&format!(": did you mean `{meant}`?")),
            "{said}"
        );
    }
    let output = underpass(&["check", "/nowhere.toml"]);
    assert!(complaint(&output).contains("cannot read /nowhere.toml"));
}

#[test]
fn check_explains_which_rule_a_connection_meets() {
    let policy = file(
        "[[rule]]\nname = \"spark\"\nto = [\":9042\"]\nprocess = [\"spark*\"]\naction = \"deny\"\nfail = \"closed\"\n\
         [[rule]]\nname = \"all\"\nto = [\"10.0.0.0/8:9042\"]\naction = \"enrich\"\n",
    );
    let explain = |rest: &[&str]| {
        let args = [&["check", path(&policy), "--to", "10.1.2.3:9042"], rest].concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    assert!(explain(&["--process", "spark-shell"]).starts_with("spark: deny"));
    let all = explain(&[]);
    assert!(all.starts_with("all: enrich, fail = open"), "{all}");
    assert!(
        all.contains("passed over: spark, whose `process` does not hold"),
        "{all}"
    );
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(json["match"]["rule"], "all");
    assert_eq!(json["match"]["passed_over"][0]["key"], "process");
}

#[test]
fn check_says_which_rules_are_there_at_a_time() {
    let policy = file(
        "[[rule]]\nname = \"nightly\"\nto = [\":9042\"]\naction = \"deny\"\nfail = \"closed\"\n\
         when = { days = \"mon-fri\", from = \"22:00\", to = \"06:00\", tz = \"Europe/Berlin\" }\n\
         [[rule]]\nname = \"all\"\nto = [\":9042\"]\naction = \"enrich\"\n",
    );
    let check = |at: &str, rest: &[&str]| {
        let args = [&["check", path(&policy), "--at", at], rest].concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    let (night, day) = ("2026-11-27T22:30:00+01:00", "2026-11-27T12:00:00+01:00");
    assert!(
        check(night, &[]).contains(
            "ok, 2 rules\n  rule nightly: open until 2026-11-28 06:00 +01:00 (mon-fri 22:00-06:00 Europe/Berlin)\n"
        ),
        "{}",
        check(night, &[])
    );
    assert!(check(day, &[]).contains("rule nightly: closed until 2026-11-27 22:00 +01:00"));
    let to = ["--to", "10.1.2.3:9042"];
    assert!(check(night, &to).starts_with("nightly: deny"));
    let met = check(day, &to);
    assert!(met.starts_with("all: enrich"), "{met}");
    assert!(
        met.contains("passed over: nightly, whose `when` does not hold"),
        "{met}"
    );
    let json: serde_json::Value = serde_json::from_str(&check(day, &["--json"])).unwrap();
    assert_eq!(json["windows"][0]["is_open"], false);
    assert_eq!(json["windows"][0]["until"], "2026-11-27T21:00:00Z");
    assert_eq!(json["rules"], 2);
}

#[test]
fn check_says_for_whom_a_guard_is_there() {
    let policy = file(
        "[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"enrich\"\nfail = \"closed\"\npipeline = [\n\
         { transform = \"guard\", refuse = [\"ddl\"], not_users = [\"admin\"] },\n\
         { transform = \"guard\", refuse = [\"no_limit\"], drivers = [\"cqlsh\"], mode = \"warn\" }]\n",
    );
    let tried = |statement: &str, who: &[&str]| {
        let args = [
            &[
                "check",
                "--file-only",
                path(&policy),
                "--statement",
                statement,
            ],
            who,
        ]
        .concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    let (drop, select) = ("DROP TABLE shop.t", "SELECT * FROM shop.t");
    let refused = "refused by rule r: DROP is not allowed";
    assert!(tried(drop, &[]).contains(refused));
    assert!(tried(drop, &["--user", "app"]).contains(refused));
    assert!(tried(drop, &["--user", "admin"]).contains("by rule r: passes"));
    let warned = "passes (warned of by guard (no_limit))";
    assert!(tried(select, &["--driver", "cqlsh"]).contains(warned));
    assert!(tried(select, &[]).contains(warned), "whoever says nothing");
    assert!(tried(select, &["--driver", "other"]).contains("by rule r: passes\n"));
}

#[test]
fn check_says_what_stands_behind_a_virtual_address() {
    let text = "[[rule]]\nname = \"v\"\nto = [\"10.9.0.10:9042\"]\naction = \"bypass\"\n\
                backends = [\"10.1.0.1:9042\", \"10.1.0.2:9042\"]\n";
    let policy = file(text);
    let explain = |rest: &[&str]| {
        let args = [&["check", path(&policy), "--to", "10.9.0.10:9042"], rest].concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    let said = explain(&[]);
    assert!(
        said.contains("behind it: 10.1.0.1:9042, 10.1.0.2:9042"),
        "{said}"
    );
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(json["match"]["backends"][1], "10.1.0.2:9042");
}

#[test]
fn check_says_what_the_session_decides() {
    let policy = |fail: &str| {
        file(&format!(
            "[[rule]]\nname = \"etl\"\nuser = [\"etl*\"]\nkeyspace = [\"shop\"]\naction = \"bypass\"\n\
             to = [\":9042\"]\nfail = \"{fail}\"\n\
             [[rule]]\nname = \"encrypted\"\ntls = true\naction = \"deny\"\nfail = \"open\"\nto = [\":9042\"]\n\
             [[rule]]\nname = \"all\"\nto = [\":9042\"]\naction = \"enrich\"\n"
        ))
    };
    let explain_by = |policy: &tempfile::NamedTempFile, rest: &[&str]| {
        let args = [&["check", path(policy), "--to", "10.1.2.3:9042"], rest].concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    let encrypted = explain_by(&policy("open"), &["--tls"]);
    assert!(encrypted.starts_with("encrypted: deny"), "{encrypted}");
    let policy = policy("closed");
    let explain = |rest: &[&str]| explain_by(&policy, rest);
    let open = explain(&[]);
    assert!(
        open.starts_with("decided after the handshake, fail = closed\n"),
        "{open}"
    );
    for line in [
        "candidate: etl: bypass, by `user`, `keyspace`",
        "candidate: encrypted: deny, by `tls`",
        "candidate: all: enrich, otherwise",
    ] {
        assert!(open.contains(line), "{open}");
    }
    let etl = explain(&["--user", "etl7", "--keyspace", "shop"]);
    assert!(etl.starts_with("etl: bypass, fail = closed\n"), "{etl}");
    let other = explain(&["--user", "web"]);
    assert!(other.starts_with("all: enrich, fail = closed"), "{other}");
    assert!(
        other.contains("passed over: etl, whose `user` does not hold"),
        "{other}"
    );
    assert!(other.contains("at connect() it meets etl"), "{other}");
    let encrypted = explain(&["--tls"]);
    assert!(
        encrypted.starts_with("etl: deny, fail = closed"),
        "its user cannot be known: {encrypted}"
    );
    assert!(
        open.contains("where its session cannot be known: etl: deny\n"),
        "{open}"
    );
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(json["match"]["action"], "undecided");
    assert_eq!(json["match"]["candidates"][0]["by"][1], "keyspace");
    let nonsense = [
        "check",
        path(&policy),
        "--to",
        "10.1.2.3:9042",
        "--tls",
        "--user",
        "a",
    ];
    assert_eq!(underpass(&nonsense).status.code(), Some(2));
}

#[test]
fn check_says_what_is_remembered() {
    let policy = file(
        "[[rule]]\nname = \"etl\"\nto = [\":9042\"]\nuid = [7]\naction = \"bypass\"\n\
         [[rule]]\nname = \"web\"\nto = [\":9042\"]\nuser = [\"web\"]\naction = \"bypass\"\n\
         remember = \"10m\"\n",
    );
    let explain = |rest: &[&str]| {
        let args = [&["check", path(&policy), "--to", "10.1.2.3:9042"], rest].concat();
        String::from_utf8(underpass(&args).stdout).unwrap()
    };
    let remembered = "remembered: for 600 s, later connections of a process that met web are";
    for session in [&[][..], &["--user", "web"]] {
        let said = explain(session);
        assert!(said.contains(remembered), "{said}");
    }
    for rest in [&["--user", "etl"][..], &["--uid", "7"]] {
        let said = explain(rest);
        assert!(!said.contains("remembered"), "{said}");
    }
    let json: serde_json::Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    assert_eq!(json["match"]["candidates"][0]["remember_seconds"], 600);
}

#[test]
fn run_without_root_says_so() {
    let policy = file("");
    std::fs::set_permissions(
        policy.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    let program = sandbox::program::Reachable::of(BINARY).unwrap();
    for args in [
        &["run", "--config", path(&policy)][..],
        // What is pinned can be seen by root alone.
        &["detach"],
    ] {
        let output = program.as_nobody(args).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(complaint(&output).contains("needs root"), "{args:?}");
    }
}

#[test]
fn an_admin_port_in_use_is_found_before_anything_is_attached() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let pins = format!("/sys/fs/bpf/underpass-test-cli-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("admin.sock");
    let policy = file(&format!(
        "[agent]\nadmin = \"{address}\"\nadmin_socket = {socket:?}\npins = \"{pins}\"\n"
    ));
    let output = underpass(&["run", "--config", path(&policy)]);
    let said = complaint(&output);
    assert!(
        said.contains(&format!("cannot listen on {address}")),
        "{said}"
    );
    assert!(said.contains("choose another `admin`"), "{said}");
    assert!(!std::path::Path::new(&pins).exists());
    assert!(!socket.exists());
}

#[test]
fn a_cgroup_that_is_none_is_refused() {
    let pins = format!("/sys/fs/bpf/underpass-test-nocg-{}", std::process::id());
    let folder = tempfile::tempdir().unwrap();
    let control = folder.path().join("control.sock");
    let admin = folder.path().join("admin.sock");
    let policy = file(&format!(
        "[agent]\nadmin_socket = {admin:?}\ncontrol = {control:?}\ncgroup = \"/tmp\"\npins = \"{pins}\"\n"
    ));
    let said = complaint(&underpass(&["run", "--config", path(&policy)]));
    assert!(!control.exists());
    assert!(said.contains("/tmp is not a cgroup v2 folder"), "{said}");
    assert!(!std::path::Path::new(&pins).exists());
}

#[test]
fn flows_without_an_agent_says_what_to_do() {
    let absent = "/run/underpass/there-is-none.sock";
    let said = complaint(&underpass(&["flows", "--admin", absent]));
    assert!(
        said.contains(&format!("no agent answers at {absent}: start one")),
        "{said}"
    );
    let said = complaint(&underpass(&["flows", "--admin", "127.0.0.1:9"]));
    assert!(
        said.contains("no agent answers at 127.0.0.1:9: start one"),
        "{said}"
    );
}

#[test]
fn doctor_finds_what_this_host_has() {
    let output = underpass(&["doctor", "--json"]);
    let findings: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let findings = findings.as_array().unwrap();
    for what in [
        "kernel",
        "cgroup2",
        "connect hooks",
        "ring buffer",
        "other BPF programs",
    ] {
        assert!(findings.iter().any(|f| f["what"] == what), "{what}");
    }
    let missing = findings.iter().any(|f| f["state"] == "missing");
    assert_eq!(output.status.success(), !missing);
}

/// `.cargo/config.toml` says how; without it thousands of flows at rest take a quarter more memory.
#[test]
fn its_allocator_is_set_up_for_little_memory() {
    let output = Command::new(BINARY)
        .arg("--version")
        .env("_RJEM_MALLOC_CONF", "confirm_conf:true")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    for setting in ["narenas:1\n", "tcache_max:1024\n", "dirty_decay_ms:1000\n"] {
        assert!(
            said.contains(&format!("value: {setting}")),
            "{setting}: {said}"
        );
    }
}

/// A policy whose rules do something with statements, by user.
const GUARDED: &str = r#"
[[rule]]
name = "none"
to = ["10.9.9.9:9042"]
action = "deny"
fail = "closed"

[[rule]]
name = "reports"
to = [":9042"]
user = ["reports"]
action = "enrich"
fail = "closed"
pipeline = [{ transform = "guard", refuse = ["writes", "truncate"], not_tables = ["shop.cards"] }]

[[rule]]
name = "rest"
to = [":9042"]
action = "enrich"
fail = "closed"
pipeline = [{ transform = "guard", refuse = ["truncate"] }, { transform = "rewrite", keyspaces = { old = "new" } }]

[[rule]]
name = "other"
to = [":9142"]
action = "bypass"
"#;

#[test]
fn check_says_what_a_pipeline_does_with_a_statement() {
    let policy = file(GUARDED);
    let to = ["--to", "10.1.2.3:9042"];
    let tls_less = ["--keyspace", "shop"];
    for (args, code, said) in [
        (
            &[
                &to[..],
                &["--user", "reports", "--statement", "SELECT * FROM cards"],
                &tls_less,
            ]
            .concat()[..],
            3,
            &[
                "statement, by rule reports: refused: underpass: refused by rule reports: table shop.cards is closed to user \
               reports",
            ][..],
        ),
        (
            &[
                &to[..],
                &["--user", "etl", "--statement", "SELECT * FROM cards"],
                &tls_less,
            ]
            .concat(),
            0,
            &["statement, by rule rest: passes"],
        ),
        (
            &[
                &to[..],
                &["--user", "etl", "--statement", "SELECT * FROM old.cards"],
            ]
            .concat(),
            0,
            &["statement, by rule rest: passes as: SELECT * FROM new.cards (changed by rewrite)"],
        ),
        // Whoever it is, and to wherever.
        (
            &[&to[..], &["--statement", "TRUNCATE t"]].concat(),
            3,
            &["by rule reports: refused:", "by rule rest: refused:"],
        ),
        (
            &["--statement", "TRUNCATE t"],
            3,
            &[
                "by rule reports: refused:",
                "by rule rest: refused:",
                "ok, 4 rules",
            ],
        ),
        // One of the two lets it pass.
        (
            &[
                &to[..],
                &["--statement", "INSERT INTO shop.t (k) VALUES (1)"],
            ]
            .concat(),
            0,
            &["by rule reports: refused:", "by rule rest: passes"],
        ),
        (
            &["--to", "10.1.2.3:9142", "--statement", "TRUNCATE t"],
            0,
            &["statement, by rule other: passes: it is not read"],
        ),
        (
            &["--to", "10.9.9.9:9042", "--statement", "SELECT 1"],
            3,
            &["statement, by rule none: refused with its connection"],
        ),
    ] {
        let output = underpass(&[&["check", path(&policy)], args].concat());
        let text = String::from_utf8(output.stdout).unwrap();
        for said in said {
            assert!(text.contains(said), "{args:?}: {said}: {text}");
        }
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        let output = underpass(&[&["check", path(&policy), "--json"], args].concat());
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            json["statement"].is_array() && output.status.code() == Some(code),
            "{json}"
        );
    }
    let output = underpass(&["check", path(&policy), "--user", "x"]);
    assert_eq!(output.status.code(), Some(2), "of what?");
}

#[test]
fn files_are_laid_out_in_place_and_checked() {
    use std::{
        fs::{self, Permissions},
        os::unix::fs::PermissionsExt,
    };
    let policy = file("[[rule]]\nname='a'  # of it\naction=\"bypass\"\n");
    fs::set_permissions(policy.path(), Permissions::from_mode(0o640)).unwrap();
    let text = || fs::read_to_string(policy.path()).unwrap();
    let before = text();
    let output = underpass(&["fmt", "--check", path(&policy)]);
    assert_eq!(output.status.code(), Some(1));
    let said = complaint(&output);
    let hint = format!(
        "not laid out: {0}; `underpass fmt {0}` does it",
        path(&policy)
    );
    assert!(said.contains(&hint) && text() == before, "{said}");
    assert!(underpass(&["fmt", path(&policy)]).status.success());
    assert_eq!(
        text(),
        "[[rule]]\nname = 'a' # of it\naction = \"bypass\"\n"
    );
    let mode = fs::metadata(policy.path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    let output = underpass(&["fmt", "--check", path(&policy)]);
    assert!(output.status.success() && output.stderr.is_empty());
    let bad = file("a = 1\nb =\n");
    let output = underpass(&["fmt", path(&bad)]);
    let said = complaint(&output);
    assert!(said.contains(&format!("{}:2:", path(&bad))), "{said}");
}

#[test]
fn a_command_whose_reader_has_gone_ends_without_a_complaint() {
    let policy = file("[[rule]]\nname = \"r\"\nto = [\":9042\"]\naction = \"observe\"\n");
    for args in [
        &["schema"][..],
        &["doctor", "--json"],
        &["check", path(&policy), "--file-only"],
        &["config", "-c", path(&policy)],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(BINARY);
        let output = command.args(args).stdout(writer).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (said.as_str(), output.status.code()),
            ("", Some(0)),
            "{args:?}"
        );
    }
}
