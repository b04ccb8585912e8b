//! Mirrors that the test plays: what goes to them, byte for byte, and what they may say.

use crate::common::{
    eventually,
    frames::{RESPONSE, RESULT, frame, void},
    world::{ERROR, EXECUTE, PREPARE, bombs, insert, nobody, scripted, short, world},
};

#[test]
fn what_the_mirror_has_forgotten_is_prepared_again_there() {
    const TEXT: &str = "INSERT INTO shop.orders (id, v) VALUES (?, ?)";
    world(|world| {
        let prepared = |stream, id: &[u8]| {
            let body = [&[0, 0, 0, 4][..], &short(id), &[0; 12]].concat();
            frame(RESPONSE | 4, stream, RESULT, &body)
        };
        let (addr, mirror) = scripted(world, 4, move |nth, asked| {
            let stream = i16::from_be_bytes([asked[2], asked[3]]);
            let (opcode, id): (u8, &[u8]) = match nth {
                0 | 2 => (PREPARE, b""),
                1 => (EXECUTE, b"theirs"),
                _ => (EXECUTE, b"another"),
            };
            assert_eq!(asked[4], opcode, "{nth}");
            match nth {
                0 | 2 => assert!(asked.ends_with(TEXT.as_bytes())),
                _ => assert!(asked[9..].starts_with(&short(id))),
            }
            match nth {
                0 => prepared(stream, b"theirs"),
                1 => {
                    let body = [&[0, 0, 0x25, 0, 0, 0][..], &short(b"theirs")].concat();
                    frame(RESPONSE | 4, stream, ERROR, &body)
                }
                2 => prepared(stream, b"another"),
                _ => frame(RESPONSE | 4, stream, RESULT, &[0, 0, 0, 1]),
            }
        });
        world.rule(addr, ", timeout = \"10s\"");
        let mut client = world.client(5);
        let id = client.prepares(TEXT);
        let execute = client.execute(&id, &[&1_i32.to_be_bytes(), b"x"]);
        assert_eq!(client.ask(&execute).0, RESULT);
        eventually("it has it", || world.fate("acknowledged") == 1);
        // The connection ends with the rule that it was for, and its flows.
        world.rule(nobody(world), "");
        drop(client);
        mirror.join().unwrap();
    });
}

#[test]
fn a_mirror_that_talks_nonsense_is_nobody_elses_trouble() {
    world(|world| {
        for nonsense in [
            vec![0x16; 64],
            // Compressed, of another version, for a stream that nobody uses, without an end.
            frame(RESPONSE | 5, 0, RESULT, &[0; 4]),
            [&frame(RESPONSE | 4, 77, RESULT, &[0; 4])[..], &[0xFF; 64]].concat(),
        ] {
            let (addr, mirror) = scripted(world, 1, move |_, _| nonsense.clone());
            let settings = ", what = [\"writes\", \"reads\"], compare = true, timeout = \"10s\"";
            world.rule(addr, settings);
            let before = world.fate("lost");
            let mut client = world.client(4);
            client.inserts(1, "x");
            eventually("it is given up", || world.fate("lost") == before + 1);
            mirror.join().unwrap();
            client.inserts(2, "x");
        }
    });
}

#[test]
fn what_is_long_goes_there_compressed() {
    use cassandra_protocol::compression::Compression as Algorithm;

    for (name, algorithm) in [("lz4", Algorithm::Lz4), ("snappy", Algorithm::Snappy)] {
        world(|world| {
            let value = "compressed, ".repeat(100);
            let insert = insert(1, &value);
            let expected = [&(insert.len() as u32).to_be_bytes()[..], insert.as_bytes()].concat();
            // One row of one column of text, as the database has it.
            let mut rows = [2_i32, 1, 1].map(i32::to_be_bytes).concat();
            rows.extend([short(b"shop"), short(b"orders"), short(b"v")].concat());
            rows.extend([0, 0x0D, 0, 0, 0, 1]);
            rows.extend((value.len() as u32).to_be_bytes());
            rows.extend(value.as_bytes());
            let (addr, mirror) = scripted(world, 2, move |nth, asked| {
                let answer = match nth {
                    0 => {
                        assert_eq!(asked[1], 1, "compressed");
                        let body = algorithm.decode(asked[9..].to_vec()).unwrap();
                        assert!(body.starts_with(&expected) && asked.len() < expected.len());
                        1_i32.to_be_bytes().to_vec()
                    }
                    _ => {
                        assert_eq!(asked[1], 0, "too short");
                        rows.clone()
                    }
                };
                let stream = i16::from_be_bytes([asked[2], asked[3]]);
                let body = algorithm.encode(&answer).unwrap();
                let mut answer = frame(RESPONSE | 4, stream, RESULT, &body);
                answer[1] = 1;
                answer
            });
            let settings = format!(
                ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\", compression = \"{name}\""
            );
            world.rule(addr, &settings);
            let mut client = world.client(4);
            client.does(&insert);
            client.does("SELECT v FROM shop.orders WHERE id = 1");
            eventually("both are compared", || world.compared("same") == 2);
            world.rule(nobody(world), "");
            drop(client);
            mirror.join().unwrap();
        });
    }
}

/// No more is made of them than is compared, and what comes behind them is read.
#[test]
fn answers_of_a_mirror_that_would_expand_are_not_compared() {
    const MOST_MORE: usize = 16 << 20;
    for (name, most) in [("lz4", 3), ("snappy", 2)] {
        world(|world| {
            let (addr, mirror) = scripted(world, most + 1, move |nth, asked| {
                let stream = i16::from_be_bytes([asked[2], asked[3]]);
                let bombs = bombs(stream).into_iter().filter(|(of, _)| *of == name);
                bombs
                    .map(|(_, bomb)| bomb)
                    .nth(nth)
                    .unwrap_or_else(|| void(4, stream))
            });
            let settings = format!(
                ", what = [\"writes\"], compare = true, timeout = \"10s\", compression = \"{name}\""
            );
            world.rule(addr, &settings);
            let mut client = world.client(4);
            let before = world.most_resident();
            for nth in 0..most {
                client.inserts(1, "x");
                eventually("it is read", || world.compared("unknown") == nth as u64 + 1);
            }
            let more = world.most_resident() - before;
            assert!(more < MOST_MORE, "{more} bytes for {name}");
            client.inserts(2, "x");
            eventually("it is compared", || world.compared("same") == 1);
            assert_eq!(world.fate("lost"), 0);
            world.rule(nobody(world), "");
            drop(client);
            mirror.join().unwrap();
        });
    }
}
