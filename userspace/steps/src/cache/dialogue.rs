//! The dialogue with Redis, without its socket: commands, and the meaning of replies. Everything goes over one connection, in order, so that an entry
//! that is asked for after an invalidation is read after it.

use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, atomic::Ordering::Release},
    time::Instant,
};

use super::{
    envelope::{ENVELOPE_BYTES, GENERATION_BYTES, Generation, Opened, opened},
    metrics::{Cause, Read, Store as Stored},
    resp::{self, Reply},
    settings::Login,
    statements::Chosen,
    store::{Find, Job, Shared},
};

/// The most commands without a reply. Beyond that nothing more is sent.
const MAX_SENT: usize = 2_048;

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

/// One connection's dialogue.
pub(super) struct Dialogue {
    pub(super) shared: Arc<Shared>,
    /// Commands that Redis does not have yet.
    pub(super) output: Vec<u8>,
    /// Bytes of replies that are not complete.
    pub(super) input: Vec<u8>,
    sent: VecDeque<(Sent, Instant)>,
    /// The generation of the entry that comes next.
    generation: Option<Generation>,
    nonce: u64,
    /// Generations that were given out, in all connections.
    pub(super) generations: u64,
    pub(super) is_greeted: bool,
}

impl Dialogue {
    /// `generations`: those that were given out before, with this nonce.
    pub(super) fn new(shared: Arc<Shared>, nonce: u64, generations: u64) -> Self {
        Self {
            shared,
            output: Vec::new(),
            input: Vec::new(),
            sent: VecDeque::new(),
            generation: None,
            nonce,
            generations,
            is_greeted: false,
        }
    }

    /// Says what a connection begins with.
    pub(super) fn begins(&mut self) {
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
    }

    /// Whether Redis may be asked for more before it replies.
    pub(super) fn may_send(&self) -> bool {
        self.sent.len() < MAX_SENT
    }

    /// The time until which Redis has to reply. None: it has.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.sent.front().map(|(_, deadline)| *deadline)
    }

    fn note_sent(&mut self, what: Sent, since: Instant) {
        let deadline = since + self.shared.settings.timeout;
        self.sent.push_back((what, deadline));
    }

    /// Tells Redis which tables' answers are old.
    pub(super) fn tells(&mut self) {
        for place in self.shared.take_dirty().places() {
            self.generations += 1;
            let generation: [u64; 2] = [self.nonce, self.generations];
            let generation = generation.map(u64::to_be_bytes).concat();
            let key = self.generation_key(place);
            resp::put(&mut self.output, &[b"SET", &key, &generation]);
            self.note_sent(Sent::Generation(Chosen(1 << place)), Instant::now());
        }
    }

    /// Asks Redis for a job.
    pub(super) fn asks(&mut self, job: Job) {
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

    /// Handles the replies that are complete in the input.
    pub(super) fn take_replies(&mut self) -> Result<(), Cause> {
        let input = mem::take(&mut self.input);
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
            return find.passes(Read::Miss, &self.shared);
        };
        let found = match reply {
            Reply::Bytes([]) => Opened::Old,
            Reply::Bytes(kept) => opened(kept, &generation, &find.reading.key),
            Reply::Done | Reply::Error => Opened::Bad,
        };
        match found {
            Opened::Is(body) => find.answers(body.to_vec(), &self.shared),
            Opened::Old | Opened::Bad => {
                let _ = find.reading.generation.set(generation);
                let counted = if found == Opened::Bad {
                    Read::Bad
                } else {
                    Read::Miss
                };
                find.passes(counted, &self.shared);
            }
        }
    }

    /// Ends the connection's work: a command without a reply is not known to be done.
    pub(super) fn ends(self) {
        self.shared.is_up.store(false, Release);
        // All invalidations first: a read that is passed on may be followed by a write.
        for (sent, _) in &self.sent {
            if let Sent::Generation(table) = sent {
                self.shared.mark_dirty(*table);
            }
        }
        for (sent, _) in self.sent {
            match sent {
                Sent::Entry(find) => find.passes(Read::Failed, &self.shared),
                Sent::Keep => self.shared.counters.store(Stored::Failed),
                Sent::Login | Sent::Hello | Sent::Generation(_) | Sent::OfTable(_) => {}
            }
        }
    }
}
