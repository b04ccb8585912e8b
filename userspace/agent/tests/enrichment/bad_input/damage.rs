//! Random damage.

use super::*;

/// Damaged streams: each side receives a beginning of what the other sent, and nothing else.
#[test]
fn random_damage_never_alters_what_passes() {
    host::on_a_host(|host| damaged(host, true));
}

/// Damaged streams through steps that have statements prepared again which nobody has seen
/// prepared, and answer those requests.
#[test]
fn random_damage_through_a_pipeline_is_nobody_elses_trouble() {
    let folder = tempfile::tempdir().unwrap();
    on_a_host_with(&passive(folder.path()), |host| damaged(host, false));
}

/// `exact`: nothing is answered in the database's place.
fn damaged(host: &Host<'_>, exact: bool) {
    const FLOWS: u64 = 300;
    for seed in 1..=FLOWS {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let version = 3 + random.below(3) as u8;
        let (mut up, mut down) = conversation(version);
        for _ in 0..=random.below(3) {
            let side = if random.below(2) == 0 {
                &mut up
            } else {
                &mut down
            };
            let at = random.below(side.len());
            side[at] = random.below(256) as u8;
        }
        let mut pair = host.pair();
        let (mut to_send_up, mut to_send_down) = (&up[..], &down[..]);
        while !to_send_up.is_empty() || !to_send_down.is_empty() {
            let (to_send, stream) = match random.below(2) {
                0 => (&mut to_send_up, &mut pair.client),
                _ => (&mut to_send_down, &mut pair.server),
            };
            let (now, later) = to_send.split_at(to_send.len().min(random.below(200)));
            // The flow may be closed by now.
            let _ = stream.write_all(now);
            *to_send = later;
        }
        let _ = pair.client.shutdown(Shutdown::Write);
        let _ = pair.server.shutdown(Shutdown::Write);
        for (stream, sent) in [(&mut pair.server, &up), (&mut pair.client, &down)] {
            let mut arrived = Vec::new();
            // A reset ends it as well.
            let _ = stream.read_to_end(&mut arrived);
            assert!(!exact || sent.starts_with(&arrived), "seed {seed}");
        }
    }
    common::eventually("all flows end", || host.flows() == 0);
}

/// A handshake and some requests; what the client and what the database sends.
fn conversation(version: u8) -> (Vec<u8>, Vec<u8>) {
    let (mut up, mut down) = (startup(version, OPTIONS), ready(version));
    for stream in 0..20 {
        let (request, response) = (query(version, stream, SELECT), void(version, stream));
        let seal = |frame: Vec<u8>| if version < 5 { frame } else { segment(&frame) };
        up.extend(seal(request));
        down.extend(seal(response));
    }
    assert_eq!(down[4], READY);
    (up, down)
}

/// xorshift64*: a seed is a run.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % limit
    }
}
