//! A host with an agent whose one rule decodes, a database that does as the test says, and a
//! bystander: another flow, which must not notice anything.
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test file uses a part of this"
)]

use std::{
    collections::BTreeSet,
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use cql_node::{Node, NodeOptions};
use sandbox::{Agent, Sandbox};

use crate::common::{BINARY, PATIENCE, accept, enrich, eventually, options};

/// Settings with so few flows that no host warns that it allows fewer. One worker: the bystander
/// shares it.
const SETTINGS: &str = "max_flows = 4000\nworkers = 1";

/// Between two of the bystander's requests.
const BYSTANDER_PAUSE: Duration = Duration::from_millis(1);
/// Answers that show that a flow goes on.
const GOES_ON: u64 = 20;

/// Steps that change and answer nothing, as long as what is prepared is prepared through them; those who are asked
/// outside are not there. Files are in `folder`.
pub fn passive(folder: &Path) -> String {
    let file = |name: &str| folder.join(name);
    format!(
        "{{ transform = \"stats\" }}, {{ transform = \"count\" }}, \
         {{ transform = \"slowlog\", over = \"0ms\", file = {:?} }}, \
         {{ transform = \"audit\", file = {:?}, statement = true }}, \
         {{ transform = \"debug\", file = {:?}, values = true, bytes = 4096 }}, \
         {{ transform = \"trace\", endpoint = \"http://127.0.0.1:1\", sample = 1 }}, \
         {{ transform = \"guard\", refuse = [\"ddl\"], mode = \"shadow\" }}, \
         {{ transform = \"throttle\", rate = 1000000, per = \"table\" }}, \
         {{ transform = \"rewrite\", addresses = \"dialled\" }}, \
         {{ transform = \"coalesce\", tables = {{ \"shop.e\" = {{ partition_key = [\"d\"], clustering = [\"at\"], \
         columns = [\"v\"] }} }} }}, \
         {{ transform = \"mirror\", to = \"127.0.0.1:1\", what = [\"reads\", \"writes\"], compare = true }}, \
         {{ transform = \"cache\", redis = \"127.0.0.1:1\", tables = [\"shop.orders\"], ttl = \"1s\" }}, \
         {{ transform = \"fold\" }}",
        file("slow"),
        file("audit"),
        file("debug"),
    )
}

/// Runs `body` twice: where its rule only decodes, and where it has a pipeline of all passive steps.
pub fn with_and_without_a_pipeline(body: impl Fn(&Host<'_>)) {
    on_a_host(&body);
    let folder = tempfile::tempdir().unwrap();
    on_a_host_with(&passive(folder.path()), &body);
}

/// Runs `body`; afterwards the bystander has had every answer, and the agent has neither
/// panicked nor complained.
pub fn on_a_host(body: impl FnOnce(&Host<'_>)) {
    on_a_host_with("", body);
}

/// Runs `body` on a host whose rule has these steps.
pub fn on_a_host_with(steps: &str, body: impl FnOnce(&Host<'_>)) {
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let node = sandbox.server(|| Node::start(NodeOptions::default()));
    let node = node.unwrap().unwrap();
    let ports = [listener.local_addr().unwrap().port(), node.addr().port()];
    let policy = format!("{}pipeline = [{steps}]\n", enrich(&ports));
    let netns = Some(&sandbox.netns);
    let agent = Agent::start(Path::new(BINARY), netns, &sandbox.cgroup, SETTINGS, &policy).unwrap();
    let stream = sandbox.client(|| TcpStream::connect(node.addr()));
    let bystander = Bystander::start(stream.unwrap().unwrap());
    let host = Host {
        sandbox: &sandbox,
        agent,
        listener,
        bystander,
        has_pipeline: !steps.is_empty(),
    };
    body(&host);
    host.goes_on();
    let Host {
        agent, bystander, ..
    } = host;
    let answers = bystander.end();
    eventually("the bystander's flow ends", || {
        agent.metric("underpass_flows").unwrap() == 0.0
    });
    assert_eq!(counted_options(&agent), answers, "the bystander's requests");
    assert_eq!(agent.get("/healthz").unwrap(), "ok\n");
    let log = agent.log();
    // Who has gone before its connection was there leaves its port to the next client at once, while the
    // agent still holds it towards the database: that is told, and counted.
    let is_bad = |l: &&str| {
        let is_said = |word| l.contains(word);
        // Nor is anybody there whom steps would ask.
        let is_known = [
            "source port was taken",
            " is away",
            "takes no spans",
            "cannot share a connection",
        ];
        ["panicked", " WARN ", " ERROR "].into_iter().any(is_said)
            && !is_known.into_iter().any(is_said)
    };
    let bad: Vec<&str> = log.lines().filter(is_bad).collect();
    assert_eq!(bad, [""; 0], "the agent complained");
}

/// One flow beside the bystander's, both of whose ends are the test's.
pub struct Pair {
    pub client: TcpStream,
    pub server: TcpStream,
}

/// See [`on_a_host`].
pub struct Host<'s> {
    pub agent: Agent<'s>,
    pub sandbox: &'s Sandbox,
    pub listener: TcpListener,
    bystander: Bystander,
    has_pipeline: bool,
}

impl Host<'_> {
    /// A client's connection to the test's database, before a byte has passed.
    pub fn pair(&self) -> Pair {
        let taken = || {
            let counted = "underpass_source_ports_changed_total";
            self.agent.metric(counted).unwrap()
        };
        let before = taken();
        let client = self.sandbox.client(|| self.dial()).unwrap();
        let own = client.local_addr().unwrap();
        let server = loop {
            let (server, from) = accept(&self.listener);
            // One that flows are to share is not let in.
            if from == own || !self.has_pipeline || taken() > before {
                break server;
            }
        };
        server.set_nodelay(true).unwrap();
        Pair { client, server }
    }

    /// Dials the test's database; for a thread in the sandbox.
    pub fn dial(&self) -> TcpStream {
        let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        client.set_nodelay(true).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        client
    }

    /// The bystander is answered, now.
    pub fn goes_on(&self) {
        let wanted = self.bystander.answers.load(Relaxed) + GOES_ON;
        eventually("the bystander is answered", || {
            assert!(!self.bystander.is_over(), "the bystander's flow ended");
            self.bystander.answers.load(Relaxed) >= wanted
        });
    }

    /// Flows beside the bystander's.
    pub fn flows(&self) -> u64 {
        self.agent.metric("underpass_flows").unwrap() as u64 - 1
    }

    /// Waits until exactly this is counted, as (metric, label, times), of all that can go
    /// wrong with a flow and of all ways in which one ends.
    pub fn counts(&self, wanted: &[(&str, &str, u64)]) {
        let line = |(metric, label, times): &(&str, &str, u64)| format!("{metric} {label} {times}");
        let wanted: BTreeSet<String> = wanted.iter().map(line).collect();
        let deadline = Instant::now() + PATIENCE;
        while self.counted() != wanted && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(self.counted(), wanted);
    }

    /// Checks the counters where framing was lost: so often by the client, for this reason, and so
    /// often by the database, which a pipeline reads first.
    pub fn counts_lost(&self, reason: &str, by_client: u64, by_database: u64) {
        let both = [("flows_closed", reason, by_client + by_database)];
        let apart = [
            ("flows_closed", reason, by_client),
            ("flows_closed", "framing", by_database),
        ];
        match self.has_pipeline {
            true => self.counts(&apart),
            false => self.counts(&both),
        }
    }

    fn counted(&self) -> BTreeSet<String> {
        let metrics = [
            "anomalies",
            "undecodable_flows",
            "flows_closed",
            "dial_failures",
        ];
        let samples = self.agent.metrics().unwrap();
        let nonzero = samples.iter().filter(|(_, value)| **value != 0.0);
        nonzero
            .filter_map(|(sample, value)| {
                let (metric, labels) = sample.strip_prefix("underpass_")?.split_once("_total{")?;
                let label = labels.split('"').nth(1)?;
                metrics
                    .contains(&metric)
                    .then(|| format!("{metric} {label} {value}"))
            })
            .collect()
    }
}

impl Pair {
    /// From the client to the database, every byte of it.
    pub fn client_sends(&mut self, bytes: &[u8]) {
        passes(&mut self.client, &mut self.server, bytes);
    }

    /// From the database to the client, every byte of it.
    pub fn server_sends(&mut self, bytes: &[u8]) {
        passes(&mut self.server, &mut self.client, bytes);
    }

    /// Ends as a client does that is done.
    pub fn ends(mut self) {
        self.client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut self.server), b"");
        self.server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(rest(&mut self.client), b"");
    }
}

/// Reads all that still arrives up to FIN.
pub fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    rest
}

fn passes(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut arrived = vec![0; bytes.len()];
    to.read_exact(&mut arrived).unwrap();
    assert_eq!(arrived, bytes);
}

/// A flow to an embedded node that asks all the time.
struct Bystander {
    answers: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl Bystander {
    fn start(mut stream: TcpStream) -> Self {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (answers, stop) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, over) = (answers.clone(), stop.clone());
        let thread = thread::spawn(move || {
            let wanted = ask(&mut stream, 0)?;
            count.fetch_add(1, Relaxed);
            while !over.load(Relaxed) {
                let n = count.load(Relaxed) as u8 % 100;
                let answer = ask(&mut stream, n)?;
                assert_eq!(answer, wanted, "request {n}");
                count.fetch_add(1, Relaxed);
                thread::sleep(BYSTANDER_PAUSE);
            }
            Ok(())
        });
        Self {
            answers,
            stop,
            thread: Some(thread),
        }
    }

    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops asking; how many answers there were.
    fn end(mut self) -> u64 {
        self.stop.store(true, Relaxed);
        let thread = self.thread.take().unwrap();
        thread.join().unwrap().unwrap();
        self.answers.load(Relaxed)
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// The body of what answers an OPTIONS.
fn ask(stream: &mut TcpStream, n: u8) -> io::Result<Vec<u8>> {
    stream.write_all(&options(n))?;
    let mut header = [0; 9];
    stream.read_exact(&mut header)?;
    let [_, _, _, on, opcode, l0, l1, l2, l3] = header;
    assert_eq!((on, opcode), (n, 0x06), "SUPPORTED on the request's stream");
    let mut body = vec![0; u32::from_be_bytes([l0, l1, l2, l3]) as usize];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn counted_options(agent: &Agent<'_>) -> u64 {
    let rows = agent.json("/statements").unwrap();
    let mut rows = rows.as_array().unwrap().iter();
    let row = rows.find(|row| row["kind"] == "options");
    row.unwrap()["count"].as_u64().unwrap()
}
