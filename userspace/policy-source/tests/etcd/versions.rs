//! Versions: each push is one, they are kept bounded, and can be gone back to.

use policy_source::{Failure, Fleet, KEPT_VERSIONS, dial_plainly};
use sandbox::Etcd;

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
