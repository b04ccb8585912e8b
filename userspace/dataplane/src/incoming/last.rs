//! The last connections at the agent's addresses: while they are there, their packets need the routing.

use std::{
    fs,
    net::IpAddr,
    thread,
    time::{Duration, Instant},
};

use super::addresses;

/// A database that does not answer the end of a connection is not waited for.
const LIMIT: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Waits until there are none in the calling thread's namespace, or none but those that do not end.
pub(super) fn wait() {
    let deadline = Instant::now() + LIMIT;
    while any(|state| state != TIME_WAIT) && Instant::now() < deadline {
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether there are any in the calling thread's namespace that do not end: of flows that outlive the
/// agent.
pub(super) fn go_on() -> bool {
    any(|state| state == ESTABLISHED)
}

fn any(counts: fn(&str) -> bool) -> bool {
    ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
        .iter()
        .any(|path| fs::read_to_string(path).is_ok_and(|table| any_in(&table, counts)))
}

/// net/tcp_states.h, as /proc has it.
const ESTABLISHED: &str = "01";
const TIME_WAIT: &str = "06";

/// Lines are `sl local_address rem_address st ...`; addresses are words of the host's byte order in
/// hexadecimal, then the port.
fn any_in(table: &str, counts: fn(&str) -> bool) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let ends = [fields.next(), fields.next()];
        let state = fields.next();
        let is_ours = |end: &str| address(end).is_some_and(addresses::is_one);
        state.is_some_and(counts) && ends.into_iter().flatten().any(is_ours)
    })
}

fn address(end: &str) -> Option<IpAddr> {
    let (hex, _port) = end.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(hex.get(at..at + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    if hex.len() == 8 {
        return Some(IpAddr::from(word(0)?));
    }
    let mut bytes = [0; 16];
    for (n, part) in bytes.chunks_exact_mut(4).enumerate() {
        part.copy_from_slice(&word(8 * n)?);
    }
    Some(IpAddr::from(bytes).to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_at_the_agents_addresses_are_found_but_not_those_that_have_ended() {
        let table = |end: &str, state: &str| {
            format!("  sl  local\n   0: 0100000A:2352 {end}:2352 {state} 00000000:00000000\n")
        };
        let ends = |table: &str| any_in(table, |state| state != TIME_WAIT);
        assert!(ends(&table("1000567F", "01")));
        assert!(!ends(&table("1000567F", "06")));
        assert!(!ends(&table("0100567F", "01")));
        assert!(ends(&table("0000000000000000FFFF00001200567F", "08")));
        assert!(
            ends(&table("646E75FD617072650000000011000000", "01")) || cfg!(target_endian = "big")
        );
        assert!(!ends("  sl  local\n"));
        let goes_on = |table: &str| any_in(table, |state| state == ESTABLISHED);
        assert!(goes_on(&table("1000567F", "01")));
        assert!(!goes_on(&table("1000567F", "04")));
    }
}
