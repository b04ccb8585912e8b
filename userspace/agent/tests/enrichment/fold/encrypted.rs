//! Rules with `upstream_tls`: a shared connection is encrypted as its flows' own are, or there is none.

use std::{
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::Arc,
};

use cql_node::NodeOptions;
use rustls::{ClientConnection, ServerConfig, StreamOwned};
use tempfile::TempDir;

use super::{
    FOLD, RESULT, SELECT, asked, became, ended, everybody_at,
    hostile::WAITS,
    long::passes_both_ways,
    peer::{Peer, connect},
    peer_at as peer, rule_with,
    scripted::{Does, Scripted, has, stream_of},
    shared,
    short::{LETS_DATABASE_IN, long_legs, short_legs},
    until_folded,
};
use crate::common::{
    certs::{Authority, NAME, file},
    eventually,
    frames::{READY, query, void},
    front::{Front, Went},
    world::{World, plain, world, world_of},
};

const AUTHENTICATE: u8 = 0x03;

/// Certificates of databases, and whom a rule of theirs believes.
struct Believed {
    folder: TempDir,
    authority: Authority,
}

impl Believed {
    fn new() -> Self {
        let believed = Self {
            folder: tempfile::tempdir().unwrap(),
            authority: Authority::new(),
        };
        believed.is(&believed.authority);
        believed
    }

    fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.crt")
    }

    /// From the next reading of the file on.
    fn is(&self, authority: &Authority) {
        file(self.folder.path(), "ca.crt", &authority.pem());
    }

    /// A database's, with these names.
    fn server(&self, names: &[&str]) -> Arc<ServerConfig> {
        Authority::server(&self.authority.signs(names), None)
    }

    /// `upstream_tls`, with more of its keys.
    fn upstream(&self, keys: &str) -> String {
        let ca = self.ca();
        format!("fail = \"closed\"\nupstream_tls = {{ ca = {ca:?}{keys} }}")
    }

    /// By name.
    fn named(&self) -> String {
        self.upstream(&format!(", server_name = \"{NAME}\""))
    }

    /// `tls` of an agent that has these names, for clients that may encrypt.
    fn accepts(&self, names: &[&str]) -> String {
        let (cert, key) = self
            .authority
            .signs(names)
            .write(self.folder.path(), "agent");
        format!("tls = {{ cert = {cert:?}, key = {key:?}, required = false }}")
    }

    /// A client that encrypts, and calls the database so.
    fn client(
        &self,
        world: &World<'_>,
        to: SocketAddr,
        name: &'static str,
    ) -> Peer<StreamOwned<ClientConnection, TcpStream>> {
        let stream = world.sandbox.client(|| connect(to)).unwrap();
        let config = self.authority.client(None);
        let connection = ClientConnection::new(config, name.try_into().unwrap()).unwrap();
        Peer::begin(StreamOwned::new(connection, stream), 4, None)
    }
}

/// Handshakes with databases: with this reason those that failed, without those that did not.
fn handshakes(world: &World<'_>, failed: Option<&str>) -> usize {
    let sample = match failed {
        None => "_total{side=\"database\"}".to_owned(),
        Some(reason) => format!("_failed_total{{reason=\"{reason}\",side=\"database\"}}"),
    };
    let sample = format!("underpass_tls_handshakes{sample}");
    world.agent.metric(&sample).unwrap() as usize
}

/// Asks, and is answered by its own connection, until this holds.
fn asks_until(what: &str, world: &World<'_>, peer: &mut Peer, holds: impl Fn() -> bool) {
    let before = became(world, "folded");
    eventually(what, || {
        assert_eq!(peer.ask(&query(peer.version, 1, SELECT)).0, RESULT);
        holds()
    });
    assert_eq!(became(world, "folded"), before, "{what}");
}

#[test]
fn everybody_has_their_own_answers_by_one_encrypted_connection() {
    let (believed, agents) = (Believed::new(), Authority::new());
    let (cert, key) = agents
        .signs(&["agent"])
        .write(believed.folder.path(), "own");
    let keys = format!(", server_name = \"{NAME}\", cert = {cert:?}, key = {key:?}");
    let signed = believed.authority.signs(&[NAME]);
    // It wants a certificate, as much from a shared connection as from the others.
    let shows = Authority::server(&signed, Some(&agents));
    for version in [4, 5] {
        world_of(2, NodeOptions::default(), |world| {
            let front = Front::of(world.sandbox, world.database.addr(), &shows);
            rule_with(world, front.addr, FOLD, &believed.upstream(&keys));
            everybody_at(world, front.addr, version);
            let name = Some(NAME.to_owned());
            let seen = front.seen();
            assert_eq!(seen.len(), 9, "each has one, and all of them another");
            assert!(seen.iter().all(|(_, called)| *called == name), "{seen:?}");
            assert_eq!(handshakes(world, None), 9, "each is counted, whose it is");
            eventually("all have gone, and said so", || {
                (shared(world), front.count(Went::Ended)) == (0, 9)
            });
        });
    }
}

#[test]
fn who_calls_a_database_otherwise_has_a_connection_of_that_name() {
    let believed = Believed::new();
    let names = ["a.example", "b.example", "127.0.0.1"];
    let shows = believed.server(&[&names[..], &[NAME]].concat());
    let accepts = believed.accepts(&names);
    world(|world| {
        let front = Front::of(world.sandbox, world.database.addr(), &shows);
        let to = front.addr;
        let keys = [&accepts[..], &believed.upstream("")].join("\n");
        rule_with(world, to, FOLD, &keys);
        let mut encrypted =
            ["a.example", "b.example", "a.example"].map(|name| believed.client(world, to, name));
        let mut not = [(); 2].map(|()| peer(world, to, 4));
        encrypted.iter_mut().for_each(|p| until_folded(world, p));
        not.iter_mut().for_each(|p| until_folded(world, p));
        assert_eq!(shared(world), 3);
        let called = |name: Option<&str>| {
            let seen = front.seen();
            let those = seen.iter().filter(|(_, called)| called.as_deref() == name);
            those.count()
        };
        // Their own, and one that those of a name share; an address is no name.
        let own = ["a.example", "b.example"].map(|name| called(Some(name)));
        assert_eq!((own, called(None)), ([3, 2], 3));
        drop((encrypted, not));
        eventually("all have gone", || shared(world) == 0);

        // The rule has one name for it, so nobody's differs.
        let keys = [&accepts[..], &believed.named()].join("\n");
        rule_with(world, to, FOLD, &keys);
        let mut encrypted = ["a.example", "b.example"].map(|name| believed.client(world, to, name));
        let mut not = peer(world, to, 4);
        encrypted.iter_mut().for_each(|p| until_folded(world, p));
        until_folded(world, &mut not);
        assert_eq!((shared(world), called(Some(NAME))), (1, 4));
    });
}

#[test]
fn clients_whose_tls_ends_in_the_agent_share_with_those_that_have_none() {
    let believed = Believed::new();
    world(|world| {
        let to = world.database.addr();
        let keys = format!("fail = \"closed\"\n{}", believed.accepts(&["a.example"]));
        rule_with(world, to, FOLD, &keys);
        let mut encrypted = believed.client(world, to, "a.example");
        let mut not = peer(world, to, 4);
        until_folded(world, &mut encrypted);
        until_folded(world, &mut not);
        assert_eq!((shared(world), asked(world).len()), (1, 3));
    });
}

#[test]
fn a_flow_from_before_its_rule_wanted_tls_shares_nothing() {
    let options = NodeOptions::of_user("app", "secret");
    let believed = Believed::new();
    world_of(1, options, |world| {
        let to = world.database.addr();
        let of_user = "user = [\"app\"]\n";
        rule_with(world, to, FOLD, of_user);
        let stream = world.sandbox.client(|| connect(to)).unwrap();
        let (mut early, told) = Peer::starts(stream, 4).unwrap();
        assert_eq!(told, AUTHENTICATE);
        // By now its own connection is as it is, and its rule is not decided.
        let keys = format!("{of_user}{}", believed.named());
        rule_with(world, to, FOLD, &keys);
        assert_eq!(early.logs_in(&plain("", "app", "secret")).unwrap(), READY);
        for asked in 1..=20 {
            assert_eq!(early.ask(&query(4, 1, SELECT)).0, RESULT);
            assert_eq!(became(world, "unencrypted"), asked);
        }
        assert_eq!((became(world, "folded"), asked(world).len()), (0, 1));
    });
}

#[test]
fn certificates_that_are_read_again_and_the_same_change_nothing() {
    let believed = Believed::new();
    world(|world| {
        let shows = believed.server(&[NAME]);
        let front = Front::of(world.sandbox, world.database.addr(), &shows);
        rule_with(world, front.addr, FOLD, &believed.named());
        let mut early = peer(world, front.addr, 4);
        until_folded(world, &mut early);
        // Also where they were written again.
        believed.is(&believed.authority);
        rule_with(world, front.addr, FOLD, &believed.named());
        let mut late = peer(world, front.addr, 4);
        until_folded(world, &mut late);
        until_folded(world, &mut early);
        assert_eq!((shared(world), front.seen().len()), (1, 3));
    });
}

#[test]
fn renewed_certificates_are_those_of_another_connection() {
    let (believed, renewed) = (Believed::new(), Authority::new());
    let newer = Authority::server(&renewed.signs(&[NAME]), None);
    world(|world| {
        let shows = believed.server(&[NAME]);
        let front = Front::of(world.sandbox, world.database.addr(), &shows);
        rule_with(world, front.addr, FOLD, &believed.named());
        let mut early = peer(world, front.addr, 4);
        until_folded(world, &mut early);
        // The same settings, of other files.
        believed.is(&renewed);
        front.shows(Some(&newer));
        rule_with(world, front.addr, FOLD, &believed.named());
        let mut late = peer(world, front.addr, 4);
        until_folded(world, &mut late);
        until_folded(world, &mut early);
        assert_eq!(shared(world), 2);
        // The first is the flow's own. What those of before believe is not shown any more: they have no other one, and take
        // none of those who came later.
        front.cuts(1);
        eventually("it is lost", || ended(world, "closed") == 1);
        asks_until("no other one can begin", world, &mut early, || {
            ended(world, "refused") > 0
        });
        assert_eq!(shared(world), 1);
        until_folded(world, &mut late);
    });
}

#[test]
fn a_database_that_a_new_connection_cannot_believe_is_asked_by_those_that_could() {
    let believed = Believed::new();
    let (signed, stranger) = (believed.server(&[NAME]), Authority::new());
    let another = Authority::server(&stranger.signs(&[NAME]), None);
    let advice =
        "have `ca` of the rule's `upstream_tls` hold who signed the database's certificate";
    // The other one does not shake hands at all.
    for (shown, reason) in [(Some(&another), "unknown_issuer"), (None, "deadline")] {
        world(|world| {
            let front = Front::of(world.sandbox, world.database.addr(), &signed);
            rule_with(world, front.addr, FOLD, &believed.named());
            let mut peer = peer(world, front.addr, 5);
            front.shows(shown);
            asks_until("one is tried", world, &mut peer, || front.seen().len() > 1);
            asks_until("it is given up", world, &mut peer, || {
                ended(world, "refused") > 0
            });
            assert_eq!(asked(world).len(), 1, "nothing goes to the database");
            assert!(became(world, "away") > 0);
            assert_eq!(world.agent.log().contains(advice), shown.is_some());
            let tried = ended(world, "refused") as usize;
            assert!(handshakes(world, Some(reason)) >= tried, "{reason}");
            assert_eq!(handshakes(world, None), 1, "the flow's own");
            front.shows(Some(&signed));
            until_folded(world, &mut peer);
            assert_eq!((shared(world), handshakes(world, None)), (1, 2));
        });
    }
}

#[test]
fn one_that_ends_is_lost_whether_that_is_said_or_not() {
    let believed = Believed::new();
    let shows = believed.server(&[NAME]);
    for is_said in [true, false] {
        world(|world| {
            let database = Scripted::start(world, |_, asked| {
                if has(asked, "id = 7") {
                    return Does::Nothing;
                }
                match has(asked, "id = 8") {
                    true => Does::Ends,
                    false => Does::Says(void(4, stream_of(asked))),
                }
            });
            let front = Front::of(world.sandbox, database.addr, &shows);
            rule_with(world, front.addr, FOLD, &believed.named());
            let mut all = [(); 3].map(|()| peer(world, front.addr, 4));
            all.iter_mut().for_each(|peer| until_folded(world, peer));
            let [mut waits, mut ends, mut stands_by] = all;
            let before = became(world, "folded");
            waits.send(&[query(4, 3, WAITS)]);
            eventually("one waits", || became(world, "folded") > before);
            match is_said {
                true => ends.send(&[query(4, 3, "SELECT v FROM shop.orders WHERE id = 8")]),
                // Behind those of three flows.
                false => front.cuts(3),
            }
            waits.sees_loss();
            eventually("it is counted", || ended(world, "closed") == 1);
            assert_eq!(stands_by.ask(&query(4, 1, SELECT)).0, RESULT);
            until_folded(world, &mut stands_by);
            assert_eq!(shared(world), 1);
            drop((waits, ends, stands_by, front));
            database.ends();
        });
    }
}

#[test]
fn what_is_long_passes_both_ways() {
    let believed = Believed::new();
    let shows = believed.server(&[NAME]);
    for version in [4, 5] {
        world_of(2, NodeOptions::default(), |world| {
            let front = Front::of(world.sandbox, world.database.addr(), &shows);
            rule_with(world, front.addr, FOLD, &believed.named());
            passes_both_ways(world, front.addr, version);
        });
    }
}

#[test]
fn an_encrypted_connection_takes_tcp() {
    let believed = Believed::new();
    let shows = believed.server(&[NAME]);
    world(|world| {
        let front = Front::of(world.sandbox, world.database.addr(), &shows);
        let keys = format!("{LETS_DATABASE_IN}\n{}", believed.named());
        rule_with(world, front.addr, FOLD, &keys);
        let mut peer = peer(world, front.addr, 4);
        until_folded(world, &mut peer);
        // Its own, and the shared one.
        assert_eq!((long_legs(world, "tls"), short_legs(world)), (2, 0));
        assert!(
            world
                .agent
                .log()
                .contains("a shared connection takes TCP: it speaks TLS")
        );
    });
}
