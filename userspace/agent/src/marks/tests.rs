//! Tests of marks: what is accepted, what it means, and the order among the rules.

use dataplane::{OrigDst, Process};
use flow::{Holds, Known};
use policy::{Candidate, Fact, Fail, Session};
use telemetry::is_marks;

use super::*;

fn target(text: &str) -> Result<Target, String> {
    Target::parse(text, Action::Bypass)
}

fn wanted(text: &str, action: Action) -> Wanted {
    Wanted {
        target: Target::parse(text, action).unwrap(),
        action,
        lasts: None,
        reset: false,
    }
}

fn file() -> Policy {
    let text = "[[rule]]\nname = \"all\"\nto = [\":9042\"]\naction = \"enrich\"\n";
    crate::config::Config::parse("f".as_ref(), text)
        .unwrap()
        .policy
}

fn candidate(process: &str, port: u16) -> Candidate {
    Candidate {
        from: None,
        to: ([10, 1, 2, 3], port).into(),
        uid: 7,
        gid: 7,
        process: process.into(),
        cgroup: "/a/b".into(),
        netns: None,
    }
}

#[test]
fn times_are_bounded() {
    for (text, seconds) in [
        ("1s", 1),
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("7d", 604_800),
    ] {
        assert_eq!(lasting(text), Ok(Duration::from_secs(seconds)));
    }
    for text in [
        "",
        "s",
        "30",
        "0s",
        "8d",
        "-1s",
        "+1s",
        "1.5h",
        "1 s",
        "30S",
        "999999999999999999999s",
        "ä",
    ] {
        let refused = lasting(text).unwrap_err();
        assert!(
            refused.starts_with("expected 1s to 7d"),
            "{text}: {refused}"
        );
    }
}

#[test]
fn numbers_are_flows_and_everything_else_selects() {
    assert_eq!(target("17").unwrap().flow().unwrap().to_string(), "17");
    assert_eq!(target("socket-9").unwrap().to_string(), "socket-9");
    assert!(!target("17").unwrap().holds_later());
    for text in [
        "all",
        "process=spark*,to=[fd00::/8]:9042",
        "uid=0,cgroup=/a,user=x,driver=y*",
    ] {
        let target = target(text).unwrap();
        assert_eq!((target.to_string().as_str(), target.flow()), (text, None));
        assert!(target.holds_later());
    }
    assert!(!target("rule=all,process=x").unwrap().holds_later());
}

#[test]
fn a_selector_that_says_nothing_or_nonsense_is_refused_with_what_was_expected() {
    for (text, says) in [
        (
            "",
            "expected a flow's number, `all`, or `key=value,...` of process, uid",
        ),
        ("spark", "expected a flow's number"),
        ("all,to=:1", "expected a flow's number"),
        ("process=a,", "expected a flow's number"),
        ("process=a\n", "expected a flow's number"),
        ("socket-x", "expected a flow's number"),
        ("port=1", "expected one of process, uid, gid, to,"),
        ("process=a,process=b", "process: expected once"),
        ("rule=", "rule: expected a rule's name"),
        ("process=", "process: expected a process name"),
        ("process=a*b", "process: expected a process name"),
        ("uid=nobody-here", "uid: expected a user id"),
        ("uid=-1", "uid: expected a user id"),
        ("to=localhost:1", "to: expected network and port"),
        (
            "to=10.1.2.3/8",
            "to: expected a network's first address: `10.0.0.0/8`",
        ),
        ("cgroup=a/..", "cgroup: expected an absolute path"),
        ("keyspace=system", "keyspace: expected a keyspace of yours"),
        ("user=", "user: expected at most 256 bytes"),
    ] {
        let refused = target(text).unwrap_err();
        assert!(refused.starts_with(says), "{text:?}: {refused}");
    }
    let refused = Target::parse("user=a", Action::Observe).unwrap_err();
    assert!(
        refused.starts_with("action: expected `bypass`, `enrich` or `deny`"),
        "{refused}"
    );
}

#[test]
fn marks_stand_before_the_file_and_the_newest_first() {
    let mut marks = Marks::default();
    marks
        .add(&wanted("process=spark*", Action::Bypass))
        .unwrap();
    marks.add(&wanted("rule=all", Action::Deny)).unwrap();
    marks.add(&wanted("3", Action::Deny)).unwrap();
    let newest = marks
        .add(&wanted("process=spark-shell", Action::Deny))
        .unwrap();
    let policy = marks.before(&file());
    let names: Vec<&str> = policy.rules.iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names, ["mark-4", "mark-1", "all"]);
    let met = |process| {
        policy
            .first_match(&candidate(process, 9042))
            .rule
            .to_string()
    };
    assert_eq!(
        (met("spark-shell"), met("spark"), met("x")),
        ("mark-4".into(), "mark-1".into(), "all".into())
    );
    assert!(marks.remove(newest.id).is_some() && marks.remove(newest.id).is_none());
    assert_eq!(marks.before(&file()).rules.len(), 2);
}

#[test]
fn marks_on_sessions_are_session_rules_and_denial_is_safe() {
    let mut marks = Marks::default();
    marks.add(&wanted("user=a,to=:9042", Action::Deny)).unwrap();
    marks.add(&wanted("user=b", Action::Enrich)).unwrap();
    let rules = marks.before(&file()).rules;
    assert!(rules[0].is_session() && rules[1].is_session() && !rules[2].is_session());
    assert_eq!((rules[0].fail, rules[1].fail), (Fail::Open, Fail::Closed));
}

#[test]
fn there_are_only_so_many_and_they_end() {
    let mut marks = Marks::default();
    for n in 0..MAX_MARKS {
        let lasts = (n % 2 == 0).then(|| Duration::from_secs(n as u64 + 1));
        let target = if n == 1 { "17" } else { "all" };
        marks
            .add(&Wanted {
                lasts,
                ..wanted(target, Action::Bypass)
            })
            .unwrap();
    }
    assert!(
        marks
            .add(&wanted("all", Action::Bypass))
            .unwrap_err()
            .contains("64 marks")
    );
    let now = Instant::now();
    assert!(marks.next_end().unwrap() <= now + Duration::from_secs(1));
    assert_eq!(marks.end(now, |_| false).len(), 0);
    let gone = marks.end(now, |number| number.to_string() == "17");
    assert_eq!(gone.iter().map(|mark| mark.id).collect::<Vec<_>>(), [2]);
    assert_eq!(marks.end(now + Duration::from_secs(5), |_| false).len(), 3);
    assert_eq!(marks.len(), MAX_MARKS - 4);
    let added = marks.add(&wanted("all", Action::Bypass)).unwrap();
    assert_eq!(added.id, MAX_MARKS as u64 + 1, "numbers are not used again");
}

#[test]
fn a_running_flow_is_meant_when_everything_holds() {
    let process = Process {
        pid: 1,
        uid: 7,
        gid: 7,
        name: "spark-shell".into(),
        cgroup_id: 3,
        holder: None,
    };
    let rule = RuleName::new("all");
    let alice = Session {
        user: Fact::Is("alice".into()),
        ..Session::default()
    };
    let since = RuleName::new("mark-1");
    let holds = |text: &str, session: Option<&Session>, undecided| {
        let Target::Selector(selector) = target(text).unwrap() else {
            panic!("{text}");
        };
        let to = OrigDst::new(([10, 1, 2, 3], 9042).into());
        let known = Known {
            to,
            process: &process,
            rules: [&rule, &since],
            session,
            undecided,
        };
        selector.holds(&known, || Some("/a/b".into()))
    };
    for text in [
        "all",
        "process=spark*,uid=7,to=10.0.0.0/8:9042,rule=all",
        "cgroup=/a",
        "gid=7,rule=mark-1",
    ] {
        assert_eq!(holds(text, None, false), Holds::Yes, "{text}");
    }
    for text in [
        "process=spark*,uid=8",
        "to=:9043",
        "rule=al",
        "cgroup=/b",
        "gid=8",
        "uid=8,user=x",
    ] {
        assert_eq!(holds(text, None, false), Holds::No, "{text}");
    }
    assert_eq!(holds("user=al*", Some(&alice), false), Holds::Yes);
    assert_eq!(holds("user=bob", Some(&alice), true), Holds::No);
    assert_eq!(
        holds("user=alice,keyspace=x", Some(&alice), true),
        Holds::Later
    );
    assert_eq!(
        holds("user=alice,keyspace=x", Some(&alice), false),
        Holds::Unknown
    );
    assert_eq!(
        holds("keyspace=x,rule=all", Some(&alice), true),
        Holds::Unknown
    );
    assert_eq!(holds("user=alice", None, false), Holds::Unknown);
}

#[test]
fn the_file_may_not_have_their_names() {
    assert!(is_marks("mark-12") && !is_marks("mark-") && !is_marks("mark-x") && !is_marks("mark"));
    let text = "[[rule]]\nname = \"mark-1\"\naction = \"enrich\"\n";
    let refused = crate::config::Config::parse("f".as_ref(), text).unwrap_err();
    assert!(
        refused.to_string().contains("which marks have"),
        "{refused}"
    );
}
