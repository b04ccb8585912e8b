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

/// A rule that may turn out to be the first that holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PossibleMatch {
    /// The match, if the rule is the first that holds.
    pub met: Match,
    /// Whether the rule is certain to hold, whatever else becomes known.
    pub is_certain: bool,
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
            Some(first) if first.is_certain => Decision::Decided(first.met),
            // None: never, because the default is always possible.
            Some(_) | None => Decision::Undecided,
        }
    }

    /// The conditions on the session of `c` that have to become known to decide it.
    pub fn waits_for(&self, c: &Candidate, session: &Session) -> Vec<SessionKey> {
        let possible = self
            .possible(c, session)
            .filter_map(|possible| possible.met.index);
        let rules = possible.filter_map(|index| self.rules.get(index));
        let mut keys: Vec<SessionKey> = Vec::new();
        for key in rules.flat_map(|rule| rule.session.open(session)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys
    }

    /// The rules that may turn out to be the first that holds, in their order. Only the last one is
    /// certain: what is behind it cannot be met.
    ///
    /// Where nobody will know whether a rule holds, its `fail` decides: `closed` denies, by that
    /// rule; with `open` it does not hold. So of all rules that may hold the strictest is met.
    pub fn possible(
        &self,
        c: &Candidate,
        session: &Session,
    ) -> impl Iterator<Item = PossibleMatch> {
        let by_rule = self.rules.iter().enumerate().filter_map(|(index, rule)| {
            let held = match rule.may_decide(c) {
                false => Held::No,
                true => rule.session.hold(session),
            };
            let (action, is_certain) = match (held, rule.fail) {
                (Held::Yes, _) => (rule.action, true),
                (Held::Open, _) => (rule.action, false),
                (Held::Unknowable, Fail::Closed) => (Action::Deny, true),
                (Held::No, _) | (Held::Unknowable, Fail::Open) => return None,
            };
            Some(PossibleMatch {
                met: rule.as_match(index, action),
                is_certain,
            })
        });
        let default = PossibleMatch {
            met: self.default_match(c),
            is_certain: true,
        };
        let mut has_ended = false;
        by_rule
            .chain([default])
            .take_while(move |possible| !std::mem::replace(&mut has_ended, possible.is_certain))
    }
}
