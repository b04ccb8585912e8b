//! Bytes that wait in the kernel for a client that does not read.

use super::*;

#[test]
fn a_client_that_stops_reading_does_not_fill_the_kernel() {
    const BOUND: u64 = 8 << 20;
    for engine in ENGINES {
        let sandbox = Sandbox::new().unwrap();
        // What TCP takes by itself, for each of three sockets, is none of the agent's doing.
        let bounded = sandbox.server(|| {
            for buffer in ["rmem", "wmem"] {
                let sizes = format!("/proc/sys/net/ipv4/tcp_{buffer}");
                std::fs::write(sizes, "4096 131072 524288").unwrap();
            }
        });
        bounded.unwrap();
        let listener = listener(&sandbox);
        let agent = agent(&sandbox, engine, listener.local_addr().unwrap().port());
        let (mut client, mut database) = pair(&sandbox, &listener);
        ping_pong(&mut client, &mut database);
        // It may rest, and a slow client of a flow that is relayed says nothing about the splice.
        let is_spliced = || agent.json("/flows").unwrap()[0]["path"] == "splice";
        let deadline = std::time::Instant::now() + LOADED;
        while !is_spliced() {
            assert!(std::time::Instant::now() < deadline, "{engine}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // It rides, and may wait again.
        database.set_nonblocking(false).unwrap();
        database
            .set_write_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let chunk: Vec<u8> = (0..65_521_u32).map(|n| (n % 251) as u8).collect();
        let (mut sent, mut place) = (0, 0);
        let stopped = loop {
            match database.write(&chunk[place..]) {
                Ok(n) => (sent, place) = (sent + n, (place + n) % chunk.len()),
                Err(e) => break e.kind(),
            }
            assert!(sent < 64 << 20, "{engine}: nobody stops the database");
        };
        assert_eq!(stopped, ErrorKind::WouldBlock);
        let held = kernel_bytes(&sandbox);
        let own = database_queue(&sandbox, &database);
        assert!(
            held - own.memory < BOUND,
            "{engine}: {held} bytes in the kernel, {own:?}"
        );
        // What waits for the kernel's worker is in nobody's account: whatever has left the database and the
        // client has not taken is somewhere.
        let between = sent as u64 - own.payload;
        assert!(
            between < BOUND,
            "{engine}: {between} bytes between database and client"
        );
        let (mut left, mut place) = (sent, 0);
        let mut buffer = vec![0; 1 << 20];
        let deadline = std::time::Instant::now() + LOADED * 4;
        while left > 0 {
            match client.read(&mut buffer) {
                Ok(0) => panic!("{engine}: {left} bytes are missing"),
                Ok(n) => {
                    for byte in &buffer[..n] {
                        assert_eq!(*byte, chunk[place], "{engine}: {left} left");
                        place = (place + 1) % chunk.len();
                    }
                    left = left.checked_sub(n).expect("no more than was sent");
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    assert!(
                        std::time::Instant::now() < deadline,
                        "{engine}: {left} left"
                    );
                    std::thread::yield_now();
                }
                Err(e) => panic!("{engine}: {e}"),
            }
        }
        drop(database);
        client.set_nonblocking(false).unwrap();
        client.set_read_timeout(Some(LOADED)).unwrap();
        assert_eq!(client.read(&mut buffer).unwrap(), 0, "{engine}");
        drop(client);
        // They are counted when the flow comes back.
        let deadline = std::time::Instant::now() + LOADED;
        while agent
            .metric("underpass_spills_total{slow=\"client\"}")
            .unwrap()
            == 0.0
        {
            assert!(std::time::Instant::now() < deadline, "{engine}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Contents of the database's own send queue, which is the database's.
#[derive(Debug)]
struct OwnQueue {
    /// With its overhead.
    memory: u64,
    /// Bytes that the other side has not acknowledged.
    payload: u64,
}

fn database_queue(sandbox: &Sandbox, database: &TcpStream) -> OwnQueue {
    let own = database.local_addr().unwrap().to_string();
    let shown = sandbox.server(|| {
        let output = std::process::Command::new("ss")
            .args(["-tmnH", "src"])
            .arg(&own)
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    });
    let shown = shown.unwrap();
    let queue = shown.split("skmem:(").nth(1).unwrap_or_default();
    let memory = queue.split(',').find_map(|f| f.strip_prefix('w'));
    // State, what is to be read, what is to be acknowledged.
    let payload = shown.split_whitespace().nth(2);
    let [memory, payload] = [memory, payload].map(|n| n.unwrap().parse().unwrap());
    OwnQueue { memory, payload }
}
