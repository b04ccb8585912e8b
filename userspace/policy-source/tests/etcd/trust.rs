//! Refusals and trust: bad policies, an etcd of somebody else, hosts of one name.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use policy_source::{
    Fleet, Login, MAX_FRAGMENT_BYTES, MAX_FRAGMENTS, Pace, Settings, dial_plainly,
};
use sandbox::{Certificates, Etcd};
use tls::Dialling;

use super::common::{Host, PACE, PATIENCE, eventually, policy, push, runtime, settings};

#[test]
fn a_bad_policy_and_one_beyond_the_bounds_change_nothing_and_are_told() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()));
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    eventually("it follows", PATIENCE, || host.has(&good));
    let status = |holds: &dyn Fn(&policy_source::Status) -> bool| {
        let mut found = None;
        eventually("its status says so", PATIENCE, || {
            runtime.block_on(async {
                let mut fleet = Fleet::connect(&settings(&etcd.endpoints()), &dial_plainly())
                    .await
                    .unwrap();
                found = fleet.statuses().await.unwrap().pop();
            });
            found.as_ref().is_some_and(holds)
        });
        found.unwrap()
    };
    let applied = status(&|status| status.has(&good));
    assert_eq!(applied.result, "applied");
    assert_eq!(
        (applied.version, applied.in_force_version),
        (Some(1), Some(1))
    );
    let bad = push(&runtime, &etcd, &[("a.toml", "bad")]);
    let refused = status(&|status| status.digest == bad);
    assert_eq!(
        (refused.version, refused.in_force_version),
        (Some(2), Some(1))
    );
    assert_eq!(
        (refused.result.as_str(), refused.in_force),
        ("refused", good.clone())
    );
    assert_eq!(refused.error.unwrap(), "a word is bad");

    // What nobody can push, because etcd is written to directly.
    let put = |key: &str, value: &str| etcd.ctl(0, &["put", key, value]).unwrap();
    push(
        &runtime,
        &etcd,
        &[("a.toml", &"#".repeat(MAX_FRAGMENT_BYTES))],
    );
    put("/underpass/rules/b.toml", "#");
    eventually("it is too long", PATIENCE, || {
        host.heard("bytes together") > 0
    });
    let refused = status(&|status| status.digest.is_empty());
    // What was pushed may have come into force before it became too long.
    assert!(refused.result == "refused" && !refused.in_force.is_empty());
    assert!(refused.error.unwrap().contains("bytes together"));
    put("/underpass/rules/a b.toml", "");
    let names: Vec<String> = (0..MAX_FRAGMENTS).map(|n| format!("{n}.toml")).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "#")).collect();
    push(&runtime, &etcd, &files);
    put("/underpass/rules/b.toml", "");
    eventually("there are too many", PATIENCE, || {
        host.heard("more than 60 files") > 0
    });
    push(&runtime, &etcd, &[]);
    put("/underpass/rules/a b.toml", "");
    eventually("a name is none", PATIENCE, || {
        host.heard("is no name of a file") > 0
    });
    assert_eq!(host.heard("lost") + host.heard("late"), 0);

    // A push puts it right, whatever there was.
    let good = push(&runtime, &etcd, &[("a.toml", "good again")]);
    eventually("it follows again", PATIENCE, || host.has(&good));
    assert_eq!(status(&|status| status.has(&good)).in_force, good);

    // And so does whoever takes the mistake away: that policy has its verdict already.
    put("/underpass/rules/x", "");
    let refused = status(&|status| status.error.is_some());
    assert_eq!(refused.in_force, good);
    etcd.ctl(0, &["del", "/underpass/rules/x"]).unwrap();
    assert_eq!(status(&|status| status.has(&good)).error, None);
}

/// A certificate for this host, signed by an authority of its own, in a folder.
fn certificates(folder: &Path) -> Certificates {
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let authority = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let own = rcgen::KeyPair::generate().unwrap();
    let names = vec!["127.0.0.1".to_owned()];
    let cert = rcgen::CertificateParams::new(names)
        .unwrap()
        .signed_by(&own, &issuer)
        .unwrap();
    let written = |name: &str, text: String| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    };
    Certificates {
        ca: written("ca", authority.pem()),
        cert: written("cert", cert.pem()),
        key: written("key", own.serialize_pem()),
    }
}

#[test]
fn only_the_right_etcd_is_believed_and_it_is_told_who_asks() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let [files, others] = [&folders[0], &folders[1]].map(|folder| certificates(folder.path()));
    let etcd = Etcd::start_encrypted(files.clone()).unwrap();
    for args in [
        &["user", "add", "root:first"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "underpass-agent"],
        &[
            "role",
            "grant-permission",
            "underpass-agent",
            "--prefix=true",
            "read",
            "/underpass/rules/",
        ],
        &[
            "role",
            "grant-permission",
            "underpass-agent",
            "--prefix=true",
            "readwrite",
            "/underpass/status/",
        ],
        &["user", "add", "agent:hunter2"],
        &["user", "grant-role", "agent", "underpass-agent"],
        &["put", "/underpass/rules/a.toml", "good"],
        &["auth", "enable"],
    ] {
        etcd.ctl(0, args).unwrap();
    }
    let good = policy(&[("a.toml", "good")]).digest();
    let runtime = runtime();
    let password = |text: &str| {
        let path = folders[0].path().join(text.trim());
        fs::write(&path, text).unwrap();
        path
    };
    let host = |ca: &Path, own: Option<&Certificates>, password_file: Option<PathBuf>| {
        let own = own.map(|own| (own.cert.clone(), own.key.clone()));
        let tls = Dialling {
            ca: ca.to_owned(),
            server_name: None,
            own,
        };
        let login = password_file.map(|password_file| Login {
            user: "agent".to_owned(),
            password_file,
        });
        let settings = Settings {
            login,
            tls: Some(tls),
            ..settings(&etcd.endpoints())
        };
        Host::new(&runtime, "h", settings)
    };
    let right = host(&files.ca, Some(&files), Some(password("hunter2\n")));
    eventually("who may follows", PATIENCE, || {
        right.has(&good) && right.heard("in step") > 0
    });
    for (wrong, label) in [
        (
            host(&others.ca, Some(&files), Some(password("hunter2"))),
            "tls",
        ),
        (
            host(&files.ca, Some(&files), Some(password("hunter3"))),
            "denied",
        ),
        (
            host(
                &files.ca,
                Some(&files),
                Some(folders[0].path().join("none")),
            ),
            "password",
        ),
        (host(&files.ca, Some(&files), None), "denied"),
    ] {
        eventually(label, PATIENCE, || wrong.heard(label) > 0);
        assert!(!wrong.has(&good) && wrong.heard("in step") == 0);
    }
    // A client without the right certificate is ended by etcd, in or after the handshake.
    let stranger = host(&files.ca, Some(&others), Some(password("hunter2")));
    eventually("a stranger", PATIENCE, || {
        stranger.heard("tls") + stranger.heard("lost") > 0
    });
    assert!(!stranger.has(&good));
}

#[test]
fn two_live_agents_of_one_name_are_noticed_and_one_that_has_ended_is_not() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    let key = "/underpass/status/clone";
    let leases = || -> Vec<String> {
        let said = etcd.ctl(0, &["lease", "list"]).unwrap();
        let lines = said.lines().skip(1).map(|lease| lease.trim().to_owned());
        lines.filter(|lease| !lease.is_empty()).collect()
    };
    let settings = || settings(&etcd.endpoints());
    let first = Host::new(&runtime, "clone", settings());
    eventually("the first has a status", PATIENCE, || {
        first.has(&good) && etcd.ctl(0, &["get", key]).unwrap().contains("clone")
    });
    let [of_first] = leases().try_into().unwrap();
    let second = Host::new(&runtime, "clone", settings());
    let other = Host::new(&runtime, "other", settings());
    eventually("two say that they are one host", PATIENCE, || {
        second.heard("namesake") > 1
    });
    // The first one has ended, and its lease with it.
    drop(first);
    etcd.ctl(0, &["lease", "revoke", &of_first]).unwrap();
    eventually("there is one again", PATIENCE, || {
        second.heard("alone again") > 0
    });
    let heard = second.heard("namesake");
    push(&runtime, &etcd, &[("a.toml", "better")]);
    thread::sleep(3 * PACE.outlives);
    assert_eq!(second.heard("namesake"), heard);
    assert_eq!(other.heard("namesake") + other.heard("alone"), 0);
    assert_eq!(second.heard("lost") + second.heard("late"), 0);
}

#[test]
fn a_status_that_is_lost_while_its_agent_lives_is_there_again_and_is_written_only_then() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    let pace = Pace {
        say_again: Duration::from_millis(200),
        ..PACE
    };
    let host = Host::at(pace, &runtime, "h", settings(&etcd.endpoints()));
    let key = "/underpass/status/h";
    let ctl = |args: &[&str]| etcd.ctl(0, args).unwrap();
    let is_there = || ctl(&["get", key]).contains(&good);
    eventually("it has a status", PATIENCE, is_there);
    thread::sleep(3 * pace.say_again);
    let written = ctl(&["get", key, "--write-out", "fields"]);
    thread::sleep(5 * pace.say_again);
    let later = ctl(&["get", key, "--write-out", "fields"]);
    let revision = |said: &str| -> Option<String> {
        let line = said.lines().find(|line| line.contains("ModRevision"));
        line.map(ToOwned::to_owned)
    };
    assert!(revision(&written).is_some());
    assert_eq!(revision(&written), revision(&later));

    ctl(&["del", "--prefix", "/underpass/status/"]);
    eventually("it is there again", PATIENCE, is_there);

    // A clone of the host has written it, lives on for a while, and ends.
    let granted = ctl(&["lease", "grant", "60"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    ctl(&["put", key, "a clone's", "--lease", lease]);
    eventually("it is the host's again", PATIENCE, is_there);
    eventually("it has noticed the clone", PATIENCE, || {
        host.heard("namesake") > 0
    });
    ctl(&["lease", "revoke", lease]);
    assert!(is_there());
    assert_eq!(host.heard("lost") + host.heard("late"), 0);
}

#[test]
fn a_status_that_a_clone_has_taken_with_it_is_there_again_when_its_end_is_noticed() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let key = "/underpass/status/h";
    let ctl = |args: &[&str]| etcd.ctl(0, args).unwrap();
    let granted = ctl(&["lease", "grant", "60"]);
    let lease = granted.split_whitespace().nth(1).unwrap();
    let write = || ctl(&["put", key, "a clone's", "--lease", lease]);
    write();
    let good = push(&runtime, &etcd, &[("a.toml", "good")]);
    // Whose next look at its status by itself is beyond this test.
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()));
    let is_there = || ctl(&["get", key]).contains(&good);
    eventually("it has a status", PATIENCE, is_there);
    write();
    ctl(&["lease", "revoke", lease]);
    eventually("it is there again", PATIENCE, is_there);
    assert!(host.heard("alone again") > 0);
}
