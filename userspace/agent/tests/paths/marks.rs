//! Marks: what becomes of flows that run and of connections that come, who may set them, and how
//! they end.

mod edited;
mod enriched;
mod flips;
mod socket;
mod spliced;
mod undecided;
mod untouched;

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
};

use serde_json::{Value, json};

use crate::common::{
    accept, eventually,
    frames::{query, ready, startup, void},
    operator::Operator,
    wire::{Conversation, Host, host},
};

const ENRICH: &str = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\n";
/// A rule that lets the sockets of its flows, of which there are none, into sockmaps: the engines are tried out.
const OPTS_IN: &str =
    "[[rule]]\nname = \"o\"\nto = [\":1\"]\naction = \"enrich\"\nshortcut = true\n";
const BYPASS: &str = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"bypass\"\n";
const OBSERVE: &str = "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"observe\"\n";
const BY_KEYSPACE: &str = "[[rule]]\nname = \"s\"\nto = [\":PORT\"]\nkeyspace = [\"shop\"]\n\
                           action = \"deny\"\n[[rule]]\nname = \"r\"\nto = [\":PORT\"]\n\
                           action = \"enrich\"\n";
const SELECT: &str = "SELECT v FROM other.t";

/// The client's side of a flow is decoded: its first frames have passed.
fn begin(c: &mut Conversation) {
    c.client_sends(&startup(4, &[("CQL_VERSION", "3.0.0")]));
    c.server_sends(&ready(4));
}

fn exchange(c: &mut Conversation) {
    c.client_sends(&query(4, 1, SELECT));
    c.server_sends(&void(4, 1));
}

/// Both sides see RST.
fn expect_both_reset(c: &mut Conversation) {
    for side in [&mut c.client, &mut c.server] {
        let end = side.read(&mut [0; 64]).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    }
}

/// How the next connection travels: None where the agent does not see it.
fn next_path(host: &Host<'_>) -> Option<String> {
    let mut c = host.connect();
    c.client_sends(b"\x04");
    let client = c.client.local_addr().unwrap().to_string();
    let flows = host.agent.json("/flows").unwrap();
    let flow = flows
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["client"] == client.as_str());
    let path = flow.map(|f| {
        format!(
            "{} by {}",
            f["path"].as_str().unwrap(),
            f["rule"].as_str().unwrap()
        )
    });
    c.ends();
    path
}

#[test]
fn a_selector_changes_flows_that_run_and_connections_that_come() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        // In the middle of a frame, both ways.
        let (request, response) = (query(4, 1, SELECT), void(4, 1));
        c.client_sends(&request[..20]);
        let marked = operator.mark(&["process=paths*,to=:PORT", "bypass", "--for", "30s"]);
        assert_eq!(marked["counts"]["changed"], 1, "{marked}");
        assert_eq!(marked["flows"][0]["result"], "changed");
        assert_eq!(marked["mark"]["later"], true);
        let flow = host.flow(&c);
        assert_eq!(
            (&flow["path"], &flow["rule"], &flow["action"]),
            (&json!("relay"), &json!("mark-1"), &json!("bypass"))
        );
        c.client_sends(&request[20..]);
        c.server_sends(&response);
        exchange(&mut c);
        assert_eq!(next_path(host), None);
        // Again: nothing is left to change.
        let marked = operator.mark(&["process=paths*,to=:PORT", "bypass"]);
        assert_eq!(
            (&marked["counts"]["changed"], &marked["counts"]["already"]),
            (&json!(0), &json!(1))
        );
        operator.unmark(2);

        // A reload of the file leaves it in force.
        host.policy(&format!(
            "{ENRICH}[[rule]]\nname = \"other\"\nto = [\":1\"]\naction = \"deny\"\n"
        ));
        assert_eq!(next_path(host), None);
        let marks = operator.marks();
        assert_eq!(marks.as_array().unwrap().len(), 1);
        assert_eq!(
            marks[0]["selector"],
            operator.fill("process=paths*,to=:PORT")
        );
        assert_eq!(
            (&marks[0]["action"], &marks[0]["flows_changed"]),
            (&json!("bypass"), &json!(1))
        );
        let lasts = marks[0]["until_unix_ms"].as_u64().unwrap()
            - marks[0]["since_unix_ms"].as_u64().unwrap();
        assert_eq!(lasts, 30_000);
        assert_eq!(host.agent.metric("underpass_marks").unwrap(), 1.0);

        operator.unmark(1);
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
        assert_eq!(host.flow(&c)["rule"], "mark-1", "what was changed stays");
        exchange(&mut c);
        c.ends();
        assert_eq!(host.agent.metric("underpass_marks").unwrap(), 0.0);
        assert_eq!(host.metric("marked_flows", "result=\"changed\""), 1);
        assert_eq!(host.metric("marked_flows", "result=\"already\""), 1);
        // What came after the mark was not read.
        let statements = host.agent.json("/statements").unwrap();
        let kinds = statements
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["kind"]);
        assert_eq!(kinds.collect::<Vec<_>>(), ["startup"]);
    });
}

#[test]
fn a_mark_says_beforehand_that_its_end_takes_nothing_back() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        let (said, complained, code) = operator.run(&["mark", "all", "bypass", "--for", "1s"]);
        assert_eq!(code, Some(0), "{complained}");
        let lines: Vec<&str> = said.lines().rev().take(2).collect();
        let control = format!("--control {}", host.agent.control().display());
        assert_eq!(
            lines,
            [
                &format!("undo, for new connections: underpass unmark 1 {control}"),
                "1 changed; new connections meet it before the file's rules; flows that it changes stay so when it ends"
            ]
        );
        let flow = host.flow(&c)["id"].to_string();
        let undo = format!("underpass mark {flow} enrich {control}");
        assert!(said.contains(&undo), "{said}");
        eventually("it has ended", || {
            operator.marks().as_array().unwrap().is_empty()
        });
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
        let flow = host.flow(&c);
        assert_eq!(
            (&flow["rule"], &flow["path"]),
            (&json!("mark-1"), &json!("relay"))
        );
        exchange(&mut c);

        let (said, complained, code) = operator.run(&["mark", "all", "enrich"]);
        assert_eq!(code, Some(0), "{complained}");
        assert!(said.starts_with("mark 2: "), "{said}");
        let (said, _, _) = operator.run(&["unmark", "2"]);
        assert_eq!(
            said,
            "mark 2 (enrich for all) removed; flows that it changed stay as they are\n"
        );
        c.ends();
    });
}

#[test]
fn a_flow_is_marked_by_its_number_and_no_other() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        let (mut one, mut other) = (host.connect(), host.connect());
        begin(&mut one);
        begin(&mut other);
        let id = host.flow(&one)["id"].to_string();
        let marked = operator.mark(&[&id, "bypass"]);
        assert_eq!(
            (&marked["counts"]["changed"], &marked["mark"]["later"]),
            (&json!(1), &json!(false))
        );
        assert_eq!(host.flow(&one)["path"], "relay");
        assert_eq!(host.flow(&other)["path"], "enrich");
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
        exchange(&mut one);

        let enriched = host.flow(&other)["id"].to_string();
        let marked = operator.mark(&[&enriched, "enrich"]);
        assert_eq!(marked["counts"]["already"], 1);
        // The relayed one is decoded again.
        let marked = operator.mark(&[&id, "enrich"]);
        assert_eq!(marked["counts"]["changed"], 1);
        assert_eq!(host.flow(&one)["path"], "enrich");
        exchange(&mut one);
        let refused = operator.refused(&["mark", &id, "observe"]);
        assert!(refused.contains("decided at connect()"), "{refused}");
        let marked = operator.mark(&[&id, "observe", "--reset"]);
        assert_eq!(marked["flows"][0]["result"], "reset");
        expect_both_reset(&mut one);
        assert_eq!(host.metric("flows_closed", "reason=\"marked\""), 1);
        // Marks of single flows go with them.
        eventually("marks of flows that are gone end", || {
            operator.marks().as_array().unwrap().len() == 1
        });
        exchange(&mut other);
        other.ends();
        let refused = operator.refused(&["mark", "4711", "bypass"]);
        assert!(refused.contains("there is no flow 4711"), "{refused}");
    });
}

/// A driver opens again what was reset.
#[test]
fn what_comes_instead_of_a_flow_that_was_reset_meets_the_mark_if_that_holds_for_it() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        for (target, number, next) in [
            ("to=:PORT", 3, "untouched by mark-3"),
            ("rule=mark-4", 6, "enrich by r"),
        ] {
            let mut c = host.connect();
            begin(&mut c);
            operator.mark(&[&host.flow(&c)["id"].to_string(), "bypass"]);
            assert_eq!(host.flow(&c)["path"], "relay");
            // It has met its rule, though a mark has decided since.
            let again = operator.mark(&["rule=r", "bypass"]);
            assert_eq!(again["counts"]["already"], 1, "{again}");
            operator.unmark(again["mark"]["id"].as_u64().unwrap());
            let marked = operator.mark(&[target, "observe", "--reset"]);
            assert_eq!(marked["flows"][0]["result"], "reset", "{marked}");
            expect_both_reset(&mut c);
            assert_eq!(next_path(host).as_deref(), Some(next));
            operator.unmark(number);
            assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
        }
    });
}

#[test]
fn what_is_denied_is_reset_on_both_sides_and_does_not_come_again() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        // Bytes that nobody has read.
        c.server.write_all(&void(4, 1)).unwrap();
        let marked = operator.mark(&["rule=r", "deny"]);
        assert_eq!(
            (&marked["counts"]["changed"], &marked["mark"]["later"]),
            (&json!(1), &json!(false))
        );
        let (mut read, mut client) = (Vec::new(), &c.client);
        let end = client.read_to_end(&mut read).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        let end = c.server.read(&mut [0; 8]).map_err(|e| e.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
        // A rule's name means running flows only.
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));

        operator.mark(&["to=:PORT,uid=0", "deny", "--for", "1h"]);
        let to = host.listener.local_addr().unwrap();
        let connect = || host.sandbox.client(|| TcpStream::connect(to)).unwrap();
        assert_eq!(
            connect().map_err(|e| e.kind()).err(),
            Some(ErrorKind::PermissionDenied)
        );
        operator.unmark(2);
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
    });
}

#[test]
fn observed_flows_are_not_carried_and_said_to_be_so() {
    host(|host| {
        host.policy(OBSERVE);
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        let id = host.flow(&c)["id"].as_str().unwrap().to_owned();
        for target in ["to=:PORT", &id] {
            let said = operator.run(&["mark", target, "bypass", "--json"]);
            let marked: Value = serde_json::from_str(&said.0).unwrap();
            assert_eq!(marked["flows"][0]["flow"], id.as_str(), "{marked}");
            assert_eq!(marked["flows"][0]["result"], "could_not");
            let why = marked["flows"][0]["why"].as_str().unwrap();
            assert!(why.contains("the agent does not carry it"), "{why}");
        }
        let marked = operator.mark(&["to=:PORT", "observe"]);
        assert_eq!(marked["counts"]["already"], 1);
        exchange(&mut c);
        c.ends();
        host.policy(ENRICH);
        assert_eq!(next_path(host).as_deref(), Some("untouched by mark-3"));
        operator.unmark(3);
        operator.unmark(1);
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
    });
}

#[test]
fn flows_that_were_to_take_the_shortcut_are_not_carried_either() {
    host(|host| {
        host.policy(&format!("{BYPASS}shortcut = true\n"));
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        let id = host.flow(&c)["id"].as_str().unwrap().to_owned();
        for (target, action, result) in [
            ("to=:PORT", "enrich", "could_not"),
            ("to=:PORT", "bypass", "already"),
            (&id, "observe", "could_not"),
            (&id, "bypass", "already"),
        ] {
            let said = operator.run(&["mark", target, action, "--json"]);
            let marked: Value = serde_json::from_str(&said.0).unwrap();
            assert_eq!(marked["flows"][0]["flow"], id.as_str(), "{marked}");
            assert_eq!(marked["flows"][0]["result"], result, "{marked}");
        }
        c.ends();
    });
}

#[test]
fn a_mark_ends_by_itself() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        operator.mark(&["to=:PORT", "bypass", "--for", "1s"]);
        assert_eq!(next_path(host), None);
        eventually("it ends", || operator.marks() == json!([]));
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
        assert_eq!(host.agent.metric("underpass_marks").unwrap(), 0.0);
        host.agent.wait_for_log("mark ended").unwrap();
    });
}

#[test]
fn what_is_asked_for_wrongly_changes_nothing() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        for (args, says) in [
            (
                &["mark", "to=:PORT,user=a", "observe"][..],
                "decided at connect()",
            ),
            (&["unmark", "9"], "there is no mark 9"),
        ] {
            let refused = operator.refused(args);
            assert!(refused.contains(says), "{args:?}: {refused}");
        }
        // No agent is asked.
        for (args, says) in [
            (&["", "bypass"][..], "expected a flow's number, `all`"),
            (&["nonsense", "bypass"], "expected a flow's number"),
            (&["to=nowhere", "deny"], "to: expected network and port"),
            (&["all", "bypass", "--for", "1y"], "expected 1s to 7d"),
            (&["all", "frobnicate"], "possible values: bypass"),
        ] {
            let (_, said, code) = operator.run(&[&["mark"], args].concat());
            assert!(code == Some(2) && said.contains(says), "{args:?}: {said}");
        }
        for (request, status) in [
            ("GET /flows HTTP/1.0\r\n\r\n".to_owned(), "404"),
            ("PUT /marks HTTP/1.0\r\n\r\n".into(), "405"),
            ("DELETE /marks/x HTTP/1.0\r\n\r\n".into(), "400"),
            (post("{"), "400"),
            (post("{\"target\": \"all\", \"action\": \"drop\"}"), "400"),
            (
                post("{\"target\": \"nonsense\", \"action\": \"deny\"}"),
                "400",
            ),
            (
                post("{\"target\": \"all\", \"action\": \"deny\", \"for\": \"1y\"}"),
                "400",
            ),
            (
                post("{\"target\": \"all\", \"action\": \"deny\", \"extra\": 1}"),
                "400",
            ),
            (post(&"x".repeat(20_000)), "413"),
        ] {
            let answer = operator.say(&request);
            assert!(
                answer.starts_with(&format!("HTTP/1.0 {status} ")),
                "{request:.60}: {answer}"
            );
        }
        assert_eq!(operator.marks(), json!([]));
        // The admin interface lists them, and changes nothing, whoever asks.
        let mut admin = UnixStream::connect(host.agent.admin_socket()).unwrap();
        admin.write_all(post("{}").as_bytes()).unwrap();
        let mut answer = String::new();
        admin.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.0 405 "), "{answer}");
        assert_eq!(host.agent.json("/marks").unwrap(), json!([]));

        for _ in 0..64 {
            operator.mark(&["to=:1", "bypass"]);
        }
        let refused = operator.refused(&["mark", "to=:1", "bypass"]);
        assert!(refused.contains("there are 64 marks"), "{refused}");
        assert_eq!(operator.marks().as_array().unwrap().len(), 64);
        operator.unmark(1);
        operator.mark(&["to=:1", "bypass"]);
        assert_eq!(next_path(host).as_deref(), Some("enrich by r"));
    });
}

fn post(body: &str) -> String {
    format!(
        "POST /marks HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

#[test]
fn marks_are_shown_to_people() {
    host(|host| {
        host.policy(ENRICH);
        let operator = Operator::of(host);
        let mut c = host.connect();
        begin(&mut c);
        let said = operator
            .run(&["mark", "process=paths*", "deny", "--for", "10m", "--reset"])
            .0;
        assert!(
            said.starts_with("mark 1: deny for process=paths*, for "),
            "{said}"
        );
        assert!(
            said.contains("1 changed; new connections meet it"),
            "{said}"
        );
        let warned = operator.run(&["mark", "process=x", "enrich"]).1;
        assert!(
            warned.starts_with("warning: without `to` it holds for every destination"),
            "{warned}"
        );
        let listed = operator.run(&["marks"]).0;
        let mut lines = listed
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        assert_eq!(lines.next().unwrap()[..3], ["MARK", "OF", "ACTION"]);
        assert_eq!(lines.next().unwrap()[..3], ["1", "process=paths*", "deny"]);
        let said = operator.run(&["unmark", "1"]).0;
        assert!(
            said.starts_with("mark 1 (deny for process=paths*) removed"),
            "{said}"
        );
        expect_both_reset(&mut c);
        operator.unmark(2);
    });
}

#[test]
fn a_flow_that_waits_for_its_database_is_not_changed_behind_ones_back() {
    host(|host| {
        host.policy("[[rule]]\nname = \"r\"\nto = [\"198.51.100.0/24\"]\naction = \"enrich\"\n");
        let operator = Operator::of(host);
        // Its backlog is full: the next SYN is not answered.
        let listener = host.sandbox.server(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
            socket.listen(0)?;
            Ok::<TcpListener, std::io::Error>(socket.into())
        });
        let listener = listener.unwrap().unwrap();
        let to = listener.local_addr().unwrap();
        let fill = || {
            host.sandbox
                .server(|| TcpStream::connect(to))
                .unwrap()
                .unwrap()
        };
        let _waiting = [fill()];
        host.policy_to(to.port(), ENRICH);
        let waits = host.sandbox.client(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.set_nonblocking(true)?;
            let begun = socket.connect(&to.into());
            assert_eq!(
                begun.map_err(|e| e.raw_os_error()),
                Err(Some(115)),
                "EINPROGRESS"
            );
            Ok::<socket2::Socket, std::io::Error>(socket)
        });
        let waits = waits.unwrap().unwrap();
        eventually("it is held", || {
            host.agent.metric("underpass_flows").unwrap() == 1.0
        });
        let marked = operator.mark(&[&format!("to=:{}", to.port()), "bypass"]);
        assert_eq!(
            marked["flows"][0]["why"], "it waits for its database",
            "{marked}"
        );
        // It goes on as it was.
        drop(accept(&listener));
        let (server, _) = accept(&listener);
        let flows = host.agent.json("/flows").unwrap();
        assert_eq!(
            (&flows[0]["rule"], &flows[0]["path"]),
            (&json!("r"), &json!("enrich"))
        );
        drop((server, waits));
    });
}
