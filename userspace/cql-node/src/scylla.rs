//! ScyllaDB's extensions of the protocol, as a node offers them and a client asks for them
//! (`docs/dev/protocol-extensions.md` of ScyllaDB).

use std::collections::HashSet;

use super::body::{Reader, put_bytes, put_i32, put_string, put_u16};
use super::failure::{Failure, Result};

/// PREPARED and EXECUTE have the id of the result's metadata before v5, too.
pub const METADATA_ID: &str = "SCYLLA_USE_METADATA_ID";
/// PREPARED says whether a statement is a lightweight transaction.
pub const LWT_MARK: &str = "SCYLLA_LWT_ADD_METADATA_MARK";
/// An error of its own says that a table's limit is reached.
pub const RATE_LIMIT_ERROR: &str = "SCYLLA_RATE_LIMIT_ERROR";
/// A RESULT's payload tells where a tablet is.
pub const TABLETS_V1: &str = "TABLETS_ROUTING_V1";
/// And an EXECUTE says which version of it the client knows.
pub const TABLETS_V2: &str = "TABLETS_ROUTING_V2_EXPERIMENTAL";

/// The bit of PREPARED's flags that marks a lightweight transaction.
const LWT_MASK: u32 = 1 << 31;
/// The code of an error about a limit.
const RATE_LIMIT_CODE: i32 = 0xF000;
/// The version of every tablet: no two of its sixteen parts are alike.
const TABLET_VERSION: u64 = 0x0123_4567_89AB_CDEF;
/// Statements of one connection whose tablets were told. When there are more, all are told again.
const MAX_TOLD: usize = 1024;

/// The ScyllaDB that a node seems to be.
#[derive(Debug, Clone)]
pub struct Scylla {
    /// The extensions that it offers, by their constants here.
    pub extensions: Vec<&'static str>,
    /// The number of its shards. A connection's shard is the client's port modulo that.
    pub shards: u16,
    /// A table, without its keyspace, that has reached its limit: requests for it fail.
    pub limited: Option<String>,
}

impl Scylla {
    /// A ScyllaDB of two shards that offers these extensions.
    #[must_use]
    pub fn of(extensions: &[&'static str]) -> Self {
        Self {
            extensions: extensions.to_vec(),
            shards: 2,
            limited: None,
        }
    }

    /// Returns the further options of a SUPPORTED, for a client with this port, of a node with that one.
    pub(super) fn supported(&self, client: u16, own: u16) -> Vec<(&'static str, String)> {
        let value = |key: &str| match key {
            LWT_MARK => format!("LWT_OPTIMIZATION_META_BIT_MASK={LWT_MASK}"),
            RATE_LIMIT_ERROR => format!("ERROR_CODE={RATE_LIMIT_CODE}"),
            _ => String::new(),
        };
        let extensions = self.extensions.iter().map(|key| (*key, value(key)));
        let shards = self.shards.max(1);
        let about_shards = [
            ("SCYLLA_SHARD", (client % shards).to_string()),
            ("SCYLLA_NR_SHARDS", shards.to_string()),
            ("SCYLLA_SHARD_AWARE_PORT", own.to_string()),
            (
                "SCYLLA_PARTITIONER",
                "org.apache.cassandra.dht.Murmur3Partitioner".to_owned(),
            ),
            (
                "SCYLLA_SHARDING_ALGORITHM",
                "biased-token-round-robin".to_owned(),
            ),
            ("SCYLLA_SHARDING_IGNORE_MSB", "12".to_owned()),
        ];
        extensions.chain(about_shards).collect()
    }
}

/// Extensions that a connection has begun with.
#[derive(Clone, Debug, Default)]
pub(super) struct Asked {
    pub(super) metadata_id: bool,
    lwt_mark: bool,
    rate_limit_error: bool,
    tablets: Option<Tablets>,
    /// Statements whose tablets the client was told.
    told: HashSet<[u8; 16]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tablets {
    V1,
    V2,
}

impl Asked {
    /// Returns the extensions that a STARTUP asks for and `offered` has.
    pub(super) fn of(startup: &[(&str, &str)], offered: &Scylla) -> Self {
        let has = |key: &&str| {
            offered.extensions.contains(key) && startup.iter().any(|(asked, _)| asked == key)
        };
        let tablets = match (has(&TABLETS_V2), has(&TABLETS_V1)) {
            (true, _) => Some(Tablets::V2),
            (false, true) => Some(Tablets::V1),
            (false, false) => None,
        };
        Self {
            metadata_id: has(&METADATA_ID),
            lwt_mark: has(&LWT_MARK),
            rate_limit_error: has(&RATE_LIMIT_ERROR),
            tablets,
            told: HashSet::new(),
        }
    }

    /// Flags of a PREPARED.
    pub(super) fn prepared_flags(&self, is_conditional: bool) -> i32 {
        match self.lwt_mark && is_conditional {
            true => LWT_MASK.cast_signed(),
            false => 0,
        }
    }

    /// Reads an EXECUTE's end, behind the parameters: a byte that tells a part of the tablet's version, or nothing.
    /// Returns whether the client is to be told of the tablet.
    ///
    /// # Errors
    /// There is more, or less.
    pub(super) fn end_of_execute(&mut self, id: [u8; 16], body: &mut Reader<'_>) -> Result<bool> {
        let is_news = match self.tablets {
            None => false,
            Some(Tablets::V1) => {
                if self.told.len() >= MAX_TOLD {
                    self.told.clear();
                }
                self.told.insert(id)
            }
            Some(Tablets::V2) => {
                let block = body.u8()?;
                let part = TABLET_VERSION >> (4 * u32::from(block >> 4)) & 0x0F;
                part != u64::from(block & 0x0F)
            }
        };
        match body.is_empty() {
            true => Ok(is_news),
            false => Err(Failure::protocol("there is more behind an EXECUTE")),
        }
    }

    /// The payload that tells of a tablet, which has all tokens.
    pub(super) fn put_tablet(&self, host: [u8; 16], shard: i32, out: &mut Vec<u8>) {
        let mut replica = Vec::new();
        put_bytes(&mut replica, Some(&host));
        put_bytes(&mut replica, Some(&shard.to_be_bytes()));
        let mut replicas = Vec::new();
        put_i32(&mut replicas, 1);
        put_bytes(&mut replicas, Some(&replica));
        let mut tablet = Vec::new();
        put_bytes(&mut tablet, Some(&i64::MIN.to_be_bytes()));
        put_bytes(&mut tablet, Some(&i64::MAX.to_be_bytes()));
        put_bytes(&mut tablet, Some(&replicas));
        let is_v2 = self.tablets == Some(Tablets::V2);
        if is_v2 {
            put_bytes(&mut tablet, Some(&TABLET_VERSION.to_be_bytes()));
        }
        put_u16(out, 1);
        put_string(
            out,
            match is_v2 {
                true => "tablets-routing-v2",
                false => "tablets-routing-v1",
            },
        );
        put_bytes(out, Some(&tablet));
    }

    /// The error of a table that has reached its limit.
    pub(super) fn limit_reached(&self, is_write: bool) -> Failure {
        let message = "Per-partition rate limit reached";
        match self.rate_limit_error {
            true => Failure::rate_limit(RATE_LIMIT_CODE, message, is_write),
            false => Failure::config(message),
        }
    }
}
