//! The side that connects: as many connections as the plan says, and what became of them.

use std::{
    collections::{BTreeMap, hash_map::RandomState},
    hash::{BuildHasher, Hasher},
    io::{self, ErrorKind},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use socket2::{Domain, SockRef, Socket, Type};

use super::{
    behaviour::Shape,
    behaviour::Waiting,
    child::killed_client,
    dice::Dice,
    end::{failed, play, prepare},
    handshake::{greet, read_findings},
    hello::{Hello, Purpose},
    notes::Notes,
    plan::{Cql, Plan},
    report::{Report, Side},
    script::Script,
    server::patience,
    watch::{Watch, Watchdog},
};

/// The number of connections at a time changes after so many.
const CHANGES_AFTER: u64 = 16;
/// Part of an aborted connection's bytes that counts: one in so many.
const ABORTED_PART: u64 = 16;
/// A lost SYN is sent again after a second.
const CONNECT_GRACE: Duration = Duration::from_secs(2);

/// Drives what the plan says against a server; every thread is in the caller's namespace and
/// cgroup.
pub fn drive(plan: &Plan) -> Report {
    let begun = Instant::now();
    let is_enough = |planned| {
        let late = plan.time.is_some_and(|time| begun.elapsed() > time);
        late || plan.bytes > 0 && planned >= plan.bytes
    };
    drive_until(plan, is_enough)
}

/// Drives the plan for as long as something goes on that may cut connections, whatever the plan
/// says of bytes and time. The server's findings can be fetched when that is over.
pub fn drive_while(plan: &Plan, goes_on: impl Fn() -> bool) -> Report {
    drive_until(plan, |_| !goes_on())
}

/// Begins connections until it is enough of so many planned bytes.
fn drive_until(plan: &Plan, is_enough: impl Fn(u64) -> bool) -> Report {
    let begun = Instant::now();
    let notes = Notes::default();
    let mut run = Run::new(plan, &notes, begun);
    run.all(is_enough);
    let findings = plan.fetches.then(|| fetch(plan, &run.hello));
    let mut report = notes.report();
    match findings {
        None => (),
        Some(Ok(findings)) => report.merge(findings),
        Some(Err(error)) => {
            let script = Script::new(&run.hello);
            let text = format!("no findings from the server: {error:#}");
            report.merge(failed(&script, Side::Client, &text));
        }
    }
    forgive(&mut report);
    report.seed = plan.seed;
    report.elapsed_ms = begun.elapsed().as_millis() as u64;
    report
}

/// A connection that hung was shut down, and that its end is missing is no further finding.
fn forgive(report: &mut Report) {
    let hung: Vec<u64> = report.hangs.iter().map(|hang| hang.connection).collect();
    let before = report.corruption.len();
    report
        .corruption
        .retain(|c| !(c.cut_short && hung.contains(&c.connection)));
    report.corrupted -= (before - report.corruption.len()) as u64;
}

struct Run<'a> {
    plan: &'a Plan,
    notes: &'a Notes,
    watchdog: Watchdog,
    hello: Hello,
    begun: Instant,
    dice: Dice,
    /// Connections that are not over.
    active: BTreeMap<u64, Arc<Watch>>,
    over: (Sender<u64>, Receiver<u64>),
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, notes: &'a Notes, begun: Instant) -> Self {
        let choices = match plan.helper {
            Some(_) => plan.choices.clone(),
            None => plan.choices.clone().without_kills(),
        };
        let hello = Hello {
            purpose: Purpose::Streams,
            run: RandomState::new().build_hasher().finish(),
            seed: plan.seed,
            connection: 0,
            chunk_max: plan.chunk_max.max(1),
            connection_max: plan.connection_max.max(1),
            stop_max: plan.stop_max,
            hang_limit: plan.hang_limit,
            choices,
            steady: plan.steady,
            may_be_cut: plan.may_be_cut,
            cql: plan.cql.is_some(),
            is_edited: plan.cql.as_ref().is_some_and(|cql| cql.is_edited),
        };
        Self {
            plan,
            notes,
            watchdog: Watchdog::start(),
            hello,
            begun,
            dice: Dice::new(&[plan.seed, 6]),
            active: BTreeMap::new(),
            over: mpsc::channel(),
        }
    }

    /// Begins connections until there are enough, and waits until all are over.
    fn all(&mut self, is_enough: impl Fn(u64) -> bool) {
        let (mut begun, mut planned, mut at_a_time) = (0u64, 0u64, 1);
        loop {
            let enough = is_enough(planned);
            if enough && self.active.is_empty() {
                return;
            }
            if !enough && (self.active.len() as u64) < at_a_time {
                if begun % CHANGES_AFTER == 0 {
                    let (low, high) = self.plan.connections;
                    at_a_time = self.dice.between(low.max(1), high.max(1));
                }
                planned += self.begin(self.plan.first + begun);
                begun += 1;
                continue;
            }
            let left = self.plan.deadline.saturating_sub(self.begun.elapsed());
            match self.over.1.recv_timeout(left) {
                Ok(connection) => self.end(connection),
                Err(_) => return self.give_up(),
            }
        }
    }

    /// Begins a connection; how many bytes it is to carry.
    fn begin(&mut self, connection: u64) -> u64 {
        let hello = Hello {
            connection,
            ..self.hello.clone()
        };
        let script = Arc::new(Script::new(&hello));
        let mut part = Report {
            connections: 1,
            aborted: script.shape.aborts().into(),
            ..Report::default()
        };
        for behaviour in script.behaviours() {
            part.count(behaviour);
        }
        if let Some(cql) = &self.plan.cql {
            part.drivers.insert(driver(cql, &hello), 1);
        }
        self.notes.add(part);
        let watch = Arc::new(Watch::new(&script, Side::Client, self.notes));
        self.active.insert(connection, Arc::clone(&watch));
        // Nobody knows how far one that is aborted gets; but a run of nothing else has to end.
        let bytes = match script.shape.aborts() {
            true => (script.up + script.down) / ABORTED_PART,
            false => script.up + script.down,
        };
        let (plan, notes) = (self.plan.clone(), self.notes.clone());
        let over = Over(connection, self.over.0.clone());
        if script.shape != Shape::ClientKilled {
            self.watchdog.watch(&watch);
        }
        thread::spawn(move || {
            let _over = over;
            run(&plan, &script, &watch, &notes);
        });
        bytes
    }

    fn end(&mut self, connection: u64) {
        if let Some(watch) = self.active.remove(&connection) {
            self.notes.add(Report {
                slowest: (watch.age().as_millis() as u64, watch.name()),
                ..Report::default()
            });
        }
    }

    /// The deadline has come.
    fn give_up(&self) {
        for watch in self.active.values() {
            watch.hang(self.begun.elapsed());
        }
    }
}

/// Tells that a connection is over, whichever way.
struct Over(u64, Sender<u64>);

impl Drop for Over {
    fn drop(&mut self) {
        // Unless nobody waits for it any more.
        let _ = self.1.send(self.0);
    }
}

fn run(plan: &Plan, script: &Arc<Script>, watch: &Arc<Watch>, notes: &Notes) {
    let result = match (&plan.helper, script.shape) {
        (Some(helper), Shape::ClientKilled) => {
            killed_client(helper, script, plan.to, plan.cql.as_ref(), notes)
        }
        _ => connect(plan.to, script, plan.cql.as_ref())
            .map(|socket| play(script, Side::Client, socket, watch, notes)),
    };
    if let Err(error) = result
        && !(plan.may_be_cut && is_cut(&error))
    {
        notes.add(failed(script, Side::Client, &format!("{error:#}")));
    }
}

/// The connection could not be made, or ended in its first messages; none of them was wrong, and nobody
/// waited for one that did not come.
fn is_cut(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref());
    let patience = [ErrorKind::TimedOut, ErrorKind::WouldBlock];
    causes.any(|cause: &io::Error| !patience.contains(&cause.kind()))
}

/// Connects, and passes the first messages.
pub(super) fn connect(
    to: SocketAddr,
    script: &Script,
    cql: Option<&Cql>,
) -> anyhow::Result<TcpStream> {
    let hello = &script.hello;
    let patience = hello.hang_limit + CONNECT_GRACE;
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    if hello.purpose == Purpose::Streams {
        prepare(SockRef::from(&socket), script, Side::Client)?;
    }
    socket
        .connect_timeout(&to.into(), patience)
        .with_context(|| format!("cannot connect to {to}"))?;
    let socket = TcpStream::from(socket);
    socket.set_read_timeout(Some(patience))?;
    let blocks = script.end(Side::Client).waiting == Waiting::Blocking;
    socket.set_nonblocking(!blocks)?;
    let driver = cql.map(|cql| driver(cql, hello)).unwrap_or_default();
    greet(&socket, hello, cql, &driver).context("the handshake failed")?;
    socket.set_read_timeout(None)?;
    Ok(socket)
}

/// The name of the driver that a connection gives.
pub(super) fn driver(cql: &Cql, hello: &Hello) -> String {
    let mut dice = Dice::new(&[hello.seed, hello.connection, 7]);
    dice.pick(&cql.drivers).unwrap_or_default()
}

/// Fetches the server's findings of this run.
fn fetch(plan: &Plan, hello: &Hello) -> anyhow::Result<Report> {
    let hello = Hello {
        purpose: Purpose::Findings,
        ..hello.clone()
    };
    let socket = connect(plan.to, &Script::new(&hello), plan.cql.as_ref())?;
    socket.set_read_timeout(Some(patience(&hello) + CONNECT_GRACE))?;
    let text = read_findings(&socket, hello.cql)?;
    Ok(serde_json::from_slice(&text)?)
}
