//! The connection with Redis. Everything goes over one connection, in order, so that an entry that
//! is asked for after an invalidation is read after it.

use std::{
    collections::{VecDeque, hash_map::RandomState},
    hash::BuildHasher,
    io,
    sync::{Arc, atomic::Ordering::Release},
    time::{Duration, Instant},
};

use tokio::{
    io::Interest,
    net::TcpStream,
    sync::mpsc,
    time::{sleep, sleep_until, timeout},
};

use super::{
    envelope::{ENVELOPE_BYTES, GENERATION_BYTES, Generation, Opened, opened},
    metrics::{Cause, Read, Store as Stored},
    resp::{self, Reply},
    settings::Login,
    statements::Chosen,
    store::{Find, Job, Shared},
};

type Jobs = mpsc::UnboundedReceiver<Job>;

/// The time limit of a connection attempt. A connection on the same network takes a millisecond.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// The pause between the first two attempts; each later pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The most commands without a reply. Beyond that nothing more is sent.
const MAX_SENT: usize = 2_048;

/// The most bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// Runs until no rule and no flow has the store any more.
pub(super) async fn run(shared: &Arc<Shared>, mut jobs: Jobs) {
    let mut pause = FIRST_PAUSE;
    let mut is_told = false;
    let nonce = RandomState::new().hash_one(std::process::id());
    let mut generations = 0_u64;
    loop {
        let connected = tokio::select! {
            connected = timeout(CONNECT_LIMIT, connect(shared)) => connected,
            () = fail_all(shared, &mut jobs) => return,
        };
        let cause = match connected {
            Ok(Ok(stream)) => {
                let mut session = RedisSession::new(shared, stream, nonce, generations);
                let ended = session.run(&mut jobs).await;
                generations = session.generations;
                if session.is_greeted {
                    (pause, is_told) = (FIRST_PAUSE, false);
                }
                session.ends();
                match ended {
                    Ok(()) => return,
                    Err(cause) => cause,
                }
            }
            Ok(Err(_)) | Err(_) => Cause::Connect,
        };
        // Before the agent is ready there is nothing to connect by: Redis is not away.
        let begins = shared.dials.get().is_none();
        if !begins {
            shared.counters.failure(cause);
        }
        if !begins && !is_told {
            let (rule, redis, cause) = (&shared.rule, shared.settings.redis, cause.as_str());
            tracing::warn!(%rule, %redis, cause, "the cache is away; its reads go to the database");
            is_told = true;
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = fail_all(shared, &mut jobs) => return,
        }
        if !begins {
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

async fn connect(shared: &Shared) -> io::Result<TcpStream> {
    let dials = shared.dials.get().ok_or(io::ErrorKind::NotConnected)?;
    dials.connect(shared.settings.redis).await
}

/// Fails every job at once. Returns when nobody can send jobs any more.
async fn fail_all(shared: &Shared, jobs: &mut Jobs) {
    while let Some(job) = jobs.recv().await {
        job.fails(shared);
    }
}

/// A command that was sent, by what its reply means.
#[derive(Debug)]
enum Sent {
    Login,
    Hello,
    /// A new generation of this table.
    Generation(Chosen),
    /// The generation of the table at this place, for the entry that is asked for next.
    OfTable(usize),
    Entry(Find),
    Keep,
}

struct RedisSession<'s> {
    shared: &'s Shared,
    stream: TcpStream,
    output: Vec<u8>,
    input: Vec<u8>,
    sent: VecDeque<(Sent, Instant)>,
    /// The generation of the entry that comes next.
    generation: Option<Generation>,
    nonce: u64,
    generations: u64,
    is_greeted: bool,
}

impl<'s> RedisSession<'s> {
    fn new(shared: &'s Shared, stream: TcpStream, nonce: u64, generations: u64) -> Self {
        Self {
            shared,
            stream,
            output: Vec::new(),
            input: Vec::new(),
            sent: VecDeque::new(),
            generation: None,
            nonce,
            generations,
            is_greeted: false,
        }
    }

    /// Runs the connection until it fails. Ok: nobody sends jobs any more.
    async fn run(&mut self, jobs: &mut Jobs) -> Result<(), Cause> {
        if let Some(Login { user, password }) = &self.shared.login {
            let mut words = vec![&b"AUTH"[..]];
            words.extend(user.as_deref().map(str::as_bytes));
            words.push(password.as_bytes());
            resp::put(&mut self.output, &words);
            self.note_sent(Sent::Login, Instant::now());
        }
        self.tells();
        resp::put(&mut self.output, &[b"PING"]);
        self.note_sent(Sent::Hello, Instant::now());
        loop {
            let interest = match self.output.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let may_send = self.sent.len() < MAX_SENT;
            let deadline = self.sent.front().map(|(_, deadline)| *deadline);
            let late = deadline.unwrap_or_else(|| Instant::now() + CONNECT_LIMIT);
            tokio::select! {
                biased;
                ready = self.stream.ready(interest) => {
                    let ready = ready.map_err(|_| Cause::Lost)?;
                    if ready.is_readable() || ready.is_read_closed() {
                        self.reads()?;
                    }
                    if ready.is_writable() {
                        self.writes()?;
                    }
                }
                () = sleep_until(late.into()), if deadline.is_some() => return Err(Cause::Late),
                () = self.shared.dirtied.notified(), if may_send => self.tells(),
                job = jobs.recv(), if may_send => match job {
                    Some(job) => self.asks(job),
                    None => return Ok(()),
                },
            }
        }
    }

    fn note_sent(&mut self, what: Sent, since: Instant) {
        let deadline = since + self.shared.settings.timeout;
        self.sent.push_back((what, deadline));
    }

    /// Tells Redis which tables' answers are old.
    fn tells(&mut self) {
        for place in self.shared.take_dirty().places() {
            self.generations += 1;
            let generation: [u64; 2] = [self.nonce, self.generations];
            let generation = generation.map(u64::to_be_bytes).concat();
            let key = self.generation_key(place);
            resp::put(&mut self.output, &[b"SET", &key, &generation]);
            self.note_sent(Sent::Generation(Chosen(1 << place)), Instant::now());
        }
    }

    fn asks(&mut self, job: Job) {
        // Before anything that may depend on the new generations.
        self.tells();
        let since = job.since();
        match job {
            Job::Find(find) => {
                let table = find.reading.table;
                let generation = self.generation_key(table);
                let key = self.entry_key(&find.reading.key);
                // One byte more than an entry may have shows that it is longer.
                let last = (ENVELOPE_BYTES + self.shared.settings.max_bytes).to_string();
                let last_of_generation = GENERATION_BYTES.to_string();
                resp::put(
                    &mut self.output,
                    &[
                        b"GETRANGE",
                        &generation,
                        b"0",
                        last_of_generation.as_bytes(),
                    ],
                );
                resp::put(
                    &mut self.output,
                    &[b"GETRANGE", &key, b"0", last.as_bytes()],
                );
                self.note_sent(Sent::OfTable(table), since);
                self.note_sent(Sent::Entry(find), since);
            }
            Job::Keep(keep) => {
                let key = self.entry_key(&keep.reading.key);
                let ttl = self.shared.settings.ttl.as_millis().to_string();
                resp::put(
                    &mut self.output,
                    &[b"SET", &key, &keep.sealed, b"PX", ttl.as_bytes()],
                );
                self.note_sent(Sent::Keep, since);
            }
        }
    }

    fn generation_key(&self, place: usize) -> Vec<u8> {
        let table = self.shared.settings.tables.0.get(place);
        let (keyspace, table) = table.map_or(("", ""), |(of, name)| (of, name));
        format!("{}:g:{keyspace}.{table}", self.shared.prefix()).into_bytes()
    }

    fn entry_key(&self, key: &[u8]) -> Vec<u8> {
        let name = format!("{}:e:", self.shared.prefix());
        [name.as_bytes(), key].concat()
    }

    fn writes(&mut self) -> Result<(), Cause> {
        match self.stream.try_write(&self.output) {
            Ok(written) => {
                self.output.drain(..written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Cause::Lost),
        }
    }

    fn reads(&mut self) -> Result<(), Cause> {
        let had = self.input.len();
        self.input.resize(had + READ_BYTES, 0);
        let read = self
            .stream
            .try_read(self.input.get_mut(had..).unwrap_or_default());
        self.input
            .truncate(had + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => return Err(Cause::Lost),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(_) => return Err(Cause::Lost),
        }
        let input = std::mem::take(&mut self.input);
        let longest = ENVELOPE_BYTES + self.shared.settings.max_bytes + 1;
        let mut at = 0;
        while let Some(rest) = input.get(at..).filter(|rest| !rest.is_empty())
            && let Some((reply, length)) = resp::next(rest, longest).map_err(|_| Cause::Protocol)?
        {
            self.handle_reply(reply)?;
            at += length;
        }
        self.input = input.get(at..).unwrap_or_default().to_vec();
        Ok(())
    }

    fn handle_reply(&mut self, reply: Reply<'_>) -> Result<(), Cause> {
        let (sent, _) = self.sent.pop_front().ok_or(Cause::Protocol)?;
        match (sent, reply) {
            (Sent::Login, Reply::Done) => {}
            (Sent::Hello, Reply::Done) => {
                self.is_greeted = true;
                self.shared.is_up.store(true, Release);
                let (rule, redis) = (&self.shared.rule, self.shared.settings.redis);
                tracing::info!(%rule, %redis, "the cache is there");
            }
            (Sent::Generation(_), Reply::Done) => self.shared.counters.invalidations.inc(),
            // The new generation is sent before anything else is asked, on the next connection.
            (Sent::Generation(table), _) => {
                self.shared.mark_dirty(table);
                return Err(Cause::Refused);
            }
            (Sent::Login | Sent::Hello, Reply::Error) => return Err(Cause::Refused),
            (Sent::OfTable(place), reply) => {
                self.generation = match reply {
                    Reply::Bytes(bytes) => bytes.try_into().ok(),
                    _ => None,
                };
                if self.generation.is_none() {
                    self.shared.mark_dirty(Chosen(1 << place));
                    self.shared.dirtied.notify_one();
                }
            }
            (Sent::Entry(find), reply) => self.finish_find(find, reply),
            (Sent::Keep, Reply::Done) => self.shared.counters.store(Stored::Stored),
            (Sent::Keep, Reply::Error) => self.shared.counters.store(Stored::Failed),
            (Sent::Login | Sent::Hello | Sent::Keep, Reply::Bytes(_)) => {
                return Err(Cause::Protocol);
            }
        }
        Ok(())
    }

    fn finish_find(&mut self, find: Find, reply: Reply<'_>) {
        let Some(generation) = self.generation.take() else {
            return find.passes(Read::Miss, self.shared);
        };
        let found = match reply {
            Reply::Bytes([]) => Opened::Old,
            Reply::Bytes(kept) => opened(kept, &generation, &find.reading.key),
            Reply::Done | Reply::Error => Opened::Bad,
        };
        match found {
            Opened::Is(body) => find.answers(body.to_vec(), self.shared),
            Opened::Old | Opened::Bad => {
                let _ = find.reading.generation.set(generation);
                let counted = if found == Opened::Bad {
                    Read::Bad
                } else {
                    Read::Miss
                };
                find.passes(counted, self.shared);
            }
        }
    }

    /// Ends the connection's work: a command without a reply is not known to be done.
    fn ends(self) {
        self.shared.is_up.store(false, Release);
        // All invalidations first: a read that is passed on may be followed by a write.
        for (sent, _) in &self.sent {
            if let Sent::Generation(table) = sent {
                self.shared.mark_dirty(*table);
            }
        }
        for (sent, _) in self.sent {
            match sent {
                Sent::Entry(find) => find.passes(Read::Failed, self.shared),
                Sent::Keep => self.shared.counters.store(Stored::Failed),
                Sent::Login | Sent::Hello | Sent::Generation(_) | Sent::OfTable(_) => {}
            }
        }
    }
}
