//! The connection with Redis, which is made, lost and made again.

use std::{
    collections::hash_map::RandomState,
    hash::BuildHasher,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    io::Interest,
    net::TcpStream,
    sync::mpsc,
    time::{sleep, sleep_until, timeout},
};

use super::{
    dialogue::Dialogue,
    metrics::Cause,
    store::{Job, Shared},
};

type Jobs = mpsc::UnboundedReceiver<Job>;

/// The time limit of a connection attempt. A connection on the same network takes a millisecond.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// The pause between the first two attempts; each later pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

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
                let dialogue = Dialogue::new(shared.clone(), nonce, generations);
                let mut session = RedisSession { dialogue, stream };
                let ended = session.run(&mut jobs).await;
                generations = session.dialogue.generations;
                if session.dialogue.is_greeted {
                    (pause, is_told) = (FIRST_PAUSE, false);
                }
                session.dialogue.ends();
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

struct RedisSession {
    dialogue: Dialogue,
    stream: TcpStream,
}

impl RedisSession {
    /// Runs the connection until it fails. Ok: nobody sends jobs any more.
    async fn run(&mut self, jobs: &mut Jobs) -> Result<(), Cause> {
        self.dialogue.begins();
        loop {
            let interest = match self.dialogue.output.is_empty() {
                true => Interest::READABLE,
                false => Interest::READABLE | Interest::WRITABLE,
            };
            let may_send = self.dialogue.may_send();
            let deadline = self.dialogue.deadline();
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
                () = self.dialogue.shared.dirtied.notified(), if may_send => self.dialogue.tells(),
                job = jobs.recv(), if may_send => match job {
                    Some(job) => self.dialogue.asks(job),
                    None => return Ok(()),
                },
            }
        }
    }

    fn writes(&mut self) -> Result<(), Cause> {
        let output = &mut self.dialogue.output;
        match self.stream.try_write(output) {
            Ok(written) => {
                output.drain(..written);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Cause::Lost),
        }
    }

    fn reads(&mut self) -> Result<(), Cause> {
        let input = &mut self.dialogue.input;
        let had = input.len();
        input.resize(had + READ_BYTES, 0);
        let read = self
            .stream
            .try_read(input.get_mut(had..).unwrap_or_default());
        input.truncate(had + read.as_ref().copied().unwrap_or(0));
        match read {
            Ok(0) => Err(Cause::Lost),
            Ok(_) => self.dialogue.take_replies(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(_) => Err(Cause::Lost),
        }
    }
}
