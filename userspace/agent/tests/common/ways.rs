//! Every way in which bytes travel, each with a rule of its own.

use std::{net::TcpListener, path::Path};

use integrity::{CLIENTS_KEYSPACE, Choices, Cql, Options, Plan, SERVERS_KEYSPACE, Server};
use sandbox::{Agent, Sandbox};

const BY_EPOLL: [&str; 2] = ["epoll-edge", "epoll-level"];

/// Ends on the shortcut and of short legs, past which splice(2) finds nothing.
pub const PAST_TCP: [&str; 9] = [
    "epoll-edge",
    "epoll-level",
    "recv",
    "peek",
    "fionread",
    "asks-first",
    "readv",
    "timestamps",
    "waitall",
];

/// Ends on the shortcut after whom nobody has to look while the agent is dead.
const UNATTENDED: [&str; 8] = [
    "epoll-edge",
    "epoll-level",
    "recv",
    "peek",
    "fionread",
    "readv",
    "timestamps",
    "waitall",
];

/// Shapes that do not choose their own way to wait.
const BLOCKS: [&str; 5] = ["blocking", "ping-pong", "duplex", "bulk-up", "bulk-down"];

/// A way, and what is so of those that take it.
pub struct Way {
    pub name: &'static str,
    rule: &'static str,
    /// The agent is no part of it.
    pub outlives: bool,
    cql: bool,
    /// How both ends wait.
    waiting: &'static [&'static str],
}

const fn way(name: &'static str, rule: &'static str) -> Way {
    Way {
        name,
        rule,
        outlives: false,
        cql: false,
        waiting: &[],
    }
}

pub const WAYS: [Way; 7] = [
    Way {
        outlives: true,
        ..way("bypass", "action = \"bypass\"")
    },
    Way {
        outlives: true,
        cql: true,
        ..way("observe", "action = \"observe\"")
    },
    Way {
        outlives: true,
        waiting: &UNATTENDED,
        ..way("shortcut", "action = \"bypass\"\nshortcut = true")
    },
    Way {
        cql: true,
        waiting: &BY_EPOLL,
        ..way(
            "splice",
            "action = \"bypass\"\ndriver = [\"*\"]\npath = \"inline\"",
        )
    },
    // What is no CQL is spliced, too, unless the client blocks.
    Way {
        waiting: &BLOCKS,
        ..way("relay", "action = \"enrich\"")
    },
    Way {
        cql: true,
        ..way("enrich", "action = \"enrich\"\nshortcut = false")
    },
    Way {
        cql: true,
        waiting: &PAST_TCP,
        ..way("short", "action = \"enrich\"\nshortcut = true")
    },
];

impl Way {
    pub fn server(&self, sandbox: &Sandbox) -> Server {
        let options = Options {
            never_blocks: self.is_in_sockmap(),
            ..Options::default()
        };
        let start = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            Server::start_with(listener, options).unwrap()
        };
        // The shortcut needs both ends beneath the agent's cgroup.
        match self.name {
            "shortcut" => sandbox.client(start).unwrap(),
            _ => sandbox.server(start).unwrap(),
        }
    }

    pub fn plan(&self, server: &Server) -> Plan {
        Plan {
            choices: Choices::named(self.waiting).unwrap(),
            cql: self.cql.then(Cql::default),
            ..Plan::new(server.addr())
        }
    }

    fn is_in_sockmap(&self) -> bool {
        [&BY_EPOLL[..], &UNATTENDED, &PAST_TCP].contains(&self.waiting)
    }

    /// Findings that a run of this way may have: a socket in a sockmap answers to FIONREAD what is
    /// past TCP.
    pub fn allowed(&self) -> Vec<String> {
        let fionread = self.is_in_sockmap().then(|| "fionread".to_owned());
        fionread.into_iter().collect()
    }
}

/// An agent with a rule for each way.
pub fn agent<'a>(
    binary: &Path,
    sandbox: &'a Sandbox,
    settings: &str,
    servers: &[Server; WAYS.len()],
) -> Agent<'a> {
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    Agent::start(binary, netns, cgroup, settings, &rules(servers)).unwrap()
}

/// A rule for each way.
pub fn rules(servers: &[Server; WAYS.len()]) -> String {
    let rule = |(way, server): (&Way, &Server)| {
        let (name, rule, port) = (way.name, way.rule, server.addr().port());
        format!("[[rule]]\nname = \"{name}\"\nto = [\":{port}\"]\n{rule}\n")
    };
    WAYS.iter().zip(servers).map(rule).collect()
}

/// A rule's one step, which has each side of its flows see the keyspace by that side's name ([`Cql::is_edited`]).
pub fn edit() -> String {
    let names = format!("{{ {CLIENTS_KEYSPACE} = \"{SERVERS_KEYSPACE}\" }}");
    format!("pipeline = [{{ transform = \"rewrite\", keyspaces = {names} }}]\n")
}

/// All samples of a metric that begin so, added up.
pub fn sum(agent: &Agent<'_>, name: &str) -> f64 {
    let metrics = agent.metrics().unwrap();
    let samples = metrics.iter().filter(|(n, _)| n.starts_with(name));
    samples.map(|(_, value)| value).sum()
}
