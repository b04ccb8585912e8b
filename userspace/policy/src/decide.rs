//! Deciding a flow in the agent, by what is known of its session so far.

use crate::{Action, Candidate, Fail, Held, Match, Policy, Rule, Session, SessionKey};

/// A policy's decision on a flow whose session is being learned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The flow meets this rule, whatever else becomes known.
    Decided(Match),
    /// The rule depends on facts of the session that are not known yet.
    Undecided,
}

impl Policy {
    /// Whether there is a session rule.
    pub fn names_sessions(&self) -> bool {
        self.rules.iter().any(Rule::is_session)
    }

    /// The rule that `c` meets, by what is known of its session. Knowing more never changes
    /// what was decided.
    pub fn decide(&self, c: &Candidate, session: &Session) -> Decision {
        match self.possible(c, session).next() {
            Some((met, true)) => Decision::Decided(met),
            Some((_, false)) => Decision::Undecided,
            // The default is always possible.
            None => Decision::Undecided,
        }
    }

    /// The conditions on the session of `c` that have to become known to decide it.
    pub fn waits_for(&self, c: &Candidate, session: &Session) -> Vec<SessionKey> {
        let possible = self.possible(c, session).filter_map(|(met, _)| met.index);
        let rules = possible.filter_map(|index| self.rules.get(index));
        let mut keys: Vec<SessionKey> = Vec::new();
        for key in rules.flat_map(|rule| rule.session.open(session)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// The rules that may turn out to be the first that holds, in their order, and of each
    /// whether it is certain to decide. Only the last one is: what is behind it cannot be met.
    ///
    /// Where nobody will know whether a rule holds, its `fail` decides: `closed` denies, by that rule; with `open` it
    /// does not hold. So of all rules that may hold the strictest is met.
    pub fn possible(
        &self,
        c: &Candidate,
        session: &Session,
    ) -> impl Iterator<Item = (Match, bool)> {
        let by_rule = self.rules.iter().enumerate().filter_map(|(index, rule)| {
            let held = match rule.miss(c) {
                Some(_) => Held::No,
                None => rule.session.hold(session),
            };
            match (held, rule.fail) {
                (Held::Yes, _) => Some((rule.as_match(index, rule.action), true)),
                (Held::Open, _) => Some((rule.as_match(index, rule.action), false)),
                (Held::Unknowable, Fail::Closed) => {
                    Some((rule.as_match(index, Action::Deny), true))
                }
                (Held::No, _) | (Held::Unknowable, Fail::Open) => None,
            }
        });
        let mut certain = false;
        by_rule
            .chain([(self.default_match(c), true)])
            .take_while(move |(_, is_certain)| !std::mem::replace(&mut certain, *is_certain))
    }
}
