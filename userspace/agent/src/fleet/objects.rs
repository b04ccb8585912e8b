//! Policies that are objects: which of those that were offered go into force. Each does by itself, and of a refused one that stays
//! which was in force. One team's mistake is no other's, and no operator's of the node.
//!
//! Nothing here changes what is in force: objects are only checked, so that all that fit are put into force at once.

use std::{
    collections::{BTreeMap, HashMap},
    iter,
    time::{Duration, Instant},
};

use policy::HINT;
use policy_source::{Fragment, Fragments, Kind, RulesTake, Shares};
use telemetry::Rarely;

use crate::config::take_of_rules;

/// Reason that the status of a policy has where the whole one speaks of another.
pub const BESIDE: &str = "it does not fit beside the other policies and the node's own files: the log of the node's agent says why";

/// Lines about policies that do not fit beside others: whoever may write policies decides how many there are.
static NOT_BESIDE: Rarely = Rarely::new();

/// Checks of one offer. One more than it takes to find a wrong one among all of them, several times over.
const MAX_CHECKS: usize = 64;

/// The time after which a refused object is looked at again: a file that it names may be there by now.
pub const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Why an object was refused, and when that is no news.
#[derive(Clone, Debug)]
pub struct Refusal {
    text: String,
    why: String,
    at: Instant,
    /// The digest of the others, beside which it does not fit. None: it is wrong by itself.
    beside: Option<String>,
}

impl Refusal {
    /// Makes that of an object that does not fit beside others, whose digest this is.
    pub fn beside(text: String, why: String, others: String) -> Self {
        Self {
            text,
            why,
            at: Instant::now(),
            beside: Some(others),
        }
    }
}

/// Refused objects by their names.
pub type Refusals = BTreeMap<String, Refusal>;

/// Objects: what is to be in force.
#[derive(Debug)]
pub struct Choice {
    /// Objects: what stays of the objects in force.
    pub kept: Fragments,
    /// Kept ones, with the changes that fit.
    pub good: Fragments,
    /// Objects: those that are refused.
    pub refusals: Refusals,
    /// Changes that were not looked at yet.
    pub left: Vec<String>,
}

impl Choice {
    /// Whether there is more to be chosen, once this is in force: what was not looked at, or what may fit beside others.
    pub fn is_open(&self) -> bool {
        let others = self.good.digest();
        let is_news = |old: &Refusal| old.beside.as_ref().is_some_and(|old| *old != others);
        !self.left.is_empty() || self.refusals.values().any(is_news)
    }

    /// Returns the reasons of all that are refused.
    pub fn refused(&self) -> BTreeMap<String, String> {
        let refusals = self.refusals.iter();
        let mut refused: BTreeMap<String, String> = refusals
            .map(|(name, refusal)| (name.clone(), refusal.why.clone()))
            .collect();
        for name in &self.left {
            let why = "it is not looked at yet, for many others are wrong";
            refused.insert(name.clone(), why.to_owned());
        }
        refused
    }
}

/// Chooses among the objects that are offered, beside those in force. `known`: those that were refused before; `is_doubtful`: whether those in
/// force may be wrong beside the host's own files as they are now.
///
/// # Errors
/// Says why nothing fits: the host's own files are wrong, or the cluster's own policies that are in force are wrong beside them.
pub fn choose(
    in_force: &Fragments,
    is_doubtful: bool,
    offered: &Fragments,
    known: &Refusals,
    check: &dyn Fn(&Fragments) -> Result<(), String>,
) -> Result<Choice, String> {
    let stays = |name: &str| offered.may_have(name) || offered.text(name).is_some();
    let kept = in_force.files.iter().filter(|file| stays(&file.name));
    let mut kept = Fragments {
        revision: offered.revision,
        files: kept.cloned().collect(),
        ..Fragments::default()
    };
    let beside = kept.digest();
    let mut refusals = Refusals::new();
    let mut wrong_in: BTreeMap<&str, usize> = BTreeMap::new();
    for namespace in known.keys().filter_map(|name| Kind::namespace_of(name)) {
        *wrong_in.entry(namespace).or_default() += 1;
    }
    let mut again = Vec::new();
    // By how many of its namespace are refused: whoever writes wrong ones without end is looked at behind all others.
    let mut fresh: BTreeMap<usize, Vec<Fragment>> = BTreeMap::new();
    for file in &offered.files {
        if kept.text(&file.name) == Some(file.text.as_str()) {
            continue;
        }
        match known.get(&file.name).filter(|old| old.text == file.text) {
            None => {
                let namespace = Kind::namespace_of(&file.name).unwrap_or_default();
                let wrong = wrong_in.get(namespace).copied().unwrap_or(0);
                fresh.entry(wrong).or_default().push(file.clone());
            }
            Some(old) => {
                let has_others = old.beside.as_ref().is_some_and(|others| *others != beside);
                match has_others || old.at.elapsed() >= LOOK_AGAIN {
                    true => again.push(file.clone()),
                    false => drop(refusals.insert(file.name.clone(), old.clone())),
                }
            }
        }
    }
    // What was refused before does not hold up the others.
    let batches: Vec<_> = iter::once(again).chain(fresh.into_values().rev()).collect();
    let mut is_checked = is_doubtful;
    let mut is_wrong = is_doubtful && check(&kept).is_err();
    let mut halves = Halves::new(kept.clone(), MAX_CHECKS);
    if !is_wrong {
        halves.try_all(batches.clone(), &mut |whole| {
            if is_wrong {
                return Err(String::new());
            }
            let checked = check(whole);
            if checked.is_err() && !is_checked {
                is_checked = true;
                is_wrong = check(&kept).is_err();
            }
            checked
        });
    }
    if is_wrong {
        let wrong;
        (kept, wrong) = without_wrong(&kept, check)?;
        halves = Halves::new(kept.clone(), MAX_CHECKS);
        halves.try_all(batches, &mut |whole| check(whole));
        let is_offered = |(file, _): &(Fragment, _)| offered.text(&file.name) == Some(&file.text);
        halves.refused.extend(wrong.into_iter().filter(is_offered));
    }
    let beside = halves.good.digest();
    for (file, why) in halves.refused {
        let alone = Fragments {
            files: vec![file.clone()],
            ..Fragments::default()
        };
        let wrong = check(&alone).err();
        let is_wrong = wrong.is_some();
        let refusal = Refusal {
            why: for_status(&file.name, &wrong.unwrap_or(why)),
            text: file.text,
            at: Instant::now(),
            beside: (!is_wrong).then(|| beside.clone()),
        };
        refusals.insert(file.name, refusal);
    }
    Ok(Choice {
        kept,
        good: halves.good,
        refusals,
        left: halves.left,
    })
}

/// Separates policies in force from those of them that are wrong beside the host's own files: these are others by now, or a user is gone. Policies of
/// namespaces go out of force then. **Invariant**: those of the cluster stay, whatever becomes of the others: one that encrypts or denies does not go
/// because a file that it names is away for a moment.
///
/// # Errors
/// Says what is wrong with those of the cluster, or with the host's own files.
fn without_wrong(
    in_force: &Fragments,
    check: &dyn Fn(&Fragments) -> Result<(), String>,
) -> Result<(Fragments, Vec<(Fragment, String)>), String> {
    let all = in_force.files.iter().cloned();
    let (namespaced, clusters): (Vec<_>, Vec<_>) =
        all.partition(|file| Kind::namespace_of(&file.name).is_some());
    let clusters = Fragments {
        revision: in_force.revision,
        files: clusters,
        ..Fragments::default()
    };
    check(&clusters)?;
    // As many as it takes to find all of them.
    let mut halves = Halves::new(clusters, 2 * namespaced.len());
    halves.try_all(vec![namespaced], &mut |whole| check(whole));
    for (file, why) in &halves.refused {
        let policy = &file.name;
        NOT_BESIDE.say(|not_said_before| {
            tracing::warn!(policy, not_said_before, "goes out of force: {why}");
        });
    }
    Ok((halves.good, halves.refused))
}

/// Returns the reason for which a policy is refused as its status has it. **Invariant**: whoever may read the status of a namespace's policy
/// reads nothing there of another namespace, of the cluster's own policies or of the node: a reason that is no share and begins neither
/// with a place in the policy nor with one of its rules is in the log alone.
pub fn for_status(name: &str, why: &str) -> String {
    let is_own = why.starts_with(&format!("kubernetes:{name}:")) || Shares::have_said(why);
    let is_of_rule = match (Kind::of_name(name), name.rsplit('/').next()) {
        (Some((Kind::Namespaced, namespace)), Some(name)) => {
            why.starts_with(&format!("rule {namespace}_{name}."))
        }
        // Whoever reads it may read the others' too, but for what is at a place.
        _ => !why.starts_with("kubernetes:") && !why.starts_with('/'),
    };
    if is_own || is_of_rule {
        // Hints may be the names of the node's users, or of the cluster's databases.
        let hint = Kind::namespace_of(name).and_then(|_| why.find(HINT));
        return why.split_at(hint.unwrap_or(why.len())).0.to_owned();
    }
    NOT_BESIDE.say(|not_said_before| {
        tracing::warn!(
            policy = name,
            not_said_before,
            "does not fit beside the others: {why}"
        );
    });
    BESIDE.to_owned()
}

/// Finds what fits: all of it, or halves, down to the one that is wrong.
pub struct Halves {
    /// Objects: what fits.
    pub good: Fragments,
    /// Objects: what does not, each with the reason.
    pub refused: Vec<(Fragment, String)>,
    /// Objects: what was not tried: there were too many.
    pub left: Vec<String>,
    tries: usize,
    /// Texts with what their rules take, so that each is read once.
    takes: HashMap<String, RulesTake>,
}

impl Halves {
    /// Begins with what fits already, and tries so many times at most.
    pub fn new(good: Fragments, tries: usize) -> Self {
        Self {
            good,
            refused: Vec::new(),
            left: Vec::new(),
            tries,
            takes: HashMap::new(),
        }
    }

    /// Tries batches, the last one first. What exceeds the bounds of what can be kept on disk does not fit, and neither does what exceeds the
    /// share of a namespace: those in force count, whatever is offered in their place and does not fit.
    pub fn try_all(
        &mut self,
        mut batches: Vec<Vec<Fragment>>,
        fits: &mut dyn FnMut(&Fragments) -> Result<(), String>,
    ) {
        while let Some(mut batch) = batches.pop() {
            if batch.is_empty() {
                continue;
            }
            if self.tries == 0 {
                self.left.extend(batch.into_iter().map(|file| file.name));
                continue;
            }
            self.tries -= 1;
            let whole = Fragments::of_objects(self.good.revision, with(&self.good, &batch));
            let tried = whole.map_err(|why| why.to_string()).and_then(|whole| {
                let before = shares_of(&self.good, &mut self.takes);
                shares_of(&whole, &mut self.takes).fit(&before)?;
                fits(&whole).map(|()| whole)
            });
            match tried {
                Ok(whole) => self.good = whole,
                Err(why) if batch.len() == 1 => {
                    self.refused.extend(batch.pop().map(|file| (file, why)));
                }
                Err(_) => {
                    let behind = batch.split_off(batch.len() / 2);
                    // The first half comes first: those of the cluster come before the others.
                    batches.extend([behind, batch]);
                }
            }
        }
    }
}

/// Shares that policies take. Those of the cluster have none.
fn shares_of(objects: &Fragments, takes: &mut HashMap<String, RulesTake>) -> Shares {
    let mut shares = Shares::default();
    for Fragment { name, text } in &objects.files {
        let is_counted = Kind::namespace_of(name).is_some();
        let take = match takes.get(text) {
            _ if !is_counted => RulesTake::default(),
            Some(take) => *take,
            None => *takes.entry(text.clone()).or_insert(take_of_rules(text)),
        };
        shares.add(name, text, take);
    }
    shares
}

/// Files with others in the place of those with the same names, and beside them.
fn with(kept: &Fragments, others: &[Fragment]) -> Vec<Fragment> {
    let is_other = |name: &str| others.iter().any(|other| other.name == name);
    let kept = kept.files.iter().filter(|file| !is_other(&file.name));
    kept.chain(others).cloned().collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use policy_source::{
        MAX_NAMESPACE_OBJECTS, MAX_NAMESPACE_RULES, MAX_OBJECTS, MAX_OBJECTS_BYTES,
    };

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
        let mut choice =
            choose(&objects(&[]), false, &offered(0), &Refusals::new(), &check).unwrap();
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
        // All of them are found, however many, and what fits alone stays if there is room.
        let many = |text: &str| {
            let files = (0..MAX_NAMESPACE_OBJECTS).map(|n| namespaced(&format!("a/{n:02}"), text));
            of(&files.chain([namespaced("b/web", "b1")]).collect::<Vec<_>>())
        };
        for (text, good) in [("bad", "b1"), ("big", "big b1")] {
            let all = many(text);
            let choice = choose(&all, true, &all, &Refusals::new(), &check).unwrap();
            assert_eq!(texts(&choice.good), good);
        }

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
}
