//! A bad frame behind good ones: all that was good arrives, and nothing that follows.

use super::*;

/// Good frames have to arrive before the flow is closed, also at a database that is behind.
#[test]
fn a_slow_database_gets_every_good_frame_before_a_bad_one() {
    /// Flows, each with its bad frame at another place around the one where buffers are full.
    const PLACES: usize = 4;
    on_a_host(|host| {
        let good = query(4, 1, &"x".repeat(32 << 10));
        let room = frames_until_stopped(host, &good);
        for place in room.saturating_sub(PLACES)..room {
            let mut pair = settled(host, 4);
            for n in 0..place {
                pair.client.write_all(&good).unwrap();
                assert!(has_passed(host, &pair, (n + 1) * good.len()), "frame {n}");
            }
            let bad = header(4, 2, QUERY, -1);
            pair.client.write_all(&[&good[..], &bad].concat()).unwrap();
            thread::sleep(BEHIND);
            let arrived = rest(&mut pair.server).len();
            assert_eq!(arrived, (place + 1) * good.len(), "{place} frames, and one");
            expect_cut(pair);
        }
    });
}

/// Bytes behind a bad frame are thrown away; both sides see FIN, not a reset that could
/// overtake what was good.
#[test]
fn what_follows_a_bad_frame_is_thrown_away() {
    on_a_host(|host| {
        let good = query(4, 1, SELECT);
        let mut pair = settled(host, 4);
        // More than one chunk, less than the buffers on the way.
        let behind = vec![0; 200 << 10];
        let bad = header(4, 2, QUERY, i32::MIN);
        let bytes = [&good[..], &bad, &behind].concat();
        pair.client.write_all(&bytes).unwrap();
        assert_eq!(rest(&mut pair.server), good);
        let end = pair.client.read(&mut [0; 1]);
        assert_eq!(end.map_err(|e| e.kind()), Ok(0), "the client sees FIN");
        host.counts(&[("flows_closed", "length", 1)]);
    });
}

/// How many frames it takes until the buffers to a database that does not read are full, so
/// that the agent holds a part of the last one back.
fn frames_until_stopped(host: &Host<'_>, good: &[u8]) -> usize {
    let mut pair = settled(host, 4);
    let mut frames = 0;
    loop {
        pair.client.write_all(good).unwrap();
        frames += 1;
        if !has_passed(host, &pair, frames * good.len()) {
            return frames;
        }
    }
}

/// Whether the agent has written so much behind the handshake.
fn has_passed(host: &Host<'_>, pair: &Pair, bytes: usize) -> bool {
    let wanted = (startup(4, OPTIONS).len() + bytes) as u64;
    let deadline = Instant::now() + BEHIND;
    while Instant::now() < deadline {
        if flow(host, pair)["bytes_to_database"] == wanted {
            return true;
        }
        thread::sleep(Duration::from_millis(1));
    }
    false
}
