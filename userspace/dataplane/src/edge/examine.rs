//! How interfaces that are to be guarded are, for `doctor`.

use std::{fs, path::Path};

use nix::net::if_::if_nametoindex;

use super::{
    Forward, Interface, Mode, OnInterface,
    pins::{self, EdgePins},
    programs_of,
};
use crate::doctor::{Finding, State};

/// Looks at each. Changes nothing.
pub fn examine(pins: &Path, interfaces: &[Interface]) -> Vec<Finding> {
    let unlike = unlike(pins, interfaces);
    let finding = |interface: &Interface| {
        let (state, detail) = match (look(pins, interface), &unlike) {
            ((State::Ok, mode), Some(odd)) if interface.forward != Forward::Off => {
                (State::Notice, would_lose(&mode, odd))
            }
            (looked, _) => looked,
        };
        Finding {
            what: format!("edge {}", interface.name),
            state,
            detail,
        }
    };
    interfaces.iter().map(finding).collect()
}

/// The agent has them alike, but somebody may have changed that since.
fn would_lose(mode: &str, odd: &str) -> String {
    format!(
        "{mode}, and {odd} generic: what one sends on, the other's driver may drop; start the agent \
         again, or give them the same `mode`"
    )
}

/// An interface that forwards in generic mode beside others that do not.
fn unlike(pins: &Path, interfaces: &[Interface]) -> Option<String> {
    let forwarding = interfaces.iter().filter(|i| i.forward != Forward::Off);
    let modes = forwarding.filter_map(|interface| {
        let programs = programs_of(&interface.name).ok()?;
        Some((interface, our_mode(pins, &interface.name, &programs)?))
    });
    let (generic, native): (Vec<_>, Vec<_>) = modes.partition(|(_, mode)| *mode == Mode::Generic);
    let (odd, _) = generic.first().filter(|_| !native.is_empty())?;
    Some(odd.name.clone())
}

fn look(pins: &Path, interface: &Interface) -> (State, String) {
    let name = &interface.name;
    let programs = match programs_of(name) {
        Ok(programs) => programs,
        Err(error) => return (State::Notice, error.to_string()),
    };
    let Some(first) = programs.first() else {
        let detail = "no XDP program: `underpass run` attaches it";
        return (State::Notice, detail.to_owned());
    };
    let Some(mode) = our_mode(pins, name, &programs) else {
        let detail = format!(
            "an XDP program that is not underpass's (id {}, {}): it is never replaced",
            first.program,
            first.mode.as_str()
        );
        return (State::Notice, detail);
    };
    let family_off = |family: &&str| {
        let path = format!("/proc/sys/net/{family}/conf/{name}/forwarding");
        fs::read_to_string(path).is_ok_and(|on| on.trim() == "0")
    };
    let off = ["ipv4", "ipv6"].into_iter().filter(family_off);
    let off: Vec<&str> = off.collect();
    if interface.forward != Forward::Off && !off.is_empty() {
        let detail = format!(
            "{}; forwards no {}: `sysctl net.{}.conf.{name}.forwarding=1`",
            mode.as_str(),
            off.join(", no "),
            off.first().unwrap_or(&""),
        );
        return (State::Notice, detail);
    }
    let vlans = vlans_over(name);
    if interface.forward != Forward::Off && !vlans.is_empty() {
        let detail = format!(
            "{}; {} on it: where hardware takes the tag off a packet before the edge has it, the edge \
             forwards the packet as if it had none: `ethtool -K {name} rxvlan off`",
            mode.as_str(),
            vlans.join(", "),
        );
        return (State::Notice, detail);
    }
    match mode {
        Mode::Generic => {
            let detail = "generic: in the stack, slower than in the driver";
            (State::Notice, detail.to_owned())
        }
        _ => (State::Ok, mode.as_str().to_owned()),
    }
}

/// The devices of VLANs over an interface of this thread's namespace.
fn vlans_over(name: &str) -> Vec<String> {
    // Where there are none, there is often no such file.
    let config = fs::read_to_string("/proc/thread-self/net/vlan/config").unwrap_or_default();
    vlans_in(&config, name)
}

/// Rows of device, number and the interface beneath (net/8021q/vlanproc.c).
fn vlans_in(config: &str, name: &str) -> Vec<String> {
    let rows = config.lines().map(|row| row.split('|').map(str::trim));
    rows.filter_map(|mut row| {
        let (device, _number, over) = (row.next()?, row.next()?, row.next()?);
        (over == name).then(|| device.to_owned())
    })
    .collect()
}

fn our_mode(pins: &Path, name: &str, programs: &[OnInterface]) -> Option<Mode> {
    let ifindex = if_nametoindex(name).ok()?;
    let links = EdgePins::links_beneath(pins).ok()?;
    let mut ours = links
        .into_iter()
        .filter(|(at, _)| *at == ifindex)
        .filter_map(|(_, path)| Some(pins::open_link(&path)?.info().ok()?.program_id()));
    ours.find_map(|id| Some(programs.iter().find(|on| on.program == id)?.mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vlans_are_known_by_what_they_are_over() {
        let config = "VLAN Dev name    | VLAN ID\n\
                      Name-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                      eth0.7         | 7  | eth0\n\
                      eth1.7         | 7  | eth1\n\
                      storage        | 12  | eth0\n";
        assert_eq!(vlans_in(config, "eth0"), ["eth0.7", "storage"]);
        assert_eq!(vlans_in(config, "eth0.7"), [""; 0]);
        assert_eq!(vlans_over("lo"), [""; 0]);
    }
}
