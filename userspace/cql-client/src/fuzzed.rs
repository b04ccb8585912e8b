//! Properties that hold for any bytes from a database that the agent itself asks. Only tests and fuzzers have this module.

use std::net::IpAddr;

use cassandra_protocol::{
    frame::{Opcode, Version},
    types::{ByIndex as _, ByName as _},
};

use crate::{NoAnswer, answer::Answer};

/// Versions, and the answers that are read.
const VERSIONS: [Version; 3] = [Version::V3, Version::V4, Version::V5];
const OPCODES: [Opcode; 3] = [Opcode::Result, Opcode::Supported, Opcode::Error];

/// No answer that the scanner lets pass makes `cassandra-protocol` panic, or tells of more than it has bytes for.
pub fn answer(data: &[u8]) {
    let Some((first, body)) = data.split_first() else {
        return;
    };
    let version = VERSIONS.get(usize::from(first % 3)).copied();
    let opcode = OPCODES.get(usize::from(first / 3 % 3)).copied();
    let (Some(version), Some(opcode)) = (version, opcode) else {
        return;
    };
    let answer = || Answer::new(version, opcode, body.to_vec());
    read(answer().outcome());
    if let Some(rows) = read(answer().rows()) {
        let told = rows.read(|row| {
            let text: Option<String> = row.by_name("query_string").ok().flatten();
            let ip: Option<IpAddr> = row.by_name("peer").ok().flatten();
            let port: Option<i32> = row.by_index(0).ok().flatten();
            Some((text, ip, port))
        });
        assert_eq!(read(told).map(|told| told.len()), Some(rows.len()));
    }
    if let Some(prepared) = read(answer().prepared()) {
        assert!(prepared.id.len() + prepared.types.len() <= body.len());
    }
    if let Some(options) = read(answer().supported()) {
        let values = options.values().map(Vec::len).sum::<usize>();
        assert!(options.len() + values <= body.len());
    }
}

/// Returns what was read, if it could be.
fn read<T>(told: Result<T, NoAnswer>) -> Option<T> {
    assert!(!matches!(told, Err(NoAnswer::Panicked)));
    told.ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[("answer", super::answer)]).unwrap();
    }
}
