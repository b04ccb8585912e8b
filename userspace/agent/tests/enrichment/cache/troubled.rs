//! A Redis that hangs, dies, is slow, talks nonsense, or was written to by others.

use super::*;

#[test]
fn a_redis_that_hangs_or_dies_is_nobody_elses_trouble() {
    with_redis("cache_redis_dies", |world, redis| {
        world.caches_here(", ttl = \"10m\", timeout = \"100ms\"");
        let mut client = world.client(4);
        client.inserts(1, "s3cret one");
        let cached = |client: &mut Client, expected: &str| {
            eventually("it is cached again", || {
                let before = world.reads("hit");
                assert_eq!(reads(client), expected, "nothing old");
                world.reads("hit") > before
            });
        };
        cached(&mut client, "s3cret one");
        redis.signal(Signal::SIGSTOP);
        assert_eq!(reads(&mut client), "s3cret one");
        eventually("it is known", || {
            world.cached("failures", "cause=\"late\"") > 0
        });
        // What Redis is not told of now, it is told of when it is there again.
        client.inserts(1, "s3cret two");
        for _ in 0..10 {
            assert_eq!(reads(&mut client), "s3cret two");
        }
        assert!(
            world.reads("away") > 0,
            "a hung Redis is not waited for again"
        );
        redis.signal(Signal::SIGCONT);
        cached(&mut client, "s3cret two");
        drop(redis);
        client.inserts(1, "s3cret three");
        assert_eq!(reads(&mut client), "s3cret three");
        eventually("it is away", || {
            assert_eq!(reads(&mut client), "s3cret three");
            world.cached("failures", "cause=\"connect\"") > 0
        });
        let _redis = Redis::start(world);
        cached(&mut client, "s3cret three");
        assert!(world.agent.log().contains("the cache is away"));
        assert!(!world.agent.log().contains("s3cret"), "no values are told");
    });
}

#[test]
fn a_redis_that_is_slow_is_not_waited_for() {
    with_redis("cache_redis_slow", |world, redis| {
        world.caches_here(", ttl = \"10m\", timeout = \"100ms\"");
        let (mut client, mut other) = (world.client(4), world.client(5));
        for round in 0..3 {
            let value = format!("value {round}");
            let late = world.cached("failures", "cause=\"late\"");
            redis.does("CLIENT PAUSE 500 ALL");
            // What was written while it does not listen is not read from it afterwards.
            client.inserts(1, &value);
            eventually("it is known", || {
                assert_eq!(reads(&mut client), value);
                assert_eq!(reads(&mut other), value);
                world.cached("failures", "cause=\"late\"") > late
            });
            eventually("it is asked again", || {
                let before = world.reads("hit");
                assert_eq!(reads(&mut other), value, "nothing old");
                world.reads("hit") > before
            });
        }
    });
}

/// Ends a thread that looks at it.
struct Ends<'e>(&'e AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_redis_that_talks_nonsense_is_nobody_elses_trouble() {
    world(|world| {
        for nonsense in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"$9223372036854775807\r\nx",
            b"$-7\r\n",
            b"*1000000000\r\n",
            &[0xFF; 4096],
            b"",
        ] {
            let listener = world.sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
            let listener = listener.unwrap().unwrap();
            let redis = listener.local_addr().unwrap();
            let over = AtomicBool::new(false);
            thread::scope(|scope| {
                // Also if it fails.
                let _ends = Ends(&over);
                scope.spawn(|| {
                    listener.set_nonblocking(true).unwrap();
                    let mut said = Vec::new();
                    while !over.load(Relaxed) {
                        match listener.accept() {
                            Ok((mut stream, _)) => {
                                // Who has enough of it is gone.
                                let _ = stream.write_all(nonsense);
                                said.push(stream);
                            }
                            Err(_) => thread::sleep(Duration::from_millis(2)),
                        }
                    }
                });
                let port = world.database.addr().port();
                world.puts(&format!(
                    "[[rule]]\nname = \"r\"\nto = [\":{port}\"]\naction = \"enrich\"\npipeline = [{{ \
                     transform = \"cache\", redis = \"{redis}\", tables = [\"shop.orders\"], ttl = \"10m\", \
                     timeout = \"100ms\" }}]\n"
                ));
                let failures = || {
                    let causes = ["protocol", "late", "connect", "ended"];
                    let metrics = world.agent.metrics().unwrap();
                    let counted = metrics.iter().filter(|(sample, _)| {
                        sample.starts_with("underpass_cache_failures_total")
                            && causes.iter().any(|cause| sample.contains(cause))
                    });
                    counted.map(|(_, times)| *times).sum::<f64>()
                };
                let before = failures();
                let mut client = world.client(4);
                client.inserts(1, "right");
                eventually("it is counted", || {
                    assert_eq!(reads(&mut client), "right");
                    failures() > before
                });
            });
            assert_eq!(world.reads("hit"), 0);
        }
    });
}

#[test]
fn what_was_changed_in_redis_is_a_miss() {
    with_redis("cache_changed", |world, redis| {
        world.caches_here(LONG);
        let mut client = world.client(4);
        client.inserts(1, "right");
        assert_eq!(reads(&mut client), "right");
        let changes = [
            "redis.call('setrange', k, 100, 'wrong')",
            "redis.call('append', k, 'x')",
            "redis.call('set', k, string.rep('x', 9000000))",
            "redis.call('set', k, redis.call('getrange', k, 0, 20))",
            "redis.call('del', k) redis.call('rpush', k, 'x')",
        ];
        for (n, change) in (1..).zip(changes) {
            // It is told of the answer while the client reads it.
            eventually("the answer is in Redis", || {
                redis.each("redis.call('exists', k)") == 1
            });
            assert_eq!(redis.each(change), 1);
            assert_eq!(reads(&mut client), "right", "{change}");
            assert_eq!(world.reads("bad"), n, "{change}");
            let before = world.reads("hit");
            assert_eq!(reads(&mut client), "right");
            assert_eq!(world.reads("hit"), before + 1, "it is kept anew");
        }
        // All of it is lost, and with it which writes were seen.
        redis.does("FLUSHALL");
        let before = world.reads("hit");
        eventually("it is kept anew", || {
            assert_eq!(reads(&mut client), "right");
            world.reads("hit") > before
        });
        assert_eq!(world.cached("failures", "cause=\"protocol\""), 0);
    });
}
