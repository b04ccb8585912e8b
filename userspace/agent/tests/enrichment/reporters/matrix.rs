//! Flows that a tap may meet, by rows and places: each row is carried twice, by a rule that taps and by one that is inline. Of
//! copies the same is told as of the bytes themselves, and each frame and byte is accounted for.

mod talk;

use std::{
    io::{BufRead, BufReader, Seek, SeekFrom},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
};

use sandbox::{Agent, Netns, Resident, run_in};
use socket2::SockRef;

use super::{tapped::without_times, *};
use crate::common::{
    BINARY, Distance, Family, Hosts, PATIENCE, accept, connect, ip_options, socket, wire::INCOMING,
};
use talk::{AT_ONCE, Resets, Talk, talks};

/// Where both ends of a flow are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// On one host, whose packets have up to 64 KiB.
    Loopback,
    /// On one host, and the client's socket is one of IPv6 that dials an address of IPv4.
    Mapped,
    /// On two hosts, with packets of IPv6 that are longer than its header can say (BIG TCP).
    Big,
    /// On two hosts, with packets of 9,000 bytes.
    Jumbo,
    /// On two hosts, with packets of IPv6 that have extension headers.
    Extended,
    /// The client is in a network namespace of its own, and is the first one there to connect.
    Container,
    /// The client is on another host, and the agent on the database's.
    Incoming,
}

/// Rules, each named like its path, in the order in which they carry a row.
const RULES: [&str; 2] = ["tap", "inline"];

const MTU: u64 = 9_000;
const ETHERNET: u64 = 14;

/// Longer than the length in a header of IPv6 can say, and no multiple of a record's pieces.
const BIG_BYTES: u64 = 190_000;

const RING_BYTES: u32 = 16 << 20;

/// The host of the databases, as a container reaches it.
const BESIDE: [&str; 2] = ["198.51.100.1/24", "198.51.100.2/24"];
const BESIDE_DATABASE: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);

/// A journal that is read on.
struct Journal {
    file: PathBuf,
    read: u64,
    /// Lines that nobody has taken.
    lines: Vec<Value>,
}

impl Journal {
    /// Waits until there are so many lines.
    fn wait_for(&mut self, lines: usize) {
        eventually("every line is written", || {
            self.read_on();
            self.lines.len() >= lines
        });
    }

    fn read_on(&mut self) {
        let Ok(mut file) = fs::File::open(&self.file) else {
            return;
        };
        file.seek(SeekFrom::Start(self.read)).unwrap();
        let mut file = BufReader::new(file);
        let mut line = String::new();
        while file.read_line(&mut line).unwrap() > 0 && line.ends_with('\n') {
            self.read += line.len() as u64;
            self.lines.push(serde_json::from_str(&line).unwrap());
            line.clear();
        }
    }
}

/// A place with an agent.
struct Stage<'h> {
    place: Place,
    hosts: &'h Hosts,
    container: &'h Netns,
    agent: Agent<'h>,
    /// Databases, one for each rule.
    listeners: [TcpListener; 2],
    journals: [Journal; 2],
    /// The longest packets, on the mean of a turn, that the application's host has received from the other one, and sent to it.
    longest: [u64; 2],
}

/// Bytes and packets of one direction of a device.
#[derive(Clone, Copy)]
struct Traffic {
    bytes: u64,
    packets: u64,
}

impl Traffic {
    fn mean(self) -> u64 {
        self.bytes / self.packets.max(1)
    }

    fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes - before.bytes,
            packets: self.packets - before.packets,
        }
    }
}

impl Stage<'_> {
    /// Packets that the application's host has received from the other one, and sent to it.
    fn devices(&self) -> [Traffic; 2] {
        let devices = || fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let devices = self.hosts.direct(devices);
        let mut lines = devices.lines();
        let veth = lines.find_map(|line| line.trim().strip_prefix("veth:"));
        let counts = veth.unwrap().split_whitespace();
        let counts: Vec<u64> = counts.map(|count| count.parse().unwrap()).collect();
        [0, 8].map(|at| Traffic {
            bytes: counts[at],
            packets: counts[at + 1],
        })
    }

    fn dial(&self, nth: usize) -> TcpStream {
        let to = self.listeners[nth].local_addr().unwrap();
        let place = self.place;
        let dial = || match (place, RULES[nth]) {
            (Place::Extended, _) => {
                let socket = socket(Family::V6);
                ip_options::set(&socket, Family::V6);
                socket.connect(&to.into()).unwrap();
                socket.into()
            }
            (Place::Mapped, _) => {
                let to = Family::Mapped.dialled(to.ip(), to.port());
                connect(Family::Mapped, to).unwrap()
            }
            (Place::Big, _) => connect(Family::V6, to).unwrap(),
            _ => connect(Family::V4, to).unwrap(),
        };
        let cgroup = &self.hosts.app.cgroup;
        match place {
            Place::Incoming => run_in(Some(&self.hosts.database), None, dial).unwrap(),
            Place::Container => run_in(Some(self.container), Some(cgroup), dial).unwrap(),
            _ => self.hosts.client(dial),
        }
    }

    fn connect(&self, nth: usize) -> [TcpStream; 2] {
        let listener = &self.listeners[nth];
        let is_served = || self.agent.json("/namespaces").unwrap() != json!([]);
        if self.place == Place::Container && RULES[nth] == "inline" && !is_served() {
            // Its first connection is left alone.
            drop(self.dial(nth));
            drop(accept(listener));
            eventually("the namespace is served", is_served);
        }
        let client = self.dial(nth);
        let (database, _) = accept(listener);
        for end in [&client, &database] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(PATIENCE)).unwrap();
        }
        [client, database]
    }

    /// Carries all that is said by a rule. Returns the lines that are told of it.
    fn carry(&mut self, nth: usize, talk: &Talk) -> Vec<Value> {
        let [client, database] = self.connect(nth);
        let mut told = 0;
        for ([asked, answered], count) in &talk.turns {
            let before = self.devices();
            sends(&client, &database, asked);
            sends(&database, &client, answered);
            let now = self.devices();
            for ((longest, now), before) in self.longest.iter_mut().zip(now).zip(before) {
                *longest = now.since(before).mean().max(*longest);
            }
            told += count;
            if *count == AT_ONCE {
                self.journals[nth].wait_for(told);
            }
        }
        self.travels(nth);
        match &talk.resets {
            None => client.shutdown(std::net::Shutdown::Write).unwrap(),
            Some((Resets::Client, part)) => {
                sends(&client, &database, part);
                resets(&client);
            }
            Some((Resets::Database, part)) => {
                sends(&database, &client, part);
                resets(&database);
            }
        }
        drop((client, database));
        eventually("it has ended", || {
            self.agent.json("/flows").unwrap() == json!([])
        });
        // What was out.
        let journal = &mut self.journals[nth];
        journal.wait_for(talk.frames[0] as usize);
        std::mem::take(&mut journal.lines)
    }

    /// The one flow that is there goes by the rule's path.
    fn travels(&self, nth: usize) {
        let list = self.agent.json("/flows").unwrap();
        let paths = list.as_array().unwrap().iter().map(|flow| &flow["path"]);
        let path = if RULES[nth] == "tap" { "tap" } else { "enrich" };
        assert_eq!(paths.collect::<Vec<_>>(), [path], "{list}");
    }

    /// All samples of a metric by a rule, added up.
    fn sum(&self, metric: &str, rule: &str) -> u64 {
        let samples = self.agent.metrics().unwrap();
        let rule = format!("rule=\"{rule}\"");
        let of = samples.iter().filter(|(name, _)| {
            name.starts_with(&format!("underpass_{metric}")) && name.contains(&rule)
        });
        of.map(|(_, value)| *value as u64).sum()
    }

    /// Rows of statements by a rule.
    fn rows(&self, rule: &str) -> Vec<Value> {
        let list = self.agent.json("/statements").unwrap();
        let rows = list.as_array().unwrap().iter();
        let rows = rows.filter(|row| row["rule"] == rule);
        let mut rows: Vec<Value> = rows.cloned().map(of_no_rule).collect();
        rows.sort_by_key(Value::to_string);
        rows
    }

    /// Carries what is said by both rules, and holds what is told of one to what is told of the other.
    fn holds(&mut self, talk: &Talk, so_far: &mut Totals) {
        let told = [0, 1].map(|nth| {
            let lines = self.carry(nth, talk);
            lines.into_iter().map(of_no_rule).collect::<Vec<_>>()
        });
        let row = format!("{:?} {:?} {:?}", self.place, talk.kind, talk.resets);
        assert_eq!(told[0], told[1], "{row}");
        let rows = RULES.map(|rule| self.rows(rule));
        assert_eq!(rows[0], rows[1], "{row}");
        so_far.add(talk);
        for metric in [
            "tap_gaps_total",
            "tap_abandoned_total",
            "tap_stopped_total",
            "tap_left_out",
            "observed_uncopied",
            "observed_gaps",
        ] {
            assert_eq!(self.sum(metric, "tap"), 0, "{row} {metric}");
        }
        for (n, (from, kind, to)) in [
            ("client", "requests", "to_database"),
            ("database", "responses", "to_client"),
        ]
        .into_iter()
        .enumerate()
        {
            for rule in RULES {
                let decoded = self.sum(&format!("frames_total{{from=\"{from}\""), rule);
                assert_eq!(decoded, so_far.frames[n], "{row} {kind} by {rule}");
            }
            let counted = self.sum(&format!("observed_{kind}_total"), "tap");
            assert_eq!(counted, so_far.counted[n], "{row} {kind} by the kernel");
            let bytes = self.sum(&format!("observed_bytes_total{{direction=\"{to}\""), "tap");
            assert_eq!(bytes, so_far.bytes[n], "{row} {to}");
        }
    }
}

/// Frames and bytes in each direction.
#[derive(Default)]
struct Totals {
    frames: [u64; 2],
    /// Frames that the kernel sees.
    counted: [u64; 2],
    bytes: [u64; 2],
}

impl Totals {
    fn add(&mut self, talk: &Talk) {
        for n in [0, 1] {
            self.frames[n] += talk.frames[n];
            self.counted[n] += match talk.is_counted() {
                true => talk.frames[n],
                // STARTUP and READY.
                false => 1,
            };
            let bytes = talk.turns.iter().map(|(both, _)| both[n].len() as u64);
            self.bytes[n] += bytes.sum::<u64>();
        }
        if let Some((by, part)) = &talk.resets {
            let n = usize::from(matches!(by, Resets::Database));
            self.bytes[n] += part.len() as u64;
            // By its header.
            self.counted[n] += u64::from(talk.is_counted());
        }
    }
}

fn of_no_rule(told: Value) -> Value {
    let mut told = without_times(told);
    told.as_object_mut().unwrap().remove("rule");
    told
}

/// Every byte arrives.
fn sends(mut from: &TcpStream, mut to: &TcpStream, bytes: &[u8]) {
    thread::scope(|scope| {
        scope.spawn(move || from.write_all(bytes).unwrap());
        let mut received = vec![0; bytes.len()];
        to.read_exact(&mut received).unwrap();
        assert!(received == bytes, "it did not arrive as it was sent");
    });
}

/// Has the connection end by a RST when this is dropped.
fn resets(end: &TcpStream) {
    SockRef::from(end).set_linger(Some(Duration::ZERO)).unwrap();
}

fn on_a_stage(place: Place, body: impl FnOnce(&mut Stage<'_>)) {
    let hosts = Hosts::new();
    let container = Netns::new().unwrap();
    container
        .join_as(&BESIDE[..1], (&hosts.database, "container"), &BESIDE[1..])
        .unwrap();
    let _resident = Resident::start(&container, Some(&hosts.app.cgroup)).unwrap();
    let (mtu, big) = (MTU.to_string(), BIG_BYTES.to_string());
    let link: &[&str] = match place {
        Place::Jumbo => &["mtu", &mtu, "gso_max_segs", "1"],
        Place::Big => &["gso_max_size", &big, "gro_max_size", &big],
        _ => &[],
    };
    for netns in [&hosts.app.netns, &hosts.database] {
        if !link.is_empty() {
            netns
                .ip(&[&["link", "set", "veth"], link].concat())
                .unwrap();
        }
    }
    let listen = |at: SocketAddr| TcpListener::bind(at).unwrap();
    let listeners = RULES.map(|_| match place {
        Place::Loopback | Place::Mapped => hosts.listen(Distance::Here, Family::V4),
        Place::Big => hosts.listen(Distance::There, Family::V6),
        Place::Jumbo => hosts.listen(Distance::There, Family::V4),
        Place::Extended => {
            let listener = hosts.listen(Distance::There, Family::V6);
            ip_options::set(&listener, Family::V6);
            listener
        }
        Place::Container => {
            let at = (BESIDE_DATABASE, 0).into();
            run_in(Some(&hosts.database), None, || listen(at)).unwrap()
        }
        Place::Incoming => hosts.client(|| listen((Family::V4.app(), 0).into())),
    });
    let folder = tempfile::tempdir().unwrap();
    let journals = RULES.map(|rule| Journal {
        file: folder.path().join(rule),
        read: 0,
        lines: Vec::new(),
    });
    let rule = |n: usize| {
        let (name, file) = (RULES[n], &journals[n].file);
        let port = listeners[n].local_addr().unwrap().port();
        let steps = format!(
            "{{ transform = \"stats\" }}, {{ transform = \"count\" }}, \
             {{ transform = \"audit\", file = {file:?}, full = \"drop\" }}"
        );
        let rule = policy(&format!("fail = \"open\"\npath = \"{name}\""), &steps);
        let rule = rule.replace("PORT", &port.to_string());
        rule.replace("name = \"r\"", &format!("name = \"{name}\""))
    };
    let incoming = if place == Place::Incoming {
        INCOMING
    } else {
        ""
    };
    let rules = [incoming.to_owned(), rule(0), rule(1)].concat();
    let settings = format!("workers = 1\ntap_cpu = \"100%\"\ntap_ring_bytes = {RING_BYTES}");
    let (netns, cgroup) = (Some(&hosts.app.netns), &hosts.app.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, &settings, &rules).unwrap();
    body(&mut Stage {
        place,
        hosts: &hosts,
        container: &container,
        agent,
        listeners,
        journals,
        longest: [0; 2],
    });
}

fn every_row(stage: &mut Stage<'_>) {
    let mut so_far = Totals::default();
    for talk in talks(stage.place) {
        stage.holds(&talk, &mut so_far);
    }
}

#[test]
fn on_the_loopback() {
    on_a_stage(Place::Loopback, every_row);
}

#[test]
fn in_packets_of_nine_thousand_bytes() {
    on_a_stage(Place::Jumbo, |stage| {
        every_row(stage);
        let [mean, _] = stage.devices().map(Traffic::mean);
        assert!((MTU / 2..=MTU + ETHERNET).contains(&mean), "{mean} bytes");
    });
}

#[test]
fn in_packets_longer_than_their_header_can_say() {
    on_a_stage(Place::Big, |stage| {
        every_row(stage);
        let [answers, requests] = stage.longest;
        assert!(answers > u64::from(u16::MAX), "{answers} bytes");
        assert!(requests > 2 * u64::from(u16::MAX), "{requests} bytes");
    });
}

#[test]
fn of_a_socket_that_dials_a_mapped_address() {
    on_a_stage(Place::Mapped, every_row);
}

#[test]
fn behind_extension_headers() {
    on_a_stage(Place::Extended, every_row);
}

#[test]
fn of_the_first_to_connect_in_a_container() {
    on_a_stage(Place::Container, every_row);
}

#[test]
fn of_clients_on_another_host() {
    on_a_stage(Place::Incoming, every_row);
}
