//! Decisions that are remembered: whose later connections are left alone, and whose are not.

mod host;

use std::fs;

use host::{Program, host, listen, serve_all, switched_host};
use nix::sys::signal::Signal;
use sandbox::Cgroup;

use crate::common::eventually;

/// The kernel meets `first`, and who has no user is decided by `rest`.
fn policy(lasts: &str) -> String {
    format!(
        "[[rule]]\nname = \"first\"\nto = [\":PORT\"]\nuser = [\"somebody\"]\naction = \"enrich\"\n\
         fail = \"closed\"\n\
         [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\nprotocol = [\"v4\"]\naction = \"bypass\"\n\
         fail = \"closed\"\nremember = {lasts:?}\n"
    )
}

const VISITS: &str = "first intercepted";
const REMEMBERED: &str = "rest remembered";

#[test]
fn later_connections_of_a_process_are_left_alone() {
    host(&policy("10m"), |host| {
        let mut program = host.program();
        assert_eq!(host.remembered(), 0);
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.remembered(), 1);
        // The first one's socket is closed by this.
        assert_eq!(host.dial(&mut program), REMEMBERED);
        eventually("the flow ends", || {
            host.agent.metric("underpass_flows").unwrap() == 0.0
        });
        let in_thread = format!("in_thread {}", host.database.port());
        assert_eq!(host.dials(&mut program, &in_thread), REMEMBERED);
        assert_eq!(host.agent.metric("underpass_flows").unwrap(), 0.0);
        let decided = "underpass_sessions_decided_total{action=\"bypass\",rule=\"rest\"}";
        assert_eq!(host.agent.metric(decided).unwrap(), 1.0);
        // Not one byte goes through an agent that does not run.
        host.agent.signal(Signal::SIGSTOP).unwrap();
        let said = program.obey(&format!("dial {}", host.database.port()));
        let talked = program.obey("talk hello");
        host.agent.signal(Signal::SIGCONT).unwrap();
        assert!(!said.starts_with("refused"), "{said}");
        assert_eq!(talked, "hello");
        assert_eq!(host.remembered(), 1);
    });
}

/// A process whose decision finds no room goes on coming to the agent, until others are forgotten.
#[test]
fn as_many_are_remembered_as_there_is_room_for() {
    const ENTRIES: u64 = 8;
    switched_host("UNDERPASS_TEST_HOOKS=entries=8", &policy("10m"), |host| {
        let mut program = host.program();
        // Each name is another program's.
        let mut dial_as = |host: &host::Host<'_>, n: u64| {
            program.obey(&format!("rename p{n}"));
            host.dial(&mut program)
        };
        let full = || {
            let sample = "underpass_not_remembered_total{reason=\"full\"}";
            host.agent.metric(sample).unwrap()
        };
        for n in 0..ENTRIES {
            assert_eq!(dial_as(host, n), VISITS);
        }
        assert_eq!((host.remembered(), full()), (ENTRIES, 0.0));
        for times in [1.0, 2.0] {
            assert_eq!(dial_as(host, ENTRIES), VISITS);
            assert_eq!((host.remembered(), full()), (ENTRIES, times));
        }
        assert_eq!(dial_as(host, 0), REMEMBERED);
        host.reload(&policy("20m"));
        assert_eq!(host.remembered(), 0);
        assert_eq!(dial_as(host, ENTRIES), VISITS);
        assert_eq!(dial_as(host, ENTRIES), REMEMBERED);
        assert_eq!(full(), 2.0);
    });
}

#[test]
fn nobody_else_is_remembered() {
    host(&policy("10m"), |host| {
        let elsewhere = serve_all(host.sandbox.server(listen).unwrap());
        let port = host.database.port();
        let both = policy("10m").replace(":PORT", &format!(":PORT\", \":{}", elsewhere.port()));
        host.reload(&both);
        // It goes after the program that was in it.
        let inner = host.sandbox.cgroup.child("inner").unwrap();
        let mut program = host.program();
        let pid = program.pid();
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        // Another one of the same name.
        assert_eq!(host.dial(&mut host.program()), VISITS);
        // Another endpoint.
        let there = format!("dial {}", elsewhere.port());
        assert_eq!(host.dials(&mut program, &there), VISITS);
        assert_eq!(host.dials(&mut program, &there), REMEMBERED);
        // A socket that may go somewhere else.
        let bound = format!("dial {port} lo");
        assert_eq!(host.dials(&mut program, &bound), "first failed_closed");
        // Another user, another name, another cgroup; what was remembered still is.
        program.obey("real_user 4242");
        assert_eq!(host.dial(&mut program), VISITS);
        program.obey("real_user 0");
        assert_eq!(host.dial(&mut program), REMEMBERED);
        program.obey("rename another");
        assert_eq!(host.dial(&mut program), VISITS);
        program.obey("rename python3");
        assert_eq!(host.dial(&mut program), REMEMBERED);
        let move_to = |cgroup: &Cgroup| {
            fs::write(cgroup.path().join("cgroup.procs"), pid.to_string()).unwrap();
        };
        move_to(&inner);
        assert_eq!(host.dial(&mut program), VISITS);
        move_to(&host.sandbox.cgroup);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        // The same process with another program.
        program.obey("execute");
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        // A child.
        program.obey("fork");
        assert_eq!(host.dial(&mut program), VISITS);
    });
}

#[test]
fn who_gets_the_number_of_a_process_that_has_ended_is_somebody_else() {
    host(&policy("10m"), |host| {
        let mut program = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        let pid = program.pid();
        drop(program);
        assert_eq!(host.remembered(), 1);
        let mut heir = host.program();
        assert_eq!(heir.obey(&format!("fork_as {pid}")), pid.to_string());
        assert_eq!(host.dial(&mut heir), VISITS);
        assert_eq!(host.dial(&mut heir), REMEMBERED);
        drop(heir);
        eventually("what ended is forgotten", || host.remembered() == 0);
    });
}

#[test]
fn it_expires() {
    host(&policy("3s"), |host| {
        let mut program = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        // Its use does not prolong it.
        eventually("it expires", || host.dial(&mut program) == VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
    });
}

#[test]
fn a_reload_forgets() {
    host(&policy("10m"), |host| {
        let mut program = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        for _ in 0..3 {
            assert_eq!(host.dial(&mut program), REMEMBERED);
            // The slots and generations of before come back.
            host.reload(&policy("10m"));
            assert_eq!(host.remembered(), 0);
            assert_eq!(host.dial(&mut program), VISITS);
        }
        // A rule that decides at connect() comes before what is remembered.
        let deny = "[[rule]]\nname = \"no\"\nto = [\":PORT\"]\naction = \"deny\"\n";
        host.reload(&format!("{deny}{}", policy("10m")));
        assert_eq!(host.dial(&mut program), "no denied");
    });
}

/// Whomever it means, and again when it ends.
#[test]
fn a_mark_forgets() {
    host(&policy("10m"), |host| {
        let mut program = host.program();
        let is_asked_again = |program: &mut Program| {
            assert_eq!(host.remembered(), 0);
            assert_eq!(host.dial(program), VISITS);
            assert_eq!(host.dial(program), REMEMBERED);
        };
        is_asked_again(&mut program);
        host.operator(&["mark", "to=:1", "deny"]);
        is_asked_again(&mut program);
        host.operator(&["unmark", "1"]);
        is_asked_again(&mut program);
        // Of flows that run only.
        host.operator(&["mark", "rule=nobodys", "enrich"]);
        is_asked_again(&mut program);
        // It asks for the session: nobody gets past it because of what he was before.
        host.operator(&["mark", "user=nobody,to=:PORT", "deny"]);
        assert_eq!(host.remembered(), 0);
        assert_eq!(host.dial(&mut program), "mark-3 intercepted");
    });
}

#[test]
fn only_what_a_remembering_rule_decides_is_remembered() {
    // What copies of the handshake say is not remembered, and need not be.
    let keyspace = "[[rule]]\nname = \"first\"\nto = [\":PORT\"]\nkeyspace = [\"shop\"]\npath = \"inline\"\n\
                    action = \"bypass\"\nremember = \"10m\"\n\
                    [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"bypass\"\n";
    host(keyspace, |host| {
        let dial = format!("dial {}", host.database.port());
        let mut program = host.program();
        // Not decided yet.
        program.obey(&dial);
        program.obey(&dial);
        assert_eq!(host.remembered(), 0);
        program.obey("use shop");
        assert_eq!(host.remembered(), 1);
        assert_eq!(host.dial(&mut program), "first remembered");
        // Decided by a rule that does not remember: what is no CQL has no keyspace.
        let mut other = host.program();
        assert_eq!(host.dial(&mut other), VISITS);
        assert_eq!(host.dial(&mut other), VISITS);
        assert_eq!(host.remembered(), 1);
    });
}

#[test]
fn a_rule_behind_a_session_rule_remembers_too() {
    let rest = "[[rule]]\nname = \"first\"\nto = [\":PORT\"]\nuser = [\"somebody\"]\n\
                action = \"enrich\"\n\
                [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"bypass\"\nremember = \"1h\"\n";
    host(rest, |host| {
        let mut program = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
    });
}

#[test]
fn what_is_remembered_takes_the_shortcut_where_its_rule_says_so() {
    let rest = "[[rule]]\nname = \"first\"\nto = [\":PORT\"]\nuser = [\"somebody\"]\n\
                action = \"enrich\"\n\
                [[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"bypass\"\nremember = \"1h\"\n\
                shortcut = true\n";
    host("", |host| {
        // Its end is enrolled only where the hooks see it.
        host.database = serve_all(host.sandbox.client(listen).unwrap());
        host.reload(rest);
        let on_shortcut = || host.agent.metric("underpass_shortcut_flows").unwrap();
        let mut program = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(on_shortcut(), 0.0);
        assert_eq!(host.dial(&mut program), REMEMBERED);
        assert_eq!(on_shortcut(), 1.0);
    });
}

#[test]
fn without_the_agent_who_is_remembered_passes_until_it_expires() {
    host(&policy("5s"), |host| {
        let dial = format!("dial {}", host.database.port());
        let mut program = host.program();
        let mut other = host.program();
        assert_eq!(host.dial(&mut program), VISITS);
        host.agent.kill().unwrap();
        let refused = format!("refused {}", nix::errno::Errno::EPERM as i32);
        let said = program.obey(&dial);
        assert!(said.starts_with("127.0.0.1:"), "{said}");
        assert_eq!(program.obey("talk hello"), "hello");
        assert_eq!(other.obey(&dial), refused);
        eventually("it expires", || program.obey(&dial) == refused);
        // Another agent remembers nothing of what this one did.
        host.agent.restart().unwrap();
        assert_eq!(host.remembered(), 0);
        assert_eq!(host.dial(&mut program), VISITS);
        assert_eq!(host.dial(&mut program), REMEMBERED);
    });
}
