//! Any bytes as what hosts share by etcd.

use std::sync::Arc;

use limits::{Book, Levels, Limit, Member};

use super::{hear, leading::note};

const RATE: f64 = 100.0;

/// Values by keys, each ended by a zero byte: a share is no more than the rate, and levels can be read.
pub fn sharing(data: &[u8]) {
    let limit = Arc::new(Limit::new("shop.user", RATE));
    let share = limit.share("alice");
    let mut member = Member::default();
    member.hold([&limit]);
    let mut book = Book::default();
    for (revision, value) in (1..).zip(data.split(|byte| *byte == 0)) {
        share.count(false);
        member.look(1.0);
        let record = member.record();
        member.published(revision);
        let value = match value.split_first() {
            // A host that is gone.
            Some((b'-', host)) => {
                note(&mut book, host, None, revision);
                continue;
            }
            // Levels, by whoever can write there.
            Some((b'=', levels)) => {
                hear(levels, &mut member);
                assert_within(&share);
                continue;
            }
            Some((_, value)) => value,
            None => continue,
        };
        if let Some(record) = record {
            let own = serde_json::to_vec(&record).unwrap_or_default();
            note(&mut book, b"own", Some(&own), revision);
        }
        note(&mut book, b"other", Some(value), revision);
        let levels = book.levels();
        let text = serde_json::to_string(&levels).unwrap_or_default();
        let read: Result<Levels, _> = serde_json::from_str(&text);
        assert_eq!(read.ok().as_ref(), Some(&levels), "{text}");
        hear(text.as_bytes(), &mut member);
        assert_within(&share);
    }
}

fn assert_within(share: &limits::Share) {
    if let Some(rate) = share.rate() {
        assert!(rate > 0.0 && rate <= RATE, "{rate}");
    }
}
