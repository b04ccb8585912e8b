//! Mirrors that speak TLS: who they have to be, what they are shown, and what is said of mistakes.

use std::fs;

use crate::common::{
    certs::{Authority, file},
    eventually,
    front::Front,
    world::world,
};

#[test]
fn writes_reach_one_whose_certificate_is_good() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, agents) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &authority.pem());
    let (cert, key) = agents.signs(&["agent"]).write(folder.path(), "own");
    // More than one record, and more than a socket takes at once.
    let large = "x".repeat(4 << 20);
    world(|world| {
        let mirror = world.mirror();
        let named = authority.signs(&["mirror.example"]);
        let front = Front::of(
            world.sandbox,
            mirror.addr(),
            &Authority::server(&named, Some(&agents)),
        );
        world.rule(
            front.addr,
            &format!(
                ", timeout = \"10s\", dual_write = true, compare = true, tls = {{ ca = {ca:?}, server_name = \
                 \"mirror.example\", cert = {cert:?}, key = {key:?} }}"
            ),
        );
        let mut client = world.client(4);
        for (id, value) in [(1, "one"), (2, &large), (3, "three")] {
            client.inserts(id, value);
            let found = world.value_at(mirror.addr(), id);
            assert!(found.as_deref() == Some(value), "{id}");
        }
        let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
        let execute = client.execute(&id, &[&4_i32.to_be_bytes(), b"bound"]);
        client.ask(&execute);
        assert_eq!(world.value_at(mirror.addr(), 4).as_deref(), Some("bound"));
        assert_eq!(world.fate("acknowledged"), 4);
    });
}

#[test]
fn one_whose_certificate_is_not_good_gets_nothing_until_that_is_mended() {
    let folder = tempfile::tempdir().unwrap();
    let (authority, other) = (Authority::new(), Authority::new());
    let ca = file(folder.path(), "ca.crt", &other.pem());
    world(|world| {
        let mirror = world.mirror();
        let signed = authority.signs(&["127.0.0.1"]);
        let front = Front::of(
            world.sandbox,
            mirror.addr(),
            &Authority::server(&signed, None),
        );
        let settings = format!(", timeout = \"10s\", tls = {{ ca = {ca:?} }}");
        world.rule(front.addr, &settings);
        let mut client = world.client(4);
        client.inserts(1, "one");
        eventually("it is not trusted", || world.fate("away") == 1);
        let advice = "have `ca` of its `tls` hold who signed its certificate";
        eventually("it is told", || world.agent.log().contains(advice));
        assert_eq!(world.value_at(mirror.addr(), 1), None);
        // The same settings, of another file.
        fs::write(&ca, authority.pem()).unwrap();
        world.rule(front.addr, &settings);
        let mut next = 2;
        eventually("it is asked", || {
            client.inserts(next, "again");
            next += 1;
            world.fate("acknowledged") > 0
        });
    });
}

#[test]
fn one_that_does_not_encrypt_gets_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ca = file(folder.path(), "ca.crt", &Authority::new().pem());
    world(|world| {
        let mirror = world.mirror();
        let settings = format!(", timeout = \"10s\", tls = {{ ca = {ca:?} }}");
        world.rule(mirror.addr(), &settings);
        let mut client = world.client(4);
        client.inserts(1, "one");
        eventually("it is not asked", || world.fate("away") == 1);
        assert_eq!(world.value_at(mirror.addr(), 1), None);
    });
}
