//! Choices: what goes into force, what is refused and with which words, and what goes out.

use std::cell::Cell;

use policy_source::{MAX_NAMESPACE_OBJECTS, MAX_NAMESPACE_RULES, MAX_OBJECTS, MAX_OBJECTS_BYTES};

use super::*;

fn objects(files: &[(&str, &str)]) -> Fragments {
    let files = files.iter().map(|(name, text)| Fragment {
        name: format!("p/{name}"),
        text: (*text).to_owned(),
    });
    Fragments::of_objects(1, files.collect()).unwrap()
}

fn texts(fragments: &Fragments) -> String {
    let texts = fragments.files.iter().map(|file| file.text.as_str());
    texts.collect::<Vec<_>>().join(" ")
}

/// Texts with `bad` are wrong by themselves; of `big` there can be one.
fn check(whole: &Fragments) -> Result<(), String> {
    let texts = texts(whole);
    match (texts.contains("bad"), texts.matches("big").count() > 1) {
        (true, _) => Err("bad".into()),
        (_, true) => Err("too many".into()),
        _ => Ok(()),
    }
}

#[test]
fn what_fits_is_chosen_and_what_was_refused_is_not_checked_again() {
    let checks = Cell::new(0);
    let counted = |whole: &Fragments| {
        checks.set(checks.get() + 1);
        check(whole)
    };
    let in_force = objects(&[("a", "a1"), ("b", "b1"), ("gone", "g")]);
    let offered = objects(&[("a", "a2"), ("b", "bad"), ("c", "c1"), ("d", "bad")]);
    let choice = choose(&in_force, false, &offered, &Refusals::new(), &counted).unwrap();
    assert_eq!(texts(&choice.good), "a2 b1 c1");
    let refused = choice.refused();
    assert_eq!(refused.keys().collect::<Vec<_>>(), ["p/b", "p/d"]);
    assert!(choice.left.is_empty());

    checks.set(0);
    let choice = choose(&choice.good, false, &offered, &choice.refusals, &counted).unwrap();
    assert_eq!((checks.get(), texts(&choice.good)), (0, "a2 b1 c1".into()));
    assert_eq!(choice.refused(), refused);

    // But after a minute, for what it needs may be there by now.
    let mut old = choice.refusals.clone();
    for refusal in old.values_mut() {
        refusal.at = refusal.at.checked_sub(LOOK_AGAIN).unwrap();
    }
    let choice = choose(&choice.good, false, &offered, &old, &counted).unwrap();
    assert!(checks.get() > 0);
    assert_eq!(choice.refused(), refused);
    checks.set(0);

    // Another one's change costs one check, whatever is refused; and a text that is new is looked at.
    let offered = objects(&[("a", "a3"), ("b", "bad"), ("c", "c1"), ("d", "d2")]);
    let choice = choose(&choice.good, false, &offered, &choice.refusals, &counted).unwrap();
    assert_eq!(
        (checks.get(), texts(&choice.good)),
        (1, "a3 b1 c1 d2".into())
    );
}

#[test]
fn one_that_fits_alone_is_tried_when_the_others_are_others() {
    let offered = objects(&[("a", "big"), ("b", "big")]);
    let choice = choose(&objects(&[]), false, &offered, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "big");
    assert_eq!(choice.refused()["p/b"], "too many");
    let offered = objects(&[("a", "small"), ("b", "big")]);
    assert!(!choice.is_open());
    let choice = choose(&choice.good, false, &offered, &choice.refusals, &check).unwrap();
    // The other one has to be in force first.
    assert!(choice.is_open());
    let choice = choose(&choice.good, false, &offered, &choice.refusals, &check).unwrap();
    assert_eq!(texts(&choice.good), "small big");
    assert!(!choice.is_open());
}

#[test]
fn a_refusal_says_nothing_of_others() {
    let (own, others) = (
        "underpasspolicies/a/web",
        [
            "kubernetes:underpasspolicies/z/db:1:9: rule.to: found \"10.9.8.7\"",
            "kubernetes:underpasspolicies/a/web2:1:9: rule.to",
            "/etc/underpass/underpass.toml:1:1: rule.to",
            "rule audit.audited: audit: cannot write to /srv/audit.log",
            "rule a_web2.r: tls",
        ],
    );
    for why in others {
        assert_eq!(for_status(own, why), BESIDE);
    }
    let clusters = "clusterunderpasspolicies/audit";
    let [place, _, own_file, opens, _] = others;
    assert_eq!(for_status(clusters, place), BESIDE);
    assert_eq!(for_status(clusters, own_file), BESIDE);
    assert_eq!(for_status(clusters, opens), opens);
    for why in [
        "kubernetes:underpasspolicies/a/web:2:9: rule.to",
        "rule a_web.r: tls",
    ] {
        assert_eq!(for_status(own, why), why);
        assert_eq!(for_status(own, &format!("{why}{HINT}x`?")), why);
    }

    // Two places: the other one is told where it is in the same policy.
    let two = "kubernetes:underpasspolicies/a/web:2:9: rule.name: expected another";
    for (other, is_told) in [
        ("/etc/underpass/conf.d/x.toml:6:8)", false),
        ("kubernetes:underpasspolicies/z/db:1:9)", false),
        ("kubernetes:underpasspolicies/a/web:1:9)", true),
    ] {
        let whole = format!("{two}{OTHER_PLACE}{other}");
        let told = if is_told { whole.as_str() } else { two };
        assert_eq!(for_status(own, &whole), told);
        assert_eq!(for_status(clusters, &whole), BESIDE);
    }

    // The bound is flagged where the last rule is, which is another's.
    let objects = |names: &[&str]| {
        let files = names.iter().map(|name| Fragment {
            name: format!("underpasspolicies/{name}"),
            text: String::new(),
        });
        Fragments::of_objects(1, files.collect()).unwrap()
    };
    let full = |whole: &Fragments| match whole.files.last() {
        Some(last) if whole.files.len() > 1 => {
            Err(format!("kubernetes:{}:1:9: found \"10.9.8.7\"", last.name))
        }
        _ => Ok(()),
    };
    let choice = choose(
        &objects(&["z/db"]),
        false,
        &objects(&["a/web", "z/db"]),
        &Refusals::new(),
        &full,
    );
    let refused = choice.unwrap().refused();
    assert_eq!(refused["underpasspolicies/a/web"], BESIDE);
}

/// Wrong policies without end, others each time, use up one look; the next one is the others'.
#[test]
fn wrong_ones_without_end_hold_nobody_up() {
    let offered = |round: usize| {
        let wrong = (0..MAX_NAMESPACE_OBJECTS).map(|n| Fragment {
            name: format!("underpasspolicies/a/{n:02}"),
            text: format!("bad {round}"),
        });
        let right = Fragment {
            name: "underpasspolicies/z/right".to_owned(),
            text: format!("good {round}"),
        };
        Fragments::of_objects(1, wrong.chain([right]).collect()).unwrap()
    };
    let mut choice = choose(&objects(&[]), false, &offered(0), &Refusals::new(), &check).unwrap();
    for round in 1..4 {
        choice = choose(
            &choice.good,
            false,
            &offered(round),
            &choice.refusals,
            &check,
        )
        .unwrap();
        assert_eq!(texts(&choice.good), format!("good {round}"));
    }
}

#[test]
fn what_is_not_read_stays() {
    let mut in_force = objects(&[("a", "a1"), ("z", "deny")]);
    in_force.files.push(Fragment {
        name: "other/z".to_owned(),
        text: "other".to_owned(),
    });
    let mut offered = objects(&[("a", "a2")]);
    // One kind has more than are read, and nothing of another one stays by that.
    offered.cut.insert("p".to_owned());
    let choice = choose(&in_force, false, &offered, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "a2 deny");
    offered.cut.clear();
    offered.unusable.insert("p/z".into(), "nested".into());
    let choice = choose(&choice.good, false, &offered, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "a2 deny");
    offered.unusable.clear();
    let choice = choose(&choice.good, false, &offered, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "a2");
}

/// Rules of a namespace that are in force count, though others are offered in their place: these may not become the host's.
#[test]
fn a_share_is_one_of_what_is_in_force() {
    let rules = |rules: usize, of: &str| {
        format!("rule = [{}]", format!("{{name=\"{of}\"}},").repeat(rules))
    };
    let fragment = |name: &str, text: String| Fragment {
        name: format!("underpasspolicies/{name}"),
        text,
    };
    let of = |files: &[(&str, String)]| {
        let files = files
            .iter()
            .map(|(name, text)| fragment(name, text.clone()));
        Fragments::of_objects(1, files.collect()).unwrap()
    };
    let most = MAX_NAMESPACE_RULES;
    let in_force = of(&[("a/one", rules(most, "old"))]);

    // Its successor is no file, is wrong, or does not fit; what comes beside it is more than the namespace has.
    let mut unusable = of(&[("a/two", rules(1, "new")), ("b/two", rules(most, "new"))]);
    let one = "underpasspolicies/a/one".to_owned();
    unusable.unusable.insert(one.clone(), "nested".to_owned());
    let mut wrong = unusable.clone();
    wrong.unusable.clear();
    wrong.files.insert(0, fragment("a/one", rules(1, "bad")));
    for offered in [unusable, wrong] {
        let choice = choose(&in_force, false, &offered, &Refusals::new(), &check).unwrap();
        let names: Vec<&str> = choice
            .good
            .files
            .iter()
            .map(|file| file.name.as_str())
            .collect();
        assert_eq!(names, [one.as_str(), "underpasspolicies/b/two"]);
        let why = &choice.refused()["underpasspolicies/a/two"];
        assert!(why.starts_with("a namespace has at most"), "{why}");

        // When there is room, it is looked at again.
        let mended = of(&[
            ("a/one", rules(most - 1, "new")),
            ("a/two", rules(1, "new")),
        ]);
        let mut known = choice.refusals;
        let mut good = choice.good;
        for _ in 0..2 {
            let choice = choose(&good, false, &mended, &known, &check).unwrap();
            (good, known) = (choice.good, choice.refusals);
        }
        assert_eq!(good.files, mended.files);
    }
}

#[test]
fn the_hosts_own_mistake_is_no_objects() {
    let refuse = |_: &Fragments| Err("own".to_owned());
    let offered = objects(&[("a", "a1"), ("b", "b1")]);
    let said = choose(&objects(&[]), false, &offered, &Refusals::new(), &refuse);
    assert_eq!(said.unwrap_err(), "own");
}

/// A policy in force that is not right any more is no other's mistake, but where it is the cluster's own.
#[test]
fn a_namespaces_policy_that_is_not_right_any_more_goes_and_a_clusters_stays() {
    let namespaced = |name: &str, text: &str| Fragment {
        name: format!("underpasspolicies/{name}"),
        text: text.to_owned(),
    };
    let of = |files: &[Fragment]| Fragments::of_objects(1, files.to_vec()).unwrap();
    let clusters = Fragment {
        name: "clusterunderpasspolicies/own".to_owned(),
        text: "own".to_owned(),
    };
    let stale = namespaced("a/stale", "bad");
    let in_force = of(&[clusters.clone(), stale.clone(), namespaced("b/web", "b1")]);
    let with_news = of(&[clusters.clone(), stale.clone(), namespaced("b/web", "b2")]);
    // News finds it, and where nothing is new, the doubt.
    for (offered, is_doubtful, good) in [
        (&with_news, false, "own b2"),
        (&with_news, true, "own b2"),
        (&in_force, true, "own b1"),
    ] {
        let none = Refusals::new();
        let choice = choose(&in_force, is_doubtful, offered, &none, &check).unwrap();
        assert_eq!(texts(&choice.good), good);
        assert_eq!(texts(&choice.kept), "own b1");
        let refused = choice.refused();
        assert_eq!(refused.keys().collect::<Vec<_>>(), [&stale.name]);
        assert!(!choice.is_open());
    }
    // What is to come in its place is looked at, and what nobody offers any more is no refusal.
    let mended = of(&[clusters.clone(), namespaced("a/stale", "a2")]);
    let choice = choose(&in_force, true, &mended, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "own a2");
    assert!(choice.refused().is_empty());
    // One of the cluster's may be what is wrong, and mended at once.
    let stale_cluster = Fragment {
        text: "bad".to_owned(),
        ..clusters.clone()
    };
    for others in [&[stale.clone()][..], &[]] {
        let in_force = of(&[std::slice::from_ref(&stale_cluster), others].concat());
        let mended = of(&[std::slice::from_ref(&clusters), others].concat());
        let none = Refusals::new();
        let choice = choose(&in_force, true, &mended, &none, &check).unwrap();
        assert_eq!(texts(&choice.good), "own");
        assert_eq!(choice.refused().len(), others.len());
        choose(&in_force, true, &in_force, &none, &check).unwrap_err();
    }
    // And what is wrong with its successor is no reason to lose it.
    let worse = of(&[stale_cluster, stale.clone(), namespaced("b/web", "b2")]);
    let choice = choose(&in_force, true, &worse, &Refusals::new(), &check).unwrap();
    assert_eq!(texts(&choice.good), "own b2");

    // All of them are found, however many, and what fits alone stays if there is room. Where the reason names each, that is one check each.
    let checks = Cell::new(0);
    let placed = |whole: &Fragments| {
        checks.set(checks.get() + 1);
        let bad = whole.files.iter().find(|file| file.text == "bad");
        bad.map_or(Ok(()), |file| {
            Err(format!("kubernetes:{}:1: bad", file.name))
        })
    };
    let many = |text: &str| {
        let files = (0..MAX_NAMESPACE_OBJECTS).map(|n| namespaced(&format!("a/{n:02}"), text));
        of(&files.chain([namespaced("b/web", "b1")]).collect::<Vec<_>>())
    };
    for (text, good) in [("bad", "b1"), ("big", "big b1")] {
        let all = many(text);
        let choice = choose(&all, true, &all, &Refusals::new(), &check).unwrap();
        assert_eq!(texts(&choice.good), good);
    }
    let all = many("bad");
    let (good, wrong) = without_wrong(&all, &all, &placed).unwrap();
    assert_eq!(
        (texts(&good).as_str(), wrong.len()),
        ("b1", MAX_NAMESPACE_OBJECTS)
    );
    assert_eq!(checks.get(), 2 + MAX_NAMESPACE_OBJECTS);

    let no_clusters = |whole: &Fragments| match texts(whole).contains("own") {
        true => Err("own".to_owned()),
        false => Ok(()),
    };
    let said = choose(&in_force, true, &with_news, &Refusals::new(), &no_clusters);
    assert_eq!(said.unwrap_err(), "own");
}

#[test]
fn many_wrong_ones_are_found_little_by_little() {
    let names: Vec<String> = (0..MAX_OBJECTS).map(|n| format!("{n:03}")).collect();
    let offered: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "bad")).collect();
    let offered = objects(&offered);
    let checks = Cell::new(0);
    let counted = |whole: &Fragments| {
        checks.set(checks.get() + 1);
        check(whole)
    };
    let (mut refusals, mut rounds) = (Refusals::new(), 0);
    loop {
        checks.set(0);
        let choice = choose(&objects(&[]), false, &offered, &refusals, &counted).unwrap();
        assert!(checks.get() <= 2 * MAX_CHECKS + 1, "{}", checks.get());
        assert!(choice.refusals.len() > refusals.len());
        assert_eq!(choice.refused().len(), MAX_OBJECTS);
        refusals = choice.refusals;
        rounds += 1;
        if choice.left.is_empty() {
            break;
        }
    }
    assert!(rounds < 32, "{rounds}");
}

#[test]
fn what_could_not_be_read_again_is_not_put_into_force() {
    let half = "x".repeat(MAX_OBJECTS_BYTES / 2);
    let in_force = objects(&[("a", &half), ("b", &half)]);
    let offered = objects(&[("a", &half), ("b", &half), ("c", "")]);
    let mut offered = offered;
    offered.files[2].text = "c".into();
    let choice = choose(&in_force, false, &offered, &Refusals::new(), &check).unwrap();
    assert_eq!(choice.good.files.len(), 2);
    assert!(choice.refused()["p/c"].contains("at most"));
    assert!(Fragments::of_objects(1, choice.good.files).is_ok());
}
