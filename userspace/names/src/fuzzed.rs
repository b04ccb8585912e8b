//! Properties that hold for any bytes from name servers. Only tests and fuzzers have this module.

use crate::message::{Found, Kind, Read, query, read};

/// An answer has as many records as it has bytes for, of the kind that was asked for.
pub fn dns(data: &[u8]) {
    let (kind, name) = match data.first().map(|first| first % 4) {
        Some(0) => (Kind::A, "db.shop"),
        Some(1) => (Kind::Aaaa, "db.shop"),
        Some(2) => (Kind::Srv, "_cql._tcp.shop"),
        Some(_) => (Kind::A, "a"),
        None => return,
    };
    let rest = data.get(1..).unwrap_or_default();
    look(rest, name, kind);
    // Behind the question, as servers repeat it.
    if let Some(mut asked) = query(7, name, kind)
        && let Some((flags, records)) = rest.split_first_chunk::<2>()
        && let Some(said) = asked.get_mut(2..8)
    {
        said.copy_from_slice(&[0x80 | flags[0], flags[1] & 0x0F, 0, 1, 0, flags[1] >> 4]);
        asked.extend_from_slice(records);
        look(&asked, name, kind);
    }
}

fn look(bytes: &[u8], name: &str, kind: Kind) {
    let Read::Answer(Ok(records)) = read(bytes, 7, name, kind) else {
        return;
    };
    let found = match records.found {
        Found::Addresses(found) => {
            assert!(kind != Kind::Srv);
            assert!(found.iter().all(|ip| ip.is_ipv4() == (kind == Kind::A)));
            found.len()
        }
        Found::Services(found) => {
            assert!(kind == Kind::Srv);
            assert!(found.iter().all(|(host, _)| host.len() <= 255));
            found.len()
        }
    };
    assert!(found > 0 && found <= bytes.len());
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[("dns", super::dns)]).unwrap();
    }
}
