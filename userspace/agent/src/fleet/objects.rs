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

use crate::config::{OTHER_PLACE, take_of_rules};

/// Reason that the status of a policy has where the whole one speaks of another.
pub const BESIDE: &str = "it does not fit beside the other policies and the node's own files: the log of the node's agent says why";

/// Lines about policies that do not fit beside others: whoever may write policies decides how many there are.
static NOT_BESIDE: Rarely = Rarely::new();

/// Checks of one offer. One more than it takes to find a wrong one among all of them, several times over.
const MAX_CHECKS: usize = 64;

/// The time after which what was refused is looked at again: a file that it names may be there by now.
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
        (kept, wrong) = without_wrong(&kept, offered, check)?;
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
/// namespaces go out of force then. **Invariant**: those of the cluster stay, or what is offered in their place: one that encrypts or denies does not go
/// because what it names is away for a moment.
///
/// # Errors
/// Says what is wrong with those of the cluster, or with the host's own files.
fn without_wrong(
    in_force: &Fragments,
    offered: &Fragments,
    check: &dyn Fn(&Fragments) -> Result<(), String>,
) -> Result<(Fragments, Vec<(Fragment, String)>), String> {
    let of = |files| Fragments {
        revision: in_force.revision,
        files,
        ..Fragments::default()
    };
    let is_namespaced = |file: &Fragment| Kind::namespace_of(&file.name).is_some();
    let all = in_force.files.iter().cloned();
    let (namespaced, clusters): (Vec<_>, Vec<_>) = all.partition(is_namespaced);
    let mut clusters = of(clusters);
    if check(&clusters).is_err() {
        for file in &mut clusters.files {
            if let Some(text) = offered.text(&file.name) {
                text.clone_into(&mut file.text);
            }
        }
        check(&clusters)?;
    }
    let mut right = of(with(&clusters, &namespaced));
    let mut wrong = Vec::new();
    while let Err(why) = check(&right) {
        let is_at_fault =
            |file: &Fragment| is_namespaced(file) && why.starts_with(&place_in(&file.name));
        let Some(at) = right.files.iter().position(is_at_fault) else {
            // It names none. As many tries as it takes to find all of them.
            let namespaced: Vec<_> = right.files.into_iter().filter(is_namespaced).collect();
            let mut halves = Halves::new(clusters, 2 * namespaced.len());
            halves.try_all(vec![namespaced], &mut |whole| check(whole));
            wrong.append(&mut halves.refused);
            right = halves.good;
            break;
        };
        wrong.push((right.files.remove(at), why));
    }
    for (file, why) in &wrong {
        let policy = &file.name;
        NOT_BESIDE.say(|not_said_before| {
            tracing::warn!(policy, not_said_before, "is to go out of force: {why}");
        });
    }
    Ok((right, wrong))
}

/// The beginning of a reason that has its place in a policy.
fn place_in(name: &str) -> String {
    format!("kubernetes:{name}:")
}

/// Returns the reason for which a policy is refused as its status has it. **Invariant**: whoever may read the status of a namespace's policy
/// reads nothing there of another namespace, of the cluster's own policies or of the node: a reason that is no share and begins neither
/// with a place in the policy nor with one of its rules is in the log alone.
pub fn for_status(name: &str, why: &str) -> String {
    let is_own = why.starts_with(&place_in(name)) || Shares::have_said(why);
    let is_of_rule = match (Kind::of_name(name), name.rsplit('/').next()) {
        (Some((Kind::Namespaced, namespace)), Some(name)) => {
            why.starts_with(&format!("rule {namespace}_{name}."))
        }
        // Whoever reads it may read the others' too, but for what is at a place.
        _ => !why.starts_with("kubernetes:") && !why.starts_with('/'),
    };
    if is_own || is_of_rule {
        if Kind::namespace_of(name).is_none() {
            return why.to_owned();
        }
        // Hints may be the names of the node's users, or of the cluster's databases; and the other place one in the node's files.
        let why = why.split(HINT).next().unwrap_or_default();
        return match why.split_once(OTHER_PLACE) {
            Some((said, place)) if !place.starts_with(&place_in(name)) => said,
            _ => why,
        }
        .to_owned();
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
mod tests;
