//! [`Survey`]: which running connections a policy has read, and which cannot be.

use std::{
    collections::{BTreeMap, HashSet},
    fs,
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use ebpf::abi;
use socket2::SockRef;

use super::{
    NotAdopted,
    connections::{Connection, Connections},
    namespaces::{Place, Places},
    owners::{self, Owner},
};
use crate::{
    address::{self, SockCookie},
    compile, host,
};
use policy::{Action, Candidate, Decision, Fail, Match, Policy, Rule, RuleName, Session, TapDepth};

/// The number of connections that are looked at, at most: as many as the kernel observes, and both their ends.
pub(super) const MAX_CONNECTIONS: usize = 2 * abi::MAX_METERS as usize;

/// Names of an agent's process, and of the one that keeps flows for it: their connections are no client's.
pub(super) const AGENTS: [&str; 2] = ["underpass", "underpass-keep"];

/// The connections that are the agent's to read.
#[derive(Clone, Debug)]
pub struct Scope {
    /// The agent's cgroup, whose packets are read.
    pub(crate) cgroup: PathBuf,
    /// The generation of the policy in the kernel.
    pub(crate) generation: u8,
    /// How often everything has been forgotten by then.
    pub(crate) forgets: u32,
    /// The numbers of the inodes of network namespaces in which connections that come from other hosts are steered, too.
    pub(crate) incoming: HashSet<u32>,
}

impl Scope {
    fn steers(&self, place: &Place) -> bool {
        place
            .inode
            .is_some_and(|inode| self.incoming.contains(&inode))
    }
}

/// A running connection that is to be read.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub cookie: SockCookie,
    pub rule: RuleName,
    /// Where it is, in [`Survey::places`].
    pub place: usize,
    pub adoption: abi::Adoption,
}

impl Wanted {
    /// Wants a connection observed that this process has opened, whatever any policy says.
    pub(super) fn own(opened: &TcpStream) -> io::Result<Self> {
        let connection = Connection {
            cookie: SockCookie(SockRef::from(opened).cookie()?),
            own: opened.local_addr()?,
            peer: opened.peer_addr()?,
            uid: 0,
            inode: 0,
            cgroup_id: 0,
        };
        let side = Side {
            connection,
            is_incoming: false,
            place: 0,
        };
        let met = Match {
            index: None,
            rule: RuleName::of_default(),
            action: Action::Observe,
            fail: Fail::Open,
            session: false,
        };
        let scope = Scope {
            cgroup: PathBuf::new(),
            generation: 0,
            forgets: 0,
            incoming: HashSet::new(),
        };
        Ok(side.wanted(&met, None, None, &scope))
    }
}

/// The running connections of this host that a policy has read.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub(crate) wanted: Vec<Wanted>,
    /// The namespaces in which they are.
    pub(crate) places: Vec<Place>,
    pub(crate) not: BTreeMap<NotAdopted, Missed>,
}

/// Running connections that should be read and cannot be, for one reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Missed {
    /// The number of them.
    pub count: u64,
    /// The first [`MAX_NAMED`] of them, in words: `192.0.2.1:40000 to 192.0.2.2:9042 of "java"`.
    pub named: Vec<String>,
}

/// The number of connections that are named for each reason, at most.
const MAX_NAMED: usize = 3;

/// The verdict of the policy on a running connection.
enum Verdict {
    /// No rule has the flow read.
    None,
    Reads(Match),
    Not(NotAdopted),
}

impl Survey {
    /// Looks. What cannot be looked at is in no list.
    pub(crate) fn take(policy: &Policy, scope: &Scope) -> io::Result<Self> {
        let mut survey = Self::default();
        if !reads(policy) {
            return Ok(survey);
        }
        let seen = Seen::of(&scope.cgroup);
        let all = survey.list(&seen, scope)?;
        let sides = survey.sides(&all, &seen, policy, scope);
        if sides.is_empty() {
            return Ok(survey);
        }
        let owners = owners::of(sides.iter().map(|side| side.connection.inode).collect());
        for side in sides {
            let owner = owners.get(&side.connection.inode).map(|owner| &**owner);
            let netns = survey.places.get(side.place).and_then(|place| place.inode);
            match side.verdict(policy, owner, netns) {
                Verdict::None => {}
                Verdict::Reads(_) if !seen.sees(side.connection.cgroup_id) => {
                    survey.leave(NotAdopted::OutsideCgroup, &side, owner);
                }
                Verdict::Reads(met) => {
                    let rule = met.index.and_then(|index| policy.rules.get(index));
                    let depth = rule.and_then(|rule| rule.taps);
                    // Of a process on another host nothing is known.
                    let opener = owner.filter(|_| !side.is_incoming);
                    survey.wanted.push(side.wanted(&met, depth, opener, scope));
                }
                Verdict::Not(reason) => survey.leave(reason, &side, owner),
            }
        }
        Ok(survey)
    }

    fn count(&mut self, reason: NotAdopted) {
        self.not.entry(reason).or_default().count += 1;
    }

    /// Counts a connection that cannot be read, and names the first ones.
    fn leave(&mut self, reason: NotAdopted, side: &Side, owner: Option<&Owner>) {
        self.count(reason);
        let named = self.not.entry(reason).or_default();
        if named.named.len() < MAX_NAMED {
            named.named.push(side.in_words(owner));
        }
    }

    /// Lists the connections of each place, [`MAX_CONNECTIONS`] in all.
    fn list(&mut self, seen: &Seen, scope: &Scope) -> io::Result<Vec<Connections>> {
        let Places { places, unseen } = Places::find();
        (0..unseen).for_each(|_| self.count(NotAdopted::UnseenNamespace));
        let (mut all, mut room) = (Vec::new(), MAX_CONNECTIONS);
        for place in places {
            let listed = match room {
                0 => Err(ErrorKind::StorageFull.into()),
                _ => place.within(|| Connections::list(MAX_CONNECTIONS)),
            };
            match listed {
                Ok(mut listed) => {
                    let established = &mut listed.established;
                    let is_all = place.is_own() || scope.steers(&place);
                    established.retain(|c| is_all || seen.sees(c.cgroup_id));
                    established.truncate(room);
                    room -= established.len();
                    all.push(listed);
                    self.places.push(place);
                }
                Err(error) if place.is_own() => return Err(error),
                // Nobody is there any more.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::debug!(%error, netns = place.inode, "cannot list the connections of a network namespace");
                    self.count(NotAdopted::UnseenNamespace);
                }
            }
        }
        Ok(all)
    }

    /// The sides that some rule may have read: connections that this host has opened, and those from other hosts that were
    /// accepted where they are steered. Those that are opened in another namespace than the agent's own, and not beneath its
    /// cgroup, the agent does not read. `all`: of each place.
    fn sides(&self, all: &[Connections], seen: &Seen, policy: &Policy, scope: &Scope) -> Vec<Side> {
        // A client in the database's own namespace is none from elsewhere, and one that is seen is read at its own end.
        let mut ends = HashSet::new();
        let of_places = all
            .iter()
            .enumerate()
            .filter(|_| !scope.incoming.is_empty());
        for (number, of_place) in of_places {
            for c in &of_place.established {
                ends.insert((Some(number), c.own, c.peer));
                if seen.sees(c.cgroup_id) {
                    ends.insert((None, c.own, c.peer));
                }
            }
        }
        let may_be_read = |place: &Place, side: &Side| {
            let Connection { own, peer, .. } = side.connection;
            let mut clients_at = [Some(side.place), None].into_iter();
            match side.is_incoming {
                true => {
                    scope.steers(place) && !clients_at.any(|at| ends.contains(&(at, peer, own)))
                }
                false => place.is_own() || seen.sees(side.connection.cgroup_id),
            }
        };
        let mut sides = Vec::new();
        for (number, (place, of_place)) in self.places.iter().zip(all).enumerate() {
            let of_place = of_place.established.iter().map(|connection| Side {
                connection: *connection,
                is_incoming: of_place.was_accepted(connection),
                place: number,
            });
            sides.extend(
                of_place.filter(|side| may_be_read(place, side) && side.may_concern(policy)),
            );
        }
        sides
    }
}

/// A side of a connection that is not on another host.
const NOBODY: abi::Endpoint = abi::Endpoint {
    addr: [0; 16],
    port_be: 0,
    family: 0,
    pad: 0,
};

/// The side of a connection that a policy decides about.
struct Side {
    connection: Connection,
    is_incoming: bool,
    /// Where it is, in [`Survey::places`].
    place: usize,
}

/// Whether a policy has anything read, or carried.
fn reads(policy: &Policy) -> bool {
    let actions = policy.rules.iter().map(Rule::kernel_action);
    let mut actions = actions.chain([policy.default_action]);
    actions.any(|action| matches!(action, Action::Observe | Action::Enrich))
}

impl Side {
    /// The address that the client has dialled.
    fn dialled(&self) -> SocketAddr {
        match self.is_incoming {
            false => self.connection.peer,
            true => self.connection.own,
        }
    }

    /// Names the connection: the client, what it has dialled, and the process that has it open, if that is known.
    fn in_words(&self, owner: Option<&Owner>) -> String {
        let client = match self.is_incoming {
            false => self.connection.own,
            true => self.connection.peer,
        };
        let of = owner.map_or_else(String::new, |owner| format!(" of {:?}", owner.name));
        format!("{client} to {}{of}", self.dialled())
    }

    /// Whether a rule that has flows read, or carries them, may hold: so the process is worth looking for.
    fn may_concern(&self, policy: &Policy) -> bool {
        let holds = |rule: &Rule| {
            let action = rule.kernel_action();
            let is_read = matches!(action, Action::Observe | Action::Enrich);
            is_read && rule.holds_to(self.dialled())
        };
        policy.rules.iter().any(holds)
            || matches!(policy.default_action, Action::Observe | Action::Enrich)
    }

    fn candidate(&self, owner: Option<&Owner>, netns: Option<u32>) -> Option<Candidate> {
        let to = self.dialled();
        // Nobody has accepted it, and it may be the agent that will.
        if self.connection.inode == 0 {
            return None;
        }
        if self.is_incoming {
            return Some(Candidate::elsewhere(self.connection.peer.ip(), to));
        }
        let owner = owner?;
        Some(Candidate {
            from: None,
            to,
            uid: self.connection.uid,
            gid: owner.gid,
            process: owner.name.clone(),
            cgroup: owner.cgroup.clone(),
            netns,
        })
    }

    /// `netns`: the number of its namespace's inode.
    fn verdict(&self, policy: &Policy, owner: Option<&Owner>, netns: Option<u32>) -> Verdict {
        if owner.is_some_and(is_agents) {
            return Verdict::None;
        }
        let Some(candidate) = self.candidate(owner, netns) else {
            return Verdict::Not(NotAdopted::NoProcess);
        };
        let met = met(policy, &candidate);
        let rule = met.index.and_then(|index| policy.rules.get(index));
        let is_drawn = |rule: &Rule| {
            rule.sample
                .is_none_or(|sample| sample.takes(self.connection.cookie.0))
        };
        if !rule.is_none_or(is_drawn) {
            return Verdict::None;
        }
        match met.action {
            Action::Observe => Verdict::Reads(met),
            Action::Enrich if rule.is_some_and(Rule::is_tapped) => Verdict::Reads(met),
            Action::Enrich => Verdict::Not(NotAdopted::NeedsAgent),
            Action::Bypass | Action::Deny => Verdict::None,
        }
    }

    fn wanted(
        &self,
        met: &Match,
        depth: Option<TapDepth>,
        owner: Option<&Owner>,
        scope: &Scope,
    ) -> Wanted {
        let connection = &self.connection;
        let client = match self.is_incoming {
            false => connection.own,
            true => connection.peer,
        };
        let client = address::to_abi(client);
        let slot = met.index.and_then(|index| u32::try_from(index).ok());
        let taps = compile::depth(depth.filter(|_| met.action == Action::Enrich)) as u8;
        let connect = abi::Connect {
            opener: abi::Opener {
                start_ns: 0,
                execs: 0,
                cgroup_id: owner.map_or(connection.cgroup_id, |owner| owner.cgroup_id),
                netns_cookie: 0,
                orig_dst: address::to_abi(self.dialled()),
                tgid: owner.map_or(0, |owner| owner.pid),
                uid: match self.is_incoming {
                    false => connection.uid,
                    true => u32::MAX,
                },
                gid: owner.map_or(u32::MAX, |owner| owner.gid),
                comm: owner.map_or([0; 16], |owner| comm(&owner.name)),
            },
            cookie: connection.cookie.0,
            // The default's slot is behind those of rules.
            slot: slot.unwrap_or(abi::MAX_RULES),
            forgets: scope.forgets,
            bound: 0,
            bound_port: 0,
            held: 0,
            generation: scope.generation,
            taps,
            unlimited: 0,
            group: abi::GROUP_NONE as u8,
            pad: [0; 1],
            holder_cgroup_id: 0,
        };
        Wanted {
            cookie: connection.cookie,
            rule: met.rule.clone(),
            place: self.place,
            adoption: abi::Adoption {
                observed: abi::Observed {
                    connect,
                    client: match self.is_incoming {
                        true => client,
                        false => NOBODY,
                    },
                    request_seq: 0,
                    answer_seq: 0,
                    // Its beginning has passed.
                    begun: 1,
                },
                client,
                outcome: abi::ADOPTED_GONE,
            },
        }
    }
}

/// Whether a process is an agent's. Any process can have the name, but none of another user's have the agent's user.
fn is_agents(owner: &Owner) -> bool {
    let has_own_user = || host::ids(std::process::id()).is_some_and(|own| own.uid == owner.uid);
    AGENTS.contains(&&*owner.name) && has_own_user()
}

/// The rule that a running connection meets. What its handshake said nobody will know.
fn met(policy: &Policy, candidate: &Candidate) -> Match {
    let first = policy.first_match(candidate);
    let asked = first.index.and_then(|index| policy.rules.get(index));
    if !asked.is_some_and(|rule| rule.is_session() && rule.asks_copies) {
        return first;
    }
    match policy.decide(candidate, &Session::default().closed()) {
        Decision::Decided(met) => met,
        Decision::Undecided => first,
    }
}

/// A process's name, as `struct up_opener` has it.
fn comm(name: &str) -> [u8; 16] {
    let mut comm = [0; 16];
    for (to, from) in comm.iter_mut().zip(name.bytes().take(15)) {
        *to = from;
    }
    comm
}

/// The cgroups whose sockets' packets the agent sees.
pub(super) enum Seen {
    All,
    Of(HashSet<u64>),
}

impl Seen {
    /// The cgroups beneath this one.
    pub(super) fn of(cgroup: &Path) -> Self {
        let root = host::cgroup2_root().ok().flatten();
        if root.as_deref() == Some(cgroup) {
            return Self::All;
        }
        let mut ids = HashSet::new();
        let mut left = vec![cgroup.to_owned()];
        while let Some(folder) = left.pop() {
            ids.extend(fs::metadata(&folder).map(|folder| folder.ino()));
            let children = fs::read_dir(folder).into_iter().flatten().flatten();
            let folders =
                children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()));
            left.extend(folders.map(|folder| folder.path()));
        }
        Self::Of(ids)
    }

    /// A socket of which the kernel does not say the cgroup passes for one that is seen: its packets show it.
    pub(super) fn sees(&self, cgroup_id: u64) -> bool {
        match self {
            Self::All => true,
            Self::Of(ids) => cgroup_id == 0 || ids.contains(&cgroup_id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_another_user_is_no_agent_whatever_its_name() {
        let own = host::ids(std::process::id()).unwrap();
        let owner = |name: &str, uid| Owner {
            pid: 1,
            name: name.to_owned(),
            uid,
            gid: 0,
            cgroup: PathBuf::new(),
            cgroup_id: 0,
        };
        for name in AGENTS {
            assert!(is_agents(&owner(name, own.uid)));
            assert!(!is_agents(&owner(name, own.uid + 1)));
        }
        assert!(!is_agents(&owner("java", own.uid)));
    }
}
