//! A tapped flow, as operators see it: under the number by which reporters tell of it, with its session.

use super::*;
use crate::common::operator::Operator;

const TAPS: &str = "fail = \"open\"\npath = \"tap\"";

/// A conversation up to its first request in keyspace `shop`, after the log-in of `app`.
fn logs_in(host: &Host<'_>, version: u8) -> Conversation {
    let mut c = host.connect();
    let options = [
        ("CQL_VERSION", "3.0.0"),
        ("DRIVER_NAME", "d"),
        ("DRIVER_VERSION", "1.2"),
    ];
    c.client_sends(&startup(version, &options));
    c.server_sends(&authenticate(version));
    c.in_segments = version >= 5;
    c.client_sends(&auth_response(version, 1, b"\0app\0secret"));
    c.server_sends(&auth_success(version, 1));
    c.client_sends(&query(version, 1, SELECT));
    c.server_sends(&rows(version, 1, 1));
    c
}

/// The output of `underpass flows`.
fn listed(host: &Host<'_>, more: &[&str]) -> (String, bool) {
    let admin = host.agent.admin().to_string();
    let args = [&["flows", "--admin", &admin], more].concat();
    let told = || Command::new(common::BINARY).args(args).output();
    let told = run_in(Some(&host.sandbox.netns), None, told)
        .unwrap()
        .unwrap();
    let text = [told.stdout, told.stderr].concat();
    (String::from_utf8(text).unwrap(), told.status.success())
}

#[test]
fn a_tapped_flow_is_shown_with_its_session() {
    host(|host| {
        // Also where nothing but headers is asked for.
        for steps in ["{ transform = \"stats\" }", "{ transform = \"count\" }"] {
            host.policy(&policy(TAPS, steps));
            for version in [3, 4, 5] {
                let c = logs_in(host, version);
                let expected = json!({
                    "user": "app", "keyspace": "shop", "driver": "d", "driver_version": "1.2",
                    "protocol": format!("v{version}"), "compression": "none", "tls": false,
                });
                eventually("its session is known", || {
                    host.flow(&c)["session"] == expected
                });
                let id = host.flow(&c)["id"].to_string();
                let (line, _) = listed(host, &[&id]);
                assert!(line.contains("app   shop      d 1.2"), "{line}");
                c.ends();
            }
        }
    });
}

#[test]
fn what_nobody_has_seen_of_a_session_is_shown_as_unknown() {
    host(|host| {
        let mut running = logs_in(host, 4);
        host.policy(&policy(TAPS, "{ transform = \"stats\" }"));
        host.finds(&running);
        running.client_sends(&query(4, 1, SELECT));
        running.server_sends(&rows(4, 1, 1));
        let all = [
            "user",
            "keyspace",
            "driver",
            "driver_version",
            "application",
            "protocol",
            "compression",
            "tls",
        ];
        assert_eq!(host.flow(&running)["session"], json!({ "unknown": all }));
        let (line, _) = listed(host, &[&host.flow(&running)["id"].to_string()]);
        assert!(line.contains("unknown  unknown   unknown"), "{line}");
        running.ends();
    });
}

/// A connection that asks nothing but what the database knows of itself, as drivers' own do.
#[test]
fn a_keyspace_that_is_never_named_is_not_looked_for_for_ever() {
    host(|host| {
        host.policy(&policy(TAPS, "{ transform = \"stats\" }"));
        let mut c = begin(host, 4);
        let asks = |c: &mut Conversation| {
            c.client_sends(&query(4, 1, "SELECT * FROM system.local"));
            c.server_sends(&rows(4, 1, 1));
        };
        (0..40).for_each(|_| asks(&mut c));
        // This would name it.
        c.client_sends(&query(4, 1, SELECT));
        c.server_sends(&rows(4, 1, 1));
        eventually("it is told", || told(host) == 1);
        assert_eq!(host.flow(&c)["session"]["unknown"], json!(["keyspace"]));
        c.ends();
    });
}

fn told(host: &Host<'_>) -> u64 {
    let list = host.agent.json("/statements").unwrap();
    let mut rows = list.as_array().unwrap().iter();
    let row = rows.find(|row| row["table"] == "orders");
    row.map_or(0, |row| row["count"].as_u64().unwrap())
}

#[test]
fn a_tapped_flow_has_one_number() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("audit.log");
    let audit = format!("{{ transform = \"audit\", file = {file:?}, full = \"drop\" }}");
    host(|host| {
        host.policy(&policy(TAPS, &audit));
        let operator = Operator::of(host);
        // Its number is there before anything of it was read.
        let c = host.connect();
        let id = host.flow(&c)["id"].clone();
        assert!(id.is_u64(), "{id}");
        c.ends();
        let c = logs_in(host, 4);
        let id = host.flow(&c)["id"].clone();
        let of_orders = || lines(&file).into_iter().find(|l| l["table"] == "orders");
        eventually("its line is written", || of_orders().is_some());
        assert_eq!(of_orders().unwrap()["flow"], id);
        let id = id.to_string();
        let (told, _) = listed(host, &[&id, "--why"]);
        assert_eq!(told.lines().count(), 2, "{told}");
        assert!(
            told.contains("rule r says enrich; every step only reads, so copies do"),
            "{told}"
        );
        let (told, is_there) = listed(host, &["4711"]);
        assert!(
            !is_there && told.contains("there is no flow 4711"),
            "{told}"
        );
        // Marks take it, and what a session says of it.
        let why = operator.refused(&["mark", &id, "deny"]);
        assert!(why.contains(&format!("flow {id} is not changed")), "{why}");
        assert!(why.contains("path = \"inline\""), "{why}");
        assert_eq!(operator.mark(&[&id, "enrich"])["counts"]["already"], 1);
        for (user, could_not) in [("app", 1), ("other", 0)] {
            let selector = format!("user={user},rule=r");
            let marked = operator.mark(&[&selector, "bypass"]);
            assert_eq!(marked["counts"]["could_not"], could_not, "{marked}");
        }
        c.ends();
    });
}
