//! Deciding by one fact after the other ends where reading with all of them does, and never
//! takes a decision back.

use std::{fs, os::unix::fs::MetadataExt};

use ipnet::IpNet;
use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

fn pattern(text: &str) -> TextPattern {
    TextPattern::parse(text).unwrap()
}

fn patterns() -> impl Strategy<Value = Vec<TextPattern>> {
    vec(
        select(vec!["a", "ab", "a*", "*", "c"]).prop_map(pattern),
        0..3,
    )
}

fn facts() -> impl Strategy<Value = Fact<String>> {
    let value = select(vec!["a", "ab", "b", "c"]).prop_map(|v| Fact::Is(v.to_owned()));
    prop_oneof![1 => Just(Fact::Absent), 4 => value]
}

prop_compose! {
    fn conditions()(
        users in patterns(),
        keyspaces in patterns(),
        drivers in patterns(),
        protocols in vec(select(Protocol::ALL.to_vec()), 0..2),
        compressions in vec(select(Compression::ALL.to_vec()), 0..2),
        tls: Option<bool>,
    ) -> SessionConditions {
        SessionConditions {
            users,
            keyspaces,
            drivers,
            protocols,
            compressions,
            tls,
            ..SessionConditions::default()
        }
    }
}

prop_compose! {
    fn rules()(
        port in proptest::option::of(select(vec![9042_u16, 9043])),
        session in prop_oneof![conditions(), Just(SessionConditions::default())],
        action in select(vec![Action::Bypass, Action::Enrich, Action::Deny]),
        fail in select(vec![Fail::Open, Fail::Closed]),
    ) -> Rule {
        Rule {
            from: Vec::new(),
            backends: Vec::new(),
            name: RuleName::new("r"),
            to: Destinations::from(Vec::from_iter(port.map(|port| Target { network: None, port: Some(port) }))),
            uids: vec![],
            gids: vec![],
            processes: vec![],
            cgroups: vec![],
            namespaces: vec![],
            containers: ContainerConditions::default(),
            session,
            action,
            fail,
            shortcut: Shortcut::Neither,
            taps: None,
            asks_copies: false,
            when: None,
            remember: None,
            sample: None,
            holdout: None,
            limit: None,
            is_mark: false,
            shadow: None,
            protects: false,
        }
    }
}

prop_compose! {
    fn sessions()(
        user in facts(),
        keyspace in facts(),
        driver in facts(),
        protocol in select(Protocol::ALL.to_vec()),
        compression in select(Compression::ALL.to_vec()),
        tls: bool,
    ) -> Session {
        Session {
            user,
            keyspace,
            driver,
            driver_version: Fact::Absent,
            application: Fact::Absent,
            protocol: Fact::Is(protocol),
            compression: Fact::Is(compression),
            tls: Fact::Is(tls),
        }
    }
}

/// The session when all but `open` of its facts are known.
fn partly(whole: &Session, open: u8) -> Session {
    fn part<T: Clone>(fact: &Fact<T>, open: bool) -> Fact<T> {
        if open { Fact::Open } else { fact.clone() }
    }
    Session {
        user: part(&whole.user, open & 1 != 0),
        keyspace: part(&whole.keyspace, open & 2 != 0),
        driver: part(&whole.driver, open & 4 != 0),
        protocol: part(&whole.protocol, open & 8 != 0),
        compression: part(&whole.compression, open & 16 != 0),
        tls: part(&whole.tls, open & 32 != 0),
        ..whole.clone()
    }
}

/// The plain reading of one rule's conditions.
fn holds(rule: &Rule, session: &Session) -> bool {
    let c = &rule.session;
    let text = |wanted: &[TextPattern], fact: &Fact<String>| {
        let held = |p: &TextPattern| {
            let wanted = p.to_string();
            fact.value()
                .is_some_and(|value| match wanted.strip_suffix('*') {
                    Some(beginning) => value.starts_with(beginning),
                    None => *value == wanted,
                })
        };
        wanted.is_empty() || wanted.iter().any(held)
    };
    text(&c.users, &session.user)
        && text(&c.keyspaces, &session.keyspace)
        && text(&c.drivers, &session.driver)
        && (c.protocols.is_empty()
            || session
                .protocol
                .value()
                .is_some_and(|v| c.protocols.contains(v)))
        && (c.compressions.is_empty()
            || session
                .compression
                .value()
                .is_some_and(|v| c.compressions.contains(v)))
        && c.tls.is_none_or(|tls| session.tls == Fact::Is(tls))
}

pub(super) fn candidate() -> Candidate {
    Candidate {
        from: None,
        to: "10.1.2.3:9042".parse().unwrap(),
        uid: 0,
        gid: 0,
        process: "java".into(),
        cgroup: "/".into(),
        netns: None,
    }
}

pub(super) fn policy(rules: Vec<Rule>) -> Policy {
    Policy {
        rules,
        default_action: Action::Bypass,
        default_fail: Fail::Open,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn knowing_all_is_the_first_match(rules in vec(rules(), 0..6), session in sessions()) {
        let (policy, c) = (policy(rules), candidate());
        let first = policy.rules.iter().position(|r| r.miss(&c).is_none() && holds(r, &session));
        let Decision::Decided(met) = policy.decide(&c, &session) else {
            return Err(TestCaseError::fail("undecided with every fact known"));
        };
        prop_assert_eq!(met.index, first);
        let action = first.map_or(Action::Bypass, |index| policy.rules[index].action);
        prop_assert_eq!(met.action, action);
    }

    #[test]
    fn knowing_more_changes_no_decision(
        rules in vec(rules(), 0..6),
        whole in sessions(),
        open: u8,
        fewer: u8,
    ) {
        let (policy, c) = (policy(rules), candidate());
        let early = policy.decide(&c, &partly(&whole, open));
        let later = policy.decide(&c, &partly(&whole, open & fewer));
        if early != Decision::Undecided {
            prop_assert_eq!(&early, &later);
        }
        // And nothing is put off: undecided means that two sessions which agree in what is
        // known can still end differently, or the same by another rule.
        let possible: Vec<_> = policy.possible(&c, &partly(&whole, open)).collect();
        prop_assert!(possible.last().is_some_and(|last| last.is_certain));
        prop_assert_eq!(early == Decision::Undecided, possible.len() > 1);
        let Decision::Decided(met) = policy.decide(&c, &whole) else {
            return Err(TestCaseError::fail("undecided with every fact known"));
        };
        prop_assert!(possible.iter().any(|p| p.met.index == met.index));
    }

    /// What is said of each rule is what decides.
    #[test]
    fn trying_each_says_which_decides(rules in vec(rules(), 0..6), whole in sessions(), open: u8, is_closed: bool) {
        let (policy, c) = (policy(rules), candidate());
        let known = partly(&whole, open);
        let session = if is_closed { known.closed() } else { known };
        let tried = policy.try_each(&c, &session);
        let possible: Vec<_> = policy.possible(&c, &session).filter_map(|p| Some((p.met.index?, p.is_certain))).collect();
        let said = tried.iter().enumerate().filter_map(|(index, tried)| match tried {
            Tried::Decides | Tried::Refuses(_) => Some((index, true)),
            Tried::MayDecide(_) => Some((index, false)),
            _ => None,
        });
        prop_assert_eq!(said.collect::<Vec<_>>(), possible);
        for (rule, tried) in policy.rules.iter().zip(&tried) {
            if let Tried::Misses(keys) = tried {
                prop_assert_eq!(rule.miss(&c).is_some(), keys.contains(&"to"));
                prop_assert!(!keys.is_empty());
            }
        }
    }

    #[test]
    fn what_never_becomes_known_leaves_nothing_undecided(
        rules in vec(rules(), 0..6),
        whole in sessions(),
        open: u8,
    ) {
        let closed = partly(&whole, open).closed();
        prop_assert!(policy(rules).decide(&candidate(), &closed) != Decision::Undecided);
    }

    #[test]
    fn a_rule_that_is_closed_is_not_escaped_by_what_nobody_knows(
        rules in vec(rules(), 0..6),
        whole in sessions(),
        unknowable: u8,
    ) {
        let (policy, c) = (policy(rules), candidate());
        let seen = partly(&whole, unknowable).closed();
        let (truth, met) = (policy.decide(&c, &whole), policy.decide(&c, &seen));
        let (Decision::Decided(truth), Decision::Decided(met)) = (truth, met) else {
            return Err(TestCaseError::fail("undecided with nothing to become known"));
        };
        let rule = |met: &Match| met.index.and_then(|index| policy.rules.get(index));
        if rule(&truth).is_some_and(|rule| rule.fail == Fail::Closed) {
            prop_assert!(met == truth || met.action == Action::Deny, "{:?} {:?}", truth, met);
        }
        // Nor is anything denied but by a rule that says so.
        if met.action == Action::Deny {
            let by = rule(&met).unwrap();
            let is_unsure = by.session.unknowable(&seen).next().is_some();
            prop_assert!(by.action == Action::Deny || by.fail == Fail::Closed && is_unsure);
        }
        // Where all rules are open, none holds by what is not known.
        if policy.rules.iter().all(|rule| rule.fail == Fail::Open) {
            prop_assert_eq!(Decision::Decided(met), policy.decide(&c, &seen.known()));
        }
    }
}

pub(super) fn plain_rule(name: &str) -> Rule {
    rule(name, SessionConditions::default(), Action::Deny)
}

fn rule(name: &str, session: SessionConditions, action: Action) -> Rule {
    Rule {
        from: Vec::new(),
        backends: Vec::new(),
        name: RuleName::new(name),
        to: Destinations::ANY,
        uids: vec![],
        gids: vec![],
        processes: vec![],
        cgroups: vec![],
        namespaces: vec![],
        containers: ContainerConditions::default(),
        session,
        action,
        fail: Fail::Closed,
        shortcut: Shortcut::Neither,
        taps: None,
        asks_copies: false,
        when: None,
        remember: None,
        sample: None,
        holdout: None,
        limit: None,
        is_mark: false,
        shadow: None,
        protects: false,
    }
}

#[test]
fn what_decides_instead_of_a_rule_that_cannot_be_asked_is_known_beforehand() {
    let asks = |name, fail| {
        let by_user = SessionConditions {
            users: vec![pattern("a")],
            ..SessionConditions::default()
        };
        let action = Action::Enrich;
        Rule {
            fail,
            ..rule(name, by_user, action)
        }
    };
    let rest = |action| rule("rest", SessionConditions::default(), action);
    let (open, closed) = (Fail::Open, Fail::Closed);
    let elsewhere = Rule {
        uids: vec![7],
        ..rest(Action::Deny)
    };
    for (rules, expected) in [
        (vec![asks("s", open)], ("default", Action::Bypass)),
        (vec![asks("s", closed)], ("s", Action::Deny)),
        (
            vec![asks("s", open), asks("t", closed)],
            ("t", Action::Deny),
        ),
        (
            vec![asks("s", open), asks("t", open), rest(Action::Enrich)],
            ("rest", Action::Enrich),
        ),
        (
            vec![asks("s", open), elsewhere],
            ("default", Action::Bypass),
        ),
    ] {
        let policy = policy(rules);
        let instead = policy.met_unknown(0);
        assert_eq!((instead.rule.as_str(), instead.action), expected);
        let seen = Session::default().closed();
        assert_eq!(
            policy.decide(&candidate(), &seen),
            Decision::Decided(instead)
        );
    }
}

#[test]
fn the_kernel_asks_the_agent_where_a_session_rule_may_hold() {
    let by_user = SessionConditions {
        users: vec![pattern("a")],
        ..SessionConditions::default()
    };
    let policy = policy(vec![
        rule("session", by_user, Action::Deny),
        rule("rest", SessionConditions::default(), Action::Bypass),
    ]);
    let met = policy.first_match(&candidate());
    assert_eq!(
        (met.index, met.action, met.fail),
        (Some(0), Action::Enrich, Fail::Closed)
    );
    assert!(met.session && policy.names_sessions());
}

#[test]
fn a_later_rule_decides_when_a_session_rule_does_not_hold() {
    let by = |tls, users: &[&str]| SessionConditions {
        users: users.iter().map(|u| pattern(u)).collect(),
        tls,
        ..SessionConditions::default()
    };
    let policy = policy(vec![
        rule("encrypted", by(Some(true), &[]), Action::Enrich),
        rule("alice", by(None, &["alice"]), Action::Deny),
        rule("rest", SessionConditions::default(), Action::Observe),
    ]);
    let (mut session, c) = (Session::default(), candidate());
    let decided = |session: &Session| match policy.decide(&c, session) {
        Decision::Decided(met) => Some(met.rule.to_string()),
        Decision::Undecided => None,
    };
    let names = |session: &Session| -> Vec<String> {
        let possible = policy.possible(&c, session);
        possible.map(|p| p.met.rule.to_string()).collect()
    };
    assert_eq!(decided(&session), None);
    assert_eq!(names(&session), ["encrypted", "alice", "rest"]);
    session.tls = Fact::Is(false);
    assert_eq!(decided(&session), None);
    assert_eq!(names(&session), ["alice", "rest"]);
    session.user = Fact::Is("bob".into());
    assert_eq!(decided(&session).as_deref(), Some("rest"));
}

#[test]
fn a_range_of_ports_is_each_of_them() {
    for (text, ports) in [
        (":9042-9044", 9042..=9044),
        ("10.1.0.0/16:9042-9042", 9042..=9042),
        ("[fd00::/8]:1-128", 1..=128),
        (":9042", 9042..=9042),
    ] {
        let targets = Target::parse_all(text).unwrap();
        let found: Vec<u16> = targets.iter().filter_map(|target| target.port).collect();
        assert_eq!(found, ports.collect::<Vec<_>>(), "{text}");
        let network = Target::parse(text.split_once('-').map_or(text, |(first, _)| first));
        assert!(
            targets
                .iter()
                .all(|t| t.network == network.as_ref().unwrap().network)
        );
    }
    for text in [
        ":9044-9042",
        ":1-129",
        ":0-3",
        ":9042-",
        ":a-b",
        "10.1.2.3:9042-70000",
        "9042-9044",
    ] {
        assert!(Target::parse_all(text).is_err(), "{text}");
    }
}

#[test]
fn a_pattern_is_exact_or_a_beginning() {
    for (text, legal) in [
        ("a", true),
        ("a*", true),
        ("*", true),
        ("", false),
        ("a*b", false),
        ("**", false),
        (&"x".repeat(MAX_FACT_BYTES + 1), false),
    ] {
        assert_eq!(TextPattern::parse(text).is_some(), legal, "{text}");
    }
    assert_eq!(pattern("ab*").to_string(), "ab*");
}

#[test]
fn conditions_say_what_they_name_what_is_open_and_what_is_missed() {
    use SessionKey::{Keyspace, Tls, User};
    let conditions = SessionConditions {
        users: vec![pattern("a")],
        keyspaces: vec![pattern("k")],
        tls: Some(false),
        ..SessionConditions::default()
    };
    let session = Session {
        user: Fact::Is("b".into()),
        tls: Fact::Is(false),
        ..Session::default()
    };
    assert_eq!(
        conditions.named().collect::<Vec<_>>(),
        [User, Keyspace, Tls]
    );
    assert_eq!(conditions.open(&session).collect::<Vec<_>>(), [Keyspace]);
    assert_eq!(conditions.missed(&session).collect::<Vec<_>>(), [User]);
}

#[test]
fn backends_are_those_of_the_first_rule_that_says_which() {
    let by_user = || SessionConditions {
        users: vec![pattern("a")],
        ..SessionConditions::default()
    };
    let plain = |name: &str| rule(name, SessionConditions::default(), Action::Bypass);
    let balanced = |name: &str| Rule {
        backends: vec!["10.1.0.1:9042".parse().unwrap()],
        ..plain(name)
    };
    let settled = |rules: Vec<Rule>| {
        let policy = policy(rules);
        policy.balances(&candidate()).map(|r| r.name.to_string())
    };
    let mark = Rule {
        is_mark: true,
        ..plain("mark-1")
    };
    let session = rule("session", by_user(), Action::Deny);
    let both = settled(vec![mark, session.clone(), balanced("b"), balanced("c")]);
    assert_eq!(both.as_deref(), Some("b"));
    // It holds, and has none.
    assert_eq!(settled(vec![plain("a"), balanced("b")]), None);
    let elsewhere = Rule {
        uids: vec![candidate().uid + 1],
        ..plain("a")
    };
    let passed_over = settled(vec![elsewhere, balanced("b")]);
    assert_eq!(passed_over.as_deref(), Some("b"));
    let own = Rule {
        backends: balanced("").backends,
        ..session
    };
    let own = settled(vec![own, balanced("b")]);
    assert_eq!(own.as_deref(), Some("session"));
    assert_eq!(settled(Vec::new()), None);
}

#[test]
fn who_is_elsewhere_is_no_process_of_this_host() {
    let from = |networks: &[&str]| networks.iter().map(|n| n.parse().unwrap()).collect();
    let elsewhere = |ip: &str| Candidate {
        from: Some(ip.parse().unwrap()),
        ..candidate()
    };
    let by = |from: Vec<IpNet>, uids: Vec<u32>| Rule {
        from,
        uids,
        ..rule("r", SessionConditions::default(), Action::Deny)
    };
    let near = by(from(&["10.2.0.0/16", "fd00::/8"]), Vec::new());
    assert_eq!(near.miss(&candidate()), Some(Miss::From));
    assert_eq!(near.miss(&elsewhere("10.3.0.1")), Some(Miss::From));
    for ip in ["10.2.0.1", "fd00::1", "::ffff:10.2.0.1"] {
        assert_eq!(near.miss(&elsewhere(ip)), None, "{ip}");
    }
    let root = by(Vec::new(), vec![candidate().uid]);
    assert_eq!(root.miss(&candidate()), None);
    assert_eq!(root.miss(&elsewhere("10.2.0.1")), Some(Miss::Uid));
    let everybody = by(Vec::new(), Vec::new());
    assert_eq!(everybody.miss(&candidate()), None);
    assert_eq!(everybody.miss(&elsewhere("10.2.0.1")), Some(Miss::From));
    let policy = Policy {
        rules: vec![everybody],
        default_action: Action::Deny,
        default_fail: Fail::Closed,
    };
    assert_eq!(policy.first_match(&candidate()).index, Some(0));
    let left_alone = policy.first_match(&elsewhere("10.2.0.1"));
    assert_eq!(left_alone.index, None);
    assert_eq!(left_alone.action, Action::Bypass);
}

fn own_netns_inode() -> Option<u32> {
    let namespace = fs::metadata("/proc/thread-self/ns/net").ok()?;
    namespace.ino().try_into().ok()
}

#[test]
fn a_namespace_is_named_by_number_name_or_path() {
    let at = |path: &str| Some(NetnsPattern::At(path.into()));
    for (text, expected) in [
        ("4026532008", Some(NetnsPattern::Inode(4_026_532_008))),
        ("db", at("/run/netns/db")),
        ("/proc/1/ns/net", at("/proc/1/ns/net")),
        ("", None),
        ("a/b", None),
        ("..", None),
        ("/run/../x", None),
    ] {
        assert_eq!(NetnsPattern::parse(text), expected, "{text:?}");
    }
    let own = NetnsPattern::At("/proc/self/ns/net".into());
    assert_eq!(own.inode(), own_netns_inode());
    let missing = NetnsPattern::At("/run/netns/there-is-none".into());
    assert_eq!(missing.inode(), None);
}
