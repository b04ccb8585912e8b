//! Every rule held against one connection: which one decides, and why each other does not.

use ipnet::IpNet;

use crate::{
    Candidate, ContainerConditions, Destinations, Fail, Held, Miss, Policy, Rule, Session,
    SessionKey,
};

/// The outcome of holding a rule against a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The rule decides.
    Decides,
    /// Facts of the session, which are not known yet, tell whether it decides.
    MayDecide(Vec<SessionKey>),
    /// Nobody will know these facts of the session, and its `fail` is `closed`: it refuses the connection.
    Refuses(Vec<SessionKey>),
    /// Nobody will know these facts of the session, and its `fail` is `open`: it does not hold.
    Unknowable(Vec<SessionKey>),
    /// The rule would hold, and stands in shadow: it is counted, and the next one is tried.
    Shadow,
    /// Conditions of the rule do not hold, those with these keys.
    Misses(Vec<&'static str>),
    /// The rule would hold, and an earlier one decides.
    Behind,
}

impl Policy {
    /// Holds every rule against a connection, in their order.
    pub fn try_each(&self, c: &Candidate, session: &Session) -> Vec<Tried> {
        let mut is_decided = false;
        let tried = self.rules.iter().map(|rule| {
            let tried = match rule.try_on(c, session) {
                Tried::Decides | Tried::MayDecide(_) | Tried::Refuses(_) | Tried::Shadow
                    if is_decided =>
                {
                    Tried::Behind
                }
                tried => tried,
            };
            is_decided |= matches!(tried, Tried::Decides | Tried::Refuses(_));
            tried
        });
        tried.collect()
    }
}

impl Rule {
    fn try_on(&self, c: &Candidate, session: &Session) -> Tried {
        let missed = self.misses(c).into_iter().map(Miss::key);
        let of_session = self.session.missed(session).map(SessionKey::key);
        let missed: Vec<&str> = missed.chain(of_session).collect();
        let unknowable = || self.session.unknowable(session).collect();
        match (self.session.hold(session), self.fail) {
            _ if !missed.is_empty() => Tried::Misses(missed),
            _ if self.is_shadow() => Tried::Shadow,
            (Held::Open, _) => Tried::MayDecide(self.session.open(session).collect()),
            (Held::Unknowable, Fail::Closed) => Tried::Refuses(unknowable()),
            (Held::Unknowable, Fail::Open) => Tried::Unknowable(unknowable()),
            (Held::Yes | Held::No, _) => Tried::Decides,
        }
    }

    /// All conditions that do not hold for a connection at its beginning: where one does not, the rule is tried again
    /// without it.
    fn misses(&self, c: &Candidate) -> Vec<Miss> {
        let mut rule = self.clone();
        let mut missed = Vec::new();
        while let Some(miss) = rule.miss(c).filter(|miss| !missed.contains(miss)) {
            missed.push(miss);
            match miss {
                Miss::From => rule.from = c.from.map(IpNet::from).into_iter().collect(),
                Miss::To => rule.to = Destinations::ANY,
                Miss::Uid => rule.uids.clear(),
                Miss::Gid => rule.gids.clear(),
                Miss::Process => rule.processes.clear(),
                Miss::Cgroup => rule.cgroups.clear(),
                Miss::Container => rule.containers = ContainerConditions::default(),
                Miss::Netns => rule.namespaces.clear(),
            }
        }
        missed
    }
}
