//! Tests of peers that do not start, and of the messages about it.
#![expect(clippy::unwrap_used, reason = "tests say what they expect by failing")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use peers::{Overrides, Setup};

/// A shell script in place of a proxy.
fn script(folder: &Path, text: &str) -> PathBuf {
    let path = folder.join("proxy.sh");
    sandbox::program::script(&path, text).unwrap();
    path
}

fn setup(folder: &Path) -> Setup {
    Setup {
        host: std::net::Ipv4Addr::LOCALHOST,
        backends: vec!["127.0.0.1:9".parse().unwrap()],
        folder: folder.join("run"),
    }
}

/// Returns the message when `binary` is started as `name`.
fn failure(folder: &Path, name: &str, binary: &Path) -> String {
    let peer = peers::named(name).unwrap();
    let overrides = Overrides::parse([format!("{name}={}", binary.display())]).unwrap();
    let found = peer.find(&overrides).unwrap();
    let error = peer.start(&found, &setup(folder)).unwrap_err();
    format!("{error:#}")
}

#[test]
fn every_peer_that_ends_at_once_is_told_of() {
    for peer in peers::all() {
        let folder = tempfile::tempdir().unwrap();
        let said = failure(folder.path(), peer.name, Path::new("/bin/false"));
        assert_eq!(
            said,
            format!(
                "{} did not start: it ended (exit status: 1); it said:\n(nothing)",
                peer.name
            )
        );
    }
}

#[test]
fn the_last_that_it_said_is_quoted() {
    let folder = tempfile::tempdir().unwrap();
    let binary = script(
        folder.path(),
        "i=0; while [ $i -lt 29 ]; do i=$((i+1)); echo line$i; done; echo no licence >&2; exit 3",
    );
    let said = failure(folder.path(), "haproxy", &binary);
    let last: Vec<_> = (11..30).map(|i| format!("line{i}\n")).collect();
    assert_eq!(
        said,
        format!(
            "haproxy did not start: it ended (exit status: 3); it said:\n{}no licence",
            last.concat()
        )
    );
}

#[test]
fn a_taken_port_is_tried_again_and_not_for_ever() {
    let folder = tempfile::tempdir().unwrap();
    // The ports it is started with, one line for each start.
    let ports = folder.path().join("ports");
    let binary = script(
        folder.path(),
        &format!(
            "[ \"$1\" = -db ] || exit\ngrep bind \"$3\" >>{}\necho 'bind: Address already in use'; exit 1",
            ports.display()
        ),
    );
    let said = failure(folder.path(), "haproxy", &binary);
    assert!(said.ends_with("bind: Address already in use"), "{said}");
    assert_eq!(fs::read_to_string(ports).unwrap().lines().count(), 5);
}
