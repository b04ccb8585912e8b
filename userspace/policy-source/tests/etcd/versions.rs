//! Versions: each push is one, they are kept bounded, and can be gone back to.

use std::time::Duration;

use etcd_client::Client;
use policy_source::{Failure, Fleet, KEPT_VERSIONS, dial_plainly};
use sandbox::Etcd;
use tokio::time;

use super::common::{Host, PATIENCE, eventually, policy, push, runtime, settings};

#[test]
fn a_host_has_a_version_exactly_if_its_files_are_those_of_a_push() {
    let etcd = Etcd::start(None, 1).unwrap();
    let runtime = runtime();
    let host = Host::new(&runtime, "h", settings(&etcd.endpoints()));
    let ctl = |args: &[&str]| drop(etcd.ctl(0, args).unwrap());
    let says = |version: Option<u64>, texts: &[(&str, &str)]| {
        let digest = policy(texts).digest();
        eventually(&format!("{version:?}: {texts:?}"), PATIENCE, || {
            let statuses = runtime.block_on(async {
                let settings = settings(&etcd.endpoints());
                let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
                fleet.statuses().await.unwrap()
            });
            statuses.iter().any(|status| {
                status.has(&digest)
                    && [status.version, status.in_force_version] == [version, version]
            })
        });
    };
    let (one, two) = (("a.toml", "1"), ("b.toml", "2"));
    // Files that nobody has pushed.
    ctl(&["put", "/underpass/rules/a.toml", "1"]);
    says(None, &[one]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(1), &[one, two]);
    // Past a push: a file that is another one, one more, and one that is gone.
    ctl(&["put", "/underpass/rules/b.toml", "3"]);
    says(None, &[one, ("b.toml", "3")]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(2), &[one, two]);
    ctl(&["put", "/underpass/rules/c.toml", "3"]);
    says(None, &[one, two, ("c.toml", "3")]);
    push(&runtime, &etcd, &[one, two]);
    says(Some(3), &[one, two]);
    ctl(&["del", "/underpass/rules/b.toml"]);
    says(None, &[one]);
    // The same files again are another version, of which hosts hear.
    for version in [4, 5] {
        push(&runtime, &etcd, &[one, two]);
        says(Some(version), &[one, two]);
    }
    assert_eq!(host.heard("lost") + host.heard("late"), 0);
}

#[test]
fn who_goes_back_twice_is_two_versions_behind_and_never_at_the_bad_one() {
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        assert_eq!(fleet.before_latest().await.unwrap(), None);
        let text = |n: u64| policy(&[("a.toml", &format!("# {n}"))]);
        // The version that each push repeats, and the one before it: 3 is bad, and so is 6.
        for (number, repeats, before) in [
            (1, None, None),
            (2, None, Some(1)),
            (3, None, Some(2)),
            (4, Some(2), Some(1)),
            (5, Some(1), None),
            (6, None, Some(5)),
            (7, Some(4), Some(1)),
        ] {
            let pushed = fleet.push(text(repeats.unwrap_or(number)), repeats, 0);
            assert_eq!(pushed.await.unwrap().number, number);
            assert_eq!(fleet.before_latest().await.unwrap(), before, "{number}");
        }
        // A version that repeats one that is no longer kept is behind that one.
        for _ in 0..KEPT_VERSIONS {
            fleet.push(text(7), Some(7), 0).await.unwrap();
        }
        assert_eq!(fleet.before_latest().await.unwrap(), Some(6));
    });
}

#[test]
fn versions_are_kept_bounded_and_can_be_pushed_again_but_not_at_the_same_time() {
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        assert_eq!(fleet.head().await.unwrap(), None);
        let text = |n: u64| policy(&[("a.toml", &format!("# {n}"))]);
        for n in 1..=KEPT_VERSIONS + 2 {
            assert_eq!(fleet.push(text(n), None, n).await.unwrap().number, n);
        }
        assert_eq!(fleet.head().await.unwrap(), Some(KEPT_VERSIONS + 2));
        let gone = fleet.version(2).await.unwrap_err();
        assert!(matches!(gone, Failure::Absent(_)), "{gone}");
        let third = fleet.version(3).await.unwrap();
        assert_eq!(third.fragments.files, text(3).files);
        let again = fleet.push(third.fragments, Some(3), 0).await.unwrap();
        assert_eq!((again.number, again.repeats), (KEPT_VERSIONS + 3, Some(3)));
        let wanted = fleet.wanted().await.unwrap().unwrap();
        assert_eq!(wanted.digest(), text(3).digest());

        // Of two at once, each wins or is told that it has not.
        let mut other = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let (one, two) = tokio::join!(fleet.push(text(7), None, 0), other.push(text(8), None, 0));
        let raced = [&one, &two]
            .iter()
            .filter(|p| matches!(p, Err(Failure::Raced)))
            .count();
        let pushed = [one, two]
            .into_iter()
            .flatten()
            .map(|version| version.number);
        let mut numbers: Vec<_> = pushed.collect();
        numbers.dedup();
        assert_eq!(numbers.len() + raced, 2, "{numbers:?}, {raced} raced");
    });
}

#[test]
fn a_push_on_a_version_changes_nothing_when_that_is_not_what_is_there() {
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let text = |n: u64| policy(&[("a.toml", &format!("# {n}"))]);
        let first = fleet.push_on(Some(0), text(1), None, 0).await.unwrap();
        assert_eq!(first.number, 1);
        // Two have looked at version 1, and one is faster.
        let mut other = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let faster = other.push_on(Some(1), text(2), None, 0).await.unwrap();
        assert_eq!(faster.number, 2);
        for on in [0, 1, 3] {
            let refused = fleet.push_on(Some(on), text(3), None, 0).await;
            let refused = refused.unwrap_err();
            assert!(
                matches!(refused, Failure::Superseded { latest: 2, on: was } if was == on),
                "{refused}"
            );
            let said = refused.to_string();
            assert!(
                said.contains("`underpass policy diff`") && said.contains("`--on 2`"),
                "{said}"
            );
        }
        let wanted = fleet.wanted().await.unwrap().unwrap();
        assert_eq!(wanted.digest(), text(2).digest());
        fleet.push_on(Some(2), text(3), None, 0).await.unwrap();

        // Past a push: whoever looks only at numbers would take it away.
        for past in [
            &["put", "/underpass/rules/b.toml", "#"][..],
            &["del", "/underpass/rules/a.toml"],
        ] {
            let on = fleet.head().await.unwrap();
            etcd.ctl(0, past).unwrap();
            let refused = fleet.push_on(on, text(4), None, 0).await.unwrap_err();
            assert!(matches!(refused, Failure::Unpushed), "{refused}");
            // The last one wins.
            fleet.push(text(4), None, 0).await.unwrap();
        }
        let on = fleet.head().await.unwrap();
        fleet.push_on(on, text(5), None, 0).await.unwrap();
    });
}

#[test]
fn files_that_nobody_has_pushed_are_no_version() {
    let etcd = Etcd::start(None, 1).unwrap();
    etcd.ctl(0, &["put", "/underpass/rules/a.toml", "#"])
        .unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let mine = policy(&[("a.toml", "# mine")]);
        let refused = fleet.push_on(Some(0), mine, None, 0).await.unwrap_err();
        assert!(matches!(refused, Failure::Unpushed), "{refused}");
    });
}

#[test]
fn a_file_that_is_deleted_during_a_push_is_not_in_it_by_mistake() {
    const ROUNDS: usize = 150;
    const FILE: &str = "/underpass/rules/b.toml";
    let etcd = Etcd::start(None, 1).unwrap();
    runtime().block_on(async {
        let settings = settings(&etcd.endpoints());
        let mut fleet = Fleet::connect(&settings, &dial_plainly()).await.unwrap();
        let mut client = Client::connect(etcd.endpoints(), None).await.unwrap();
        let (mut raced, mut before, mut after) = (0, 0, 0);
        for round in 0..ROUNDS {
            let text = |n: usize| policy(&[("a.toml", &format!("# {n}")), ("b.toml", "same")]);
            fleet.push(text(2 * round), None, 0).await.unwrap();
            // At any time of a push that does not change the file.
            let mut deleter = client.clone();
            let deleting = async {
                time::sleep(Duration::from_millis(fastrand::u64(..6))).await;
                let deleted = deleter.delete(FILE, None).await.unwrap();
                deleted.header().unwrap().revision()
            };
            let (pushed, deleted) =
                tokio::join!(fleet.push(text(2 * round + 1), None, 0), deleting);
            match pushed {
                Err(Failure::Raced) => raced += 1,
                Err(failure) => panic!("{failure}"),
                Ok(_) => {
                    let head = client.get("/underpass/head", None).await.unwrap();
                    let pushed = head.kvs().first().unwrap().mod_revision();
                    let is_there = client.get(FILE, None).await.unwrap().count() == 1;
                    assert_eq!(is_there, deleted < pushed, "round {round}");
                    match is_there {
                        true => before += 1,
                        false => after += 1,
                    }
                }
            }
        }
        eprintln!("deleted before {before} pushes, during {raced}, after {after}");
    });
}
