//! `--filter` of the lists: which keys the entries of each have, and where an entry has them.

use std::net::{IpAddr, SocketAddr};

use policy::{Filter, FilterFact, FilterKey, Filtered};
use serde_json::Value;
use steps::tail::TAIL_KEYS;

use FilterKey as Key;

/// Keys of `flows`.
const FLOW_KEYS: [Key; 13] = [
    Key::Process,
    Key::Pid,
    Key::Uid,
    Key::Client,
    Key::To,
    Key::Rule,
    Key::User,
    Key::Keyspace,
    Key::Action,
    Key::Path,
    Key::Driver,
    Key::Application,
    Key::Netns,
];

/// Keys of `statements`; with `--top` also of [`TOP_KEYS`].
const STATEMENT_KEYS: [Key; 4] = [Key::Rule, Key::Keyspace, Key::Table, Key::Kind];

/// Keys of `statements --top` and `top`.
const TOP_KEYS: [Key; 7] = [
    Key::Rule,
    Key::Keyspace,
    Key::Table,
    Key::Kind,
    Key::Process,
    Key::Client,
    Key::Path,
];

/// Keys of `denied`.
const DENIED_KEYS: [Key; 7] = [
    Key::Process,
    Key::Pid,
    Key::Uid,
    Key::Client,
    Key::To,
    Key::Rule,
    Key::User,
];

/// Reads a filter of flows.
pub fn of_flows(text: &str) -> Result<Filter, String> {
    Filter::parse(text, &FLOW_KEYS)
}

/// Reads a filter of counted statements.
pub(super) fn of_statements(text: &str, top: bool) -> Result<Filter, String> {
    match top {
        true => Filter::parse(text, &TOP_KEYS),
        false => Filter::parse(text, &STATEMENT_KEYS),
    }
}

/// Reads a filter of counted statements, whether `--top` is said or not.
pub fn of_top(text: &str) -> Result<String, String> {
    of_statements(text, true).map(|_| text.to_owned())
}

/// Reads a filter of denials.
pub fn of_denials(text: &str) -> Result<Filter, String> {
    Filter::parse(text, &DENIED_KEYS)
}

/// Reads a filter of statements that pass.
pub(super) fn of_tail(text: &str) -> Result<Filter, String> {
    Filter::parse(text, &TAIL_KEYS)
}

/// An entry of a list as the agent gives it.
pub(super) struct Entry<'v>(pub(super) &'v Value);

impl Filtered for Entry<'_> {
    fn fact(&self, key: Key) -> Option<FilterFact<'_>> {
        let name = match key {
            Key::To => "orig_dst",
            key => key.as_str(),
        };
        let of_session = || self.0.get("session").and_then(|session| session.get(name));
        let value = self.0.get(name).or_else(of_session)?;
        match key {
            Key::Pid | Key::Uid => {
                let number = value.as_u64().and_then(|number| number.try_into().ok());
                number.map(FilterFact::Number)
            }
            Key::Client | Key::To => address(value.as_str()?),
            // Where there is none, some lists have an empty text.
            _ => value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(Into::into),
        }
    }
}

/// An address, with or without a port.
fn address(text: &str) -> Option<FilterFact<'static>> {
    if let Ok(at) = text.parse::<SocketAddr>() {
        return Some(FilterFact::Address(at.ip(), Some(at.port())));
    }
    let ip = text.parse::<IpAddr>().ok()?;
    Some(FilterFact::Address(ip, None))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_entry_has_its_facts_wherever_they_stand() {
        let flow = json!({
            "id": 7, "client": "10.0.0.7:4000", "process": "web", "pid": 12, "uid": 1000, "orig_dst": "[fd00::1]:9042",
            "rule": "r", "action": "enrich", "path": "tap", "netns": null,
            "session": { "user": "app", "driver": "d", "unknown": ["keyspace"] },
        });
        for (filter, is_taken) in [
            (
                "process=web,pid=12,uid=1000,client=10.0.0.0/8,to=[fd00::/8]:9042",
                true,
            ),
            ("rule=r,action=enrich,path=tap,user=app,driver=d", true),
            ("keyspace=*", false),
            ("not keyspace=*,not netns=*,not application=*", true),
            ("pid=13", false),
        ] {
            let filter = of_flows(filter).unwrap();
            assert_eq!(filter.takes(&Entry(&flow)), is_taken, "{filter}");
        }
        let row = json!({ "rule": "r", "keyspace": "", "table": "t", "kind": "select", "client": "fd00::7" });
        assert!(
            of_statements("table=t,not keyspace=*,client=[fd00::7]", true)
                .unwrap()
                .takes(&Entry(&row))
        );
    }

    #[test]
    fn each_list_has_its_keys() {
        assert!(
            of_statements("process=web", false)
                .unwrap_err()
                .contains("nothing in this list has it")
        );
        assert!(of_statements("process=web", true).is_ok());
        assert!(of_denials("keyspace=k").is_err());
        assert!(of_tail("table=shop.carts").is_ok());
        assert!(
            of_flows("usr=a")
                .unwrap_err()
                .contains("did you mean `user`?")
        );
    }
}
