//! Queries and answers of DNS (RFC 1035) as bytes, by the crate `simple-dns`.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use simple_dns::{
    CLASS, Name, Packet, PacketFlag, QCLASS, QTYPE, Question, RCODE, TYPE, rdata::RData,
};

use crate::Failure;

/// Steps from an alias (CNAME) to the next, in one answer. Resolvers follow 8 to 16.
const MAX_ALIASES: usize = 16;

/// Bytes of a header (RFC 1035, 4.1.1), of the shortest question, and of the shortest record.
const HEADER_BYTES: usize = 12;
const LEAST_QUESTION_BYTES: usize = 5;
const LEAST_RECORD_BYTES: usize = 11;

/// The kind of records that are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    A,
    Aaaa,
    Srv,
}

/// The records of an answer, in the order in which they came.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Records {
    pub(crate) found: Found,
    /// The time for which the records, and the aliases that lead to them, hold.
    pub(crate) ttl: Duration,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Addresses(Vec<IpAddr>),
    /// Hosts and ports.
    Services(Vec<(String, u16)>),
}

/// An answer to a query.
#[derive(Debug)]
pub(crate) enum Read {
    /// Bytes that do not answer the query. The answer may still come.
    Other,
    /// The answer does not fit into a datagram.
    Truncated,
    Answer(Result<Records, Failure>),
}

impl Kind {
    fn as_type(self) -> TYPE {
        match self {
            Self::A => TYPE::A,
            Self::Aaaa => TYPE::AAAA,
            Self::Srv => TYPE::SRV,
        }
    }
}

/// The bytes of a query. None: no query can have this name.
pub(crate) fn query(id: u16, name: &str, kind: Kind) -> Option<Vec<u8>> {
    let mut packet = Packet::new_query(id);
    packet.set_flags(PacketFlag::RECURSION_DESIRED);
    let name = Name::new(name).ok()?;
    let kind = QTYPE::TYPE(kind.as_type());
    let class = QCLASS::CLASS(CLASS::IN);
    packet
        .questions
        .push(Question::new(name, kind, class, false));
    packet.build_bytes_vec().ok()
}

/// Reads what has come for a query. Whatever the bytes are, it returns.
pub(crate) fn read(bytes: &[u8], id: u16, name: &str, kind: Kind) -> Read {
    let Some(cut) = only_answers(bytes) else {
        return Read::Other;
    };
    // A panic in the crate costs the answer.
    let parsed = catch_unwind(AssertUnwindSafe(|| match Packet::parse(&cut) {
        Ok(packet) => of_packet(&packet, id, name, kind),
        Err(_) if begins_with(bytes, id) => Read::Answer(Err(Failure::Malformed)),
        Err(_) => Read::Other,
    }));
    parsed.unwrap_or(Read::Answer(Err(Failure::Malformed)))
}

fn begins_with(bytes: &[u8], id: u16) -> bool {
    bytes.starts_with(&id.to_be_bytes())
}

/// The message without its last two sections, which are not read. None: it has no room for the records that it declares, for
/// which memory would be taken.
fn only_answers(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut cut = bytes.to_vec();
    let (header, rest) = cut.split_at_mut_checked(HEADER_BYTES)?;
    let count = |high: u8, low: u8| usize::from(u16::from_be_bytes([high, low]));
    let [_, _, _, _, q_high, q_low, a_high, a_low, others @ ..] = header else {
        return None;
    };
    let least =
        count(*q_high, *q_low) * LEAST_QUESTION_BYTES + count(*a_high, *a_low) * LEAST_RECORD_BYTES;
    others.fill(0);
    (rest.len() >= least).then_some(cut)
}

fn of_packet(packet: &Packet<'_>, id: u16, name: &str, kind: Kind) -> Read {
    let [question] = packet.questions.as_slice() else {
        return Read::Other;
    };
    let asked = text(&question.qname);
    let is_ours = packet.id() == id
        && packet.has_flags(PacketFlag::RESPONSE)
        && asked.is_some_and(|asked| asked == name.trim_end_matches('.'))
        && question.qtype == QTYPE::TYPE(kind.as_type());
    if !is_ours {
        return Read::Other;
    }
    match packet.rcode() {
        // Also where an alias leads to a name that is not there.
        RCODE::NameError => return Read::Answer(Err(Failure::NoSuchName)),
        RCODE::ServerFailure => return Read::Answer(Err(Failure::ServerFailed)),
        RCODE::NoError => {}
        other => return Read::Answer(Err(Failure::Refused(other as u16))),
    }
    if packet.has_flags(PacketFlag::TRUNCATION) {
        return Read::Truncated;
    }
    Read::Answer(records(packet, name, kind))
}

/// The records of the name that was asked for, or of the one that its aliases lead to.
fn records(packet: &Packet<'_>, name: &str, kind: Kind) -> Result<Records, Failure> {
    let mut owner = name.trim_end_matches('.').to_owned();
    let mut ttl = u32::MAX;
    for _ in 0..=MAX_ALIASES {
        let of_owner = packet.answers.iter().filter(|record| {
            record.class == CLASS::IN && text(&record.name).is_some_and(|name| name == owner)
        });
        let (mut addresses, mut services, mut alias) = (Vec::new(), Vec::new(), None);
        for record in of_owner {
            match (&record.rdata, kind) {
                (RData::A(a), Kind::A) => addresses.push(Ipv4Addr::from(a.address).into()),
                (RData::AAAA(a), Kind::Aaaa) => addresses.push(Ipv6Addr::from(a.address).into()),
                (RData::SRV(srv), Kind::Srv) => {
                    services.extend(text(&srv.target).map(|host| (host, srv.port)));
                }
                (RData::CNAME(target), _) => alias = text(&target.0),
                _ => continue,
            }
            ttl = ttl.min(record.ttl);
        }
        let ttl = Duration::from_secs(ttl.into());
        let found = match (addresses.is_empty(), services.is_empty()) {
            (false, _) => Found::Addresses(addresses),
            (_, false) => Found::Services(services),
            _ => match alias {
                Some(next) => {
                    owner = next;
                    continue;
                }
                None => return Err(Failure::NoAddress),
            },
        };
        return Ok(Records { found, ttl });
    }
    Err(Failure::Malformed)
}

/// A name in lower case, without the dot at its end. None: it is no host's.
fn text(name: &Name<'_>) -> Option<String> {
    let mut all = String::new();
    for label in name.as_bytes() {
        let legal = |c: &u8| c.is_ascii_alphanumeric() || *c == b'-' || *c == b'_';
        if !label.iter().all(legal) {
            return None;
        }
        let dot = if all.is_empty() { "" } else { "." };
        all += dot;
        all += &std::str::from_utf8(label).ok()?.to_ascii_lowercase();
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::{
        ResourceRecord,
        rdata::{A, CNAME, SRV},
    };

    use super::*;

    fn answered(name: &str, kind: Kind, records: Vec<(&str, u32, RData<'_>)>) -> Vec<u8> {
        let query = query(7, name, kind).unwrap();
        let mut reply = Packet::parse(&query).unwrap().into_reply();
        for (name, ttl, data) in records {
            let owner = Name::new_unchecked(name).into_owned();
            let record = ResourceRecord::new(owner, CLASS::IN, ttl, data.into_owned());
            reply.answers.push(record);
        }
        reply.build_bytes_vec_compressed().unwrap()
    }

    fn a(last: u8) -> RData<'static> {
        let address = u32::from(Ipv4Addr::new(10, 1, 0, last));
        RData::A(A { address })
    }

    fn alias(to: &'static str) -> RData<'static> {
        RData::CNAME(CNAME(Name::new_unchecked(to)))
    }

    fn found(read: Read) -> Records {
        match read {
            Read::Answer(Ok(records)) => records,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn addresses_are_those_that_aliases_lead_to_for_the_shortest_time_on_the_way() {
        let bytes = answered(
            "db.shop",
            Kind::A,
            vec![
                ("other.shop", 1, a(9)),
                ("c.shop", 50, a(1)),
                ("c.shop", 40, a(2)),
                ("DB.shop", 30, alias("b.shop")),
                ("b.shop", 60, alias("C.shop")),
            ],
        );
        let records = found(read(&bytes, 7, "db.shop", Kind::A));
        let addresses = [1, 2].map(|n| IpAddr::from([10, 1, 0, n])).to_vec();
        assert_eq!(records.found, Found::Addresses(addresses));
        assert_eq!(records.ttl, Duration::from_secs(30));
    }

    #[test]
    fn aliases_in_a_circle_are_malformed() {
        let circle = vec![("a.x", 1, alias("b.x")), ("b.x", 1, alias("a.x"))];
        let bytes = answered("a.x", Kind::A, circle);
        let read = read(&bytes, 7, "a.x", Kind::A);
        assert!(
            matches!(read, Read::Answer(Err(Failure::Malformed))),
            "{read:?}"
        );
    }

    #[test]
    fn services_have_hosts_and_ports() {
        let srv = RData::SRV(SRV {
            priority: 0,
            weight: 5,
            port: 9142,
            target: Name::new_unchecked("N1.shop"),
        });
        let bytes = answered(
            "_cql._tcp.shop",
            Kind::Srv,
            vec![("_cql._tcp.shop", 5, srv)],
        );
        let records = found(read(&bytes, 7, "_cql._tcp.shop", Kind::Srv));
        assert_eq!(
            records.found,
            Found::Services(vec![("n1.shop".to_owned(), 9142)])
        );
    }

    #[test]
    fn what_answers_another_question_is_no_answer() {
        let bytes = answered("db.shop", Kind::A, vec![("db.shop", 1, a(1))]);
        let is_other =
            |bytes: &[u8], id, name, kind| matches!(read(bytes, id, name, kind), Read::Other);
        assert!(is_other(&bytes, 8, "db.shop", Kind::A));
        assert!(is_other(&bytes, 7, "db.shops", Kind::A));
        assert!(is_other(&bytes, 7, "db.shop", Kind::Aaaa));
        let query = query(7, "db.shop", Kind::A).unwrap();
        assert!(is_other(&query, 7, "db.shop", Kind::A));
        assert!(!is_other(&bytes, 7, "db.shop.", Kind::A));
    }

    #[test]
    fn more_records_than_there_are_bytes_take_no_memory() {
        let mut bytes = answered("db.shop", Kind::A, vec![("db.shop", 1, a(1))]);
        bytes[6..8].copy_from_slice(&[0xFF, 0xFF]);
        assert!(only_answers(&bytes).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), at in 0..64_usize) {
            read(&bytes, 7, "db.shop", Kind::A);
            // And such as begin like an answer.
            let whole = answered("db.shop", Kind::A, vec![("db.shop", 30, alias("b.shop")), ("b.shop", 1, a(1))]);
            let keep = at.min(whole.len());
            bytes.splice(..0, whole[..keep].iter().copied());
            read(&bytes, 7, "db.shop", Kind::A);
        }
    }
}
