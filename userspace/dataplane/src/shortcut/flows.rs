//! The flows that take the shortcut now, or would.

use std::{collections::HashMap as StdHashMap, time::Duration};

use aya::maps::{HashMap, MapData, MapError};
use ebpf::abi;
use nix::time::{ClockId, clock_gettime};

use crate::{
    address::{self, ClientAddr, OrigDst, SockCookie},
    counters::Cause,
    holds,
    rule_names::{self, Names},
    sys::PodOf,
    untouched::Untouched,
};
use policy::RuleName;

pub(super) type Ends = HashMap<MapData, u64, PodOf<abi::ShortcutEnd>>;

/// A flow of which a rule wants that it takes the shortcut.
#[derive(Clone, Debug)]
pub struct OnShortcut {
    /// The flow.
    pub flow: Untouched,
    /// Bytes that took the shortcut, to the database and to the client. None: at least one end is not
    /// on it, and all bytes take TCP.
    pub taken: Option<[u64; 2]>,
    /// Why an end of it was refused.
    pub refusal: Option<Cause>,
    /// The last message of either side took TCP.
    pub is_on_tcp: bool,
    /// An application did not read on while bytes waited in TCP: the flow has left for good.
    pub has_left: bool,
}

/// The names of live flows' rules: a rule's number is another rule's two policies later.
#[derive(Default)]
pub(super) struct Rules {
    /// By socket and when it was new.
    seen: StdHashMap<(u64, u64), RuleName>,
    /// Rules of flows that were there one look earlier: a look may miss some.
    before: StdHashMap<(u64, u64), RuleName>,
}

impl Rules {
    /// All flows; `refused`: those of which the client's end is, or None when those are not known. Those that have
    /// ended are forgotten.
    pub(super) fn flows(
        &mut self,
        ends: &Ends,
        refused: Option<Vec<abi::ShortcutRefusal>>,
        names: &Names,
    ) -> Result<Vec<OnShortcut>, MapError> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        let most = abi::MAX_SHORTCUT_ENDS as usize;
        // Collected first: one that goes meanwhile sends the iteration back to its beginning.
        let cookies: Vec<u64> = ends.keys().take(most).collect::<Result<_, _>>()?;
        let mut seen = StdHashMap::new();
        let mut flows = Vec::new();
        // None: it was told of before.
        let mut learn = |connect: &abi::Connect, client: &abi::Endpoint, since_ns: u64| {
            let key = (connect.cookie, since_ns);
            let known = self.seen.get(&key).or_else(|| self.before.get(&key));
            let rule = known
                .cloned()
                .unwrap_or_else(|| rule_names::rule_name(connect, names));
            seen.insert(key, rule.clone()).is_none().then(|| Untouched {
                cookie: SockCookie(connect.cookie),
                client: Some(ClientAddr::new(address::from_abi(client))),
                orig_dst: OrigDst::new(address::from_abi(&connect.opener.orig_dst)),
                process: holds::process(connect),
                is_tapped: false,
                is_undecided: false,
                was_running: false,
                is_left_out: false,
                is_held_out: false,
                rule,
                age: now.saturating_sub(Duration::from_nanos(since_ns)),
            })
        };
        for cookie in cookies {
            let Some(end) = get(ends, cookie)? else {
                continue;
            };
            if end.is_server != 0 || u32::from(end.leg) != abi::LEG_NONE {
                continue;
            }
            let database = match end.peer {
                0 => None,
                peer => get(ends, peer)?,
            };
            let flow = learn(&end.connect, &end.client, end.opened_ns);
            flows.extend(flow.map(|flow| OnShortcut {
                flow,
                taken: database.map(|database| [end.put_bytes, database.put_bytes]),
                refusal: cause(end.refusal),
                is_on_tcp: end.on_tcp != 0 || database.is_some_and(|d| d.on_tcp != 0),
                has_left: end.reader.leaves != 0 && end.peer != 0,
            }));
        }
        let are_known = refused.is_some();
        for abi::ShortcutRefusal { wish, client, .. } in refused.into_iter().flatten() {
            let flow = learn(&wish.connect, &client, wish.wished_ns);
            flows.extend(flow.map(|flow| OnShortcut {
                flow,
                taken: None,
                has_left: false,
                refusal: cause(wish.refusal),
                is_on_tcp: true,
            }));
        }
        if are_known {
            self.before = std::mem::replace(&mut self.seen, seen);
        } else {
            self.seen.extend(seen);
        }
        Ok(flows)
    }
}

/// The cause as the kernel keeps it: 0 is none.
fn cause(refusal: u32) -> Option<Cause> {
    let number = refusal.checked_sub(1)?;
    Cause::ALL.into_iter().find(|c| *c as u32 == number)
}

fn get(ends: &Ends, cookie: u64) -> Result<Option<abi::ShortcutEnd>, MapError> {
    match ends.get(&cookie, 0) {
        Ok(PodOf(end)) => Ok(Some(end)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
