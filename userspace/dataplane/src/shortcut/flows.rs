//! The flows that take the shortcut now, or would.

use std::{collections::HashMap as StdHashMap, time::Duration};

use aya::maps::{HashMap, MapData, MapError};
use ebpf::abi;
use nix::time::{ClockId, clock_gettime};

use crate::{
    address::{self, ClientAddr, OrigDst, SockCookie},
    holds::{self, Names},
    policy::RuleName,
    sys::Shared,
    untouched::Untouched,
};

pub(super) type Ends = HashMap<MapData, u64, Shared<abi::ShortcutEnd>>;

/// A flow of which a rule wants that it takes the shortcut.
#[derive(Clone, Debug)]
pub struct OnShortcut {
    /// Which.
    pub flow: Untouched,
    /// What has taken the shortcut, in bytes, to the database and to the client. None: the database's end is not on
    /// it, and all takes TCP.
    pub taken: Option<[u64; 2]>,
    /// The last message of either side took TCP.
    pub is_on_tcp: bool,
}

/// The names of live flows' rules: a rule's number is another rule's two policies later.
#[derive(Default)]
pub(super) struct Rules(StdHashMap<(u64, u64), RuleName>);

impl Rules {
    /// All flows. Those that have ended are forgotten.
    pub(super) fn flows(
        &mut self,
        ends: &Ends,
        names: &Names,
    ) -> Result<Vec<OnShortcut>, MapError> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
        let most = abi::MAX_SHORTCUT_ENDS as usize;
        // Collected first: one that goes meanwhile sends the iteration back to its beginning.
        let cookies: Vec<u64> = ends.keys().take(most).collect::<Result<_, _>>()?;
        let mut rules = StdHashMap::new();
        let mut flows = Vec::new();
        for cookie in cookies {
            let Some(end) = get(ends, cookie)? else {
                continue;
            };
            if end.is_server != 0 {
                continue;
            }
            let key = (cookie, end.opened_ns);
            let known = self.0.remove(&key);
            let rule = known.unwrap_or_else(|| holds::rule_name(&end.leg, names));
            rules.insert(key, rule.clone());
            let database = match end.peer {
                0 => None,
                peer => get(ends, peer)?,
            };
            flows.push(OnShortcut {
                flow: Untouched {
                    cookie: SockCookie(cookie),
                    client: Some(ClientAddr::new(address::from_abi(&end.client))),
                    orig_dst: OrigDst::new(address::from_abi(&end.leg.opener.orig_dst)),
                    process: holds::process(&end.leg),
                    rule,
                    age: now.saturating_sub(Duration::from_nanos(end.opened_ns)),
                },
                taken: database.map(|database| [end.put_bytes, database.put_bytes]),
                is_on_tcp: end.on_tcp != 0 || database.is_some_and(|d| d.on_tcp != 0),
            });
        }
        self.0 = rules;
        Ok(flows)
    }
}

fn get(ends: &Ends, cookie: u64) -> Result<Option<abi::ShortcutEnd>, MapError> {
    match ends.get(&cookie, 0) {
        Ok(Shared(end)) => Ok(Some(end)),
        Err(MapError::KeyNotFound) => Ok(None),
        Err(error) => Err(error),
    }
}
