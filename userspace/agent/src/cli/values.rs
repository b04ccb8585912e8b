//! Values of the command line's options. Each function reads one, or says what would be right; clap puts the option and the
//! value in front.

use std::net::{IpAddr, SocketAddr};

use policy::{Action, NetnsPattern, Timestamp};

use crate::{
    config::{GROUPS, USERS},
    marks::{self, FlowNumber, Target},
};

/// Reads the address and port of a server.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().map_err(|_| {
        "expected an address and a port, such as 10.1.2.3:9042 or [fd00::1]:9042".to_owned()
    })?;
    Ok(address)
}

/// Reads the address of a host.
pub fn ip(text: &str) -> Result<IpAddr, String> {
    let ip = text.parse();
    ip.map_err(|_| "expected an address, such as 10.1.2.3 or fd00::1".to_owned())
}

/// Reads the port of a server.
pub fn port(text: &str) -> Result<u16, String> {
    let port = text.parse().ok().filter(|port| *port > 0);
    port.ok_or_else(|| "expected a port from 1 to 65535, such as 9042".to_owned())
}

/// Reads the number of a process.
pub fn pid(text: &str) -> Result<u32, String> {
    let pid = text.parse().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| "expected the number of a process, such as 4711".to_owned())
}

/// Reads how many there are to be.
pub fn count(text: &str) -> Result<u64, String> {
    let count = text.parse().ok().filter(|count| *count > 0);
    count.ok_or_else(|| "expected a whole number from 1, such as 10".to_owned())
}

/// Reads the number of a mark.
pub fn mark(text: &str) -> Result<u64, String> {
    let number = text.parse();
    number.map_err(|_| "expected the number of a mark, as `underpass marks` lists it".to_owned())
}

/// Reads the number of a flow.
pub fn flow(text: &str) -> Result<String, String> {
    match FlowNumber::parse(text) {
        Some(_) => Ok(text.to_owned()),
        None => Err(
            "expected the number of a flow, as `underpass flows` lists it: 17, or socket-4711"
                .to_owned(),
        ),
    }
}

/// Reads which flows are marked: the agent reads them again, with the action.
pub fn target(text: &str) -> Result<String, String> {
    // The action that fewest conditions forbid.
    Target::parse(text, Action::Bypass).map(|_| text.to_owned())
}

/// Reads for how long a mark holds.
pub fn lasting(text: &str) -> Result<String, String> {
    marks::lasting(text).map(|_| text.to_owned())
}

/// Reads a moment.
pub fn moment(text: &str) -> Result<Timestamp, String> {
    let moment = text.parse();
    moment.map_err(|_| {
        "expected a date and a time with its zone, such as 2026-11-27T22:00:00+01:00".to_owned()
    })
}

/// Reads a network namespace.
pub fn netns(text: &str) -> Result<NetnsPattern, String> {
    let netns = NetnsPattern::parse(text)
        .ok_or("expected a name in /run/netns, an inode's number or an absolute path")?;
    match netns.inode() {
        Some(_) => Ok(netns),
        None => Err(format!(
            "expected one that is there, and there is no network namespace {netns}: `ip netns` lists those with a name"
        )),
    }
}

/// Reads a user, by id or by name.
pub fn uid(text: &str) -> Result<u32, String> {
    let id = USERS.parse(text);
    id.map_err(|why| format!("expected a user's id or name, {why}"))
}

/// Reads a group, by id or by name.
pub fn gid(text: &str) -> Result<u32, String> {
    let id = GROUPS.parse(text);
    id.map_err(|why| format!("expected a group's id or name, {why}"))
}

/// Reads a container's label.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=').filter(|(key, _)| !key.is_empty()) {
        Some((key, value)) => Ok((key.into(), value.into())),
        None => Err("expected KEY=VALUE, such as app=billing".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_is_read() {
        assert_eq!(address("[fd00::1]:9042").unwrap().port(), 9042);
        assert!(address("db1:9042").is_err() && address("10.1.2.3").is_err());
        assert!(ip("fd00::1").is_ok() && ip("10.1.2.3:9042").is_err());
        assert_eq!((port("9042"), port("0").is_err()), (Ok(9042), true));
        assert_eq!((pid("1"), pid("0").is_err()), (Ok(1), true));
        assert_eq!((count("1"), count("0").is_err()), (Ok(1), true));
        assert_eq!(mark("3"), Ok(3));
        for flow_number in ["17", "socket-4711"] {
            assert_eq!(flow(flow_number).unwrap(), flow_number);
            assert_eq!(target(flow_number).unwrap(), flow_number);
        }
        for selector in ["all", "process=spark*,to=:9042", "user=etl", "rule=shop"] {
            assert_eq!(target(selector).unwrap(), selector);
        }
        assert!(moment("2026-11-27T22:00:00Z").is_ok() && moment("2026-11-27").is_err());
        assert_eq!(label("a=b=c").unwrap(), ("a".into(), "b=c".into()));
    }
}
