//! A cache behind a database whose answers would expand: they pass by, and are not kept.

use cassandra_protocol::compression::Compression;

use super::*;
use crate::common::{
    frames::{READY, RESPONSE},
    world::{bombs, scripted},
};

/// Memory for the parts of an answer that may be kept, and for copies on their way.
const MOST_MORE: usize = 16 << 20;

/// The value `small`, in a row of one column.
fn row(stream: i16, algorithm: Compression) -> Vec<u8> {
    let mut body = [2_i32, 1, 1].map(i32::to_be_bytes).concat();
    body.extend([short(b"shop"), short(b"orders"), short(b"v")].concat());
    body.extend([0, 0x0D, 0, 0, 0, 1, 0, 0, 0, 5]);
    body.extend(b"small");
    let body = algorithm.encode(&body).unwrap();
    let mut answer = frame(RESPONSE | 4, stream, RESULT, &body);
    answer[1] = 1;
    answer
}

fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut frame = vec![0; 9];
    stream.read_exact(&mut frame).unwrap();
    let length = u32::from_be_bytes(frame[5..].try_into().unwrap());
    frame.resize(9 + length as usize, 0);
    stream.read_exact(&mut frame[9..]).unwrap();
    frame
}

#[test]
fn answers_that_would_expand_pass_by() {
    for algorithm in [Compression::Lz4, Compression::Snappy] {
        with_redis("cache_bombs", |world, redis| {
            let name = algorithm.as_str().unwrap();
            let bad: Vec<_> = bombs(1).into_iter().filter(|(of, _)| *of == name).collect();
            let answers: Vec<_> = bad.into_iter().map(|(_, bomb)| bomb).collect();
            let answers = [&answers[..], &[row(1, algorithm)]].concat();
            let (addr, database) = scripted(world, answers.len(), {
                let answers = answers.clone();
                move |nth, _| answers[nth].clone()
            });
            world.caches(&[addr], LONG);
            let stream = world.sandbox.client(|| TcpStream::connect(addr));
            let mut client = stream.unwrap().unwrap();
            client.set_read_timeout(Some(PATIENCE)).unwrap();
            let options = [("CQL_VERSION", "3.0.0"), ("COMPRESSION", name)];
            client.write_all(&startup(4, &options)).unwrap();
            assert_eq!(read_frame(&mut client)[4], READY);
            let mut asks = |nth: usize| {
                client.write_all(&query(4, 1, SELECT)).unwrap();
                assert!(read_frame(&mut client) == answers[nth], "{name} {nth}");
            };
            // It cannot be shown to the pipeline, or is more than is kept.
            let left = || {
                let metrics = world.agent.metrics().unwrap().into_iter();
                let unseen = "underpass_pipeline_unseen_total{outcome=\"passed\"";
                let counts = metrics.filter(|(name, _)| name.starts_with(unseen));
                let unseen = counts.map(|(_, count)| count as u64).sum::<u64>();
                unseen + world.cached("stores", "outcome=\"too_large\"")
            };
            let before = world.most_resident();
            let good = answers.len() - 1;
            for nth in 0..good {
                asks(nth);
                eventually("it is told", || left() == nth as u64 + 1);
            }
            let more = world.most_resident() - before;
            assert!(more < MOST_MORE, "{more} bytes for {name}");
            assert_eq!(redis.each(""), 0, "none is kept");
            // What is fit is, behind them.
            asks(good);
            eventually("it is kept", || redis.each("redis.call('del', k)") == 1);
            drop(client);
            database.join().unwrap();
        });
    }
}
