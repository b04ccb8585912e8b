//! A connection to a mirror: requests out on streams of its own, statements prepared there by their
//! texts.

use std::{
    collections::{HashMap, VecDeque},
    future, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use cql::Opcode;
use cql_edit::{Came, Incoming, Response};
use tokio::{
    io::{AsyncRead as _, AsyncWrite as _, ReadBuf},
    sync::mpsc,
};

use super::{
    compare::Answer,
    compare::MAX_COMPARED_BYTES,
    metrics::Fate,
    shared::{Job, Shared},
    stream::Stream,
    texts::Text,
    wire,
};

/// The most requests out at the same time; more wait.
const MAX_STREAMS: i16 = 1_024;

/// The most statements that are known to be prepared; beyond that all are prepared again as their
/// turn comes.
const MAX_PREPARED: usize = 4_096;

/// The least and the greatest interval at which late requests are looked for.
const LOOKS: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(100)];

/// The time limit for a mirror that has something to answer: after this silence it counts as away.
const SILENCE: Duration = Duration::from_secs(10);

/// A connection on which nothing is asked for this long ends.
const IDLE: Duration = Duration::from_secs(60);

/// The longest id that is kept. Ids are hashes of 16 bytes.
const MAX_ID_BYTES: usize = 256;

const READ_BYTES: usize = 64 << 10;

/// The longest response that is kept.
const MAX_FRAME_BYTES: usize = wire::HEADER_BYTES + MAX_COMPARED_BYTES;

/// The error code UNPREPARED: the statement has to be prepared again.
const UNPREPARED: i32 = 0x2500;

/// The reason why a connection has ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// Nobody has asked anything for a while.
    Idle,
    Broken(io::Error),
}

/// A mirror's connection in use.
pub(super) struct Connection<'s> {
    stream: Stream,
    shared: &'s Arc<Shared>,
    /// Jobs for which there is no stream yet.
    waiting: VecDeque<Job>,
    out: HashMap<i16, Out>,
    free: Vec<i16>,
    prepared: HashMap<Arc<[u8]>, Prepared>,
    written: usize,
    to_write: Vec<u8>,
    /// Whether written bytes may not be on their way yet.
    flushes: bool,
    /// The buffer for one read.
    piece: Box<[u8]>,
    incoming: Incoming,
    last_heard: Instant,
    last_asked: Instant,
}

/// A request that is out on a stream.
enum Out {
    Asked {
        job: Job,
        again: bool,
    },
    Prepares(Arc<[u8]>),
    /// Nobody waits for the answer any more, and the stream is not free yet.
    Late,
}

enum Prepared {
    /// The PREPARE is out. These jobs wait for it, each with whether its statements were prepared
    /// once more.
    Out(Vec<(Job, bool)>),
    Known(Box<[u8]>),
}

impl<'s> Connection<'s> {
    pub(super) fn new(stream: Stream, shared: &'s Arc<Shared>, waiting: VecDeque<Job>) -> Self {
        let now = Instant::now();
        Self {
            stream,
            shared,
            waiting,
            out: HashMap::new(),
            free: (0..MAX_STREAMS).rev().collect(),
            prepared: HashMap::new(),
            written: 0,
            to_write: Vec::new(),
            flushes: false,
            piece: vec![0; READ_BYTES].into(),
            incoming: Incoming::new(wire::VERSION),
            last_heard: now,
            last_asked: now,
        }
    }

    /// Serves jobs until nobody asks anything, or the connection breaks.
    pub(super) async fn serve(mut self, jobs: &mut mpsc::UnboundedReceiver<Job>) -> Ended {
        let looks = (self.shared.settings.timeout / 4).clamp(LOOKS[0], LOOKS[1]);
        let mut tick = tokio::time::interval(looks);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let ended = loop {
            self.ask_waiting();
            let (is_idle, idle_at) = (self.is_idle(), self.last_asked + IDLE);
            tokio::select! {
                job = jobs.recv() => match job {
                    Some(job) => self.takes(job),
                    None => break Ended::Idle,
                },
                came = future::poll_fn(|cx| self.poll_come(cx)) => {
                    if let Err(error) = came.and_then(|bytes| self.hear(bytes)) {
                        break Ended::Broken(error);
                    }
                }
                _ = tick.tick(), if !is_idle => {
                    let now = Instant::now();
                    self.look(now);
                    if !self.out.is_empty() && now.duration_since(self.last_heard) > SILENCE {
                        break Ended::Broken(io::ErrorKind::TimedOut.into());
                    }
                }
                () = tokio::time::sleep_until(idle_at.into()), if is_idle => {
                    break Ended::Idle;
                }
            }
        };
        self.give_up();
        ended
    }

    fn is_idle(&self) -> bool {
        self.out.is_empty() && self.waiting.is_empty()
    }

    fn takes(&mut self, job: Job) {
        let now = Instant::now();
        if self.is_idle() {
            self.last_heard = now;
        }
        self.last_asked = now;
        self.waiting.push_back(job);
    }

    fn ask_waiting(&mut self) {
        while !self.free.is_empty()
            && let Some(job) = self.waiting.pop_front()
        {
            self.ask(job, false);
        }
    }

    /// Asks a job. `again`: its statements were prepared for it once more.
    fn ask(&mut self, job: Job, again: bool) {
        let mut ids: Vec<&[u8]> = Vec::new();
        for text in &job.prepared {
            match self.prepared.get(&*text.text) {
                Some(Prepared::Known(id)) => ids.push(id),
                _ => {
                    let text = text.clone();
                    return self.prepare(&text, job, again);
                }
            }
        }
        let Some((opcode, body)) = job.copied.in_v4(ids) else {
            return job.fails(Fate::Version, self.shared);
        };
        let Some(stream) = self.free.pop() else {
            self.waiting.push_front(job);
            return;
        };
        let opcode = match opcode {
            Opcode::Execute => wire::EXECUTE,
            Opcode::Batch => wire::BATCH,
            _ => wire::QUERY,
        };
        let compression = self.shared.settings.compression;
        wire::put(&mut self.to_write, stream, opcode, &body, compression);
        self.out.insert(stream, Out::Asked { job, again });
    }

    fn prepare(&mut self, text: &Text, job: Job, again: bool) {
        if let Some(Prepared::Out(jobs)) = self.prepared.get_mut(&*text.text) {
            jobs.push((job, again));
            return;
        }
        let Some(stream) = self.free.pop() else {
            self.waiting.push_front(job);
            return;
        };
        if self.prepared.len() >= MAX_PREPARED {
            let is_out = |prepared: &Prepared| matches!(prepared, Prepared::Out(_));
            self.prepared.retain(|_, prepared| is_out(prepared));
        }
        let key: Arc<[u8]> = text.text.as_ref().into();
        wire::put(
            &mut self.to_write,
            stream,
            wire::PREPARE,
            &wire::long_string(&key),
            self.shared.settings.compression,
        );
        self.prepared
            .insert(key.clone(), Prepared::Out(vec![(job, again)]));
        self.out.insert(stream, Out::Prepares(key));
    }

    /// Writes as many bytes as can be written. Ready with the number of bytes that have come, which
    /// are in `piece`. One task polls both.
    fn poll_come(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Err(error)) = self.poll_write(cx) {
            return Poll::Ready(Err(error));
        }
        let mut piece = ReadBuf::new(&mut self.piece);
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
        match piece.filled().len() {
            0 => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
            bytes => Poll::Ready(Ok(bytes)),
        }
    }

    /// Ready when everything is on its way.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.to_write.get(self.written..).filter(|r| !r.is_empty()) {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                n => self.written += n,
            }
            self.flushes = true;
        }
        // The memory of a burst is not kept.
        self.to_write.clear();
        self.to_write.shrink_to(READ_BYTES);
        self.written = 0;
        if self.flushes {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.flushes = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Reads the bytes that have come into `piece`.
    fn hear(&mut self, came: usize) -> io::Result<()> {
        self.last_heard = Instant::now();
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
        let bytes = self.piece.get(..came).unwrap_or_default();
        self.incoming.comes(bytes).map_err(invalid)?;
        // Its own while answers are handled.
        let mut incoming = std::mem::replace(&mut self.incoming, Incoming::new(wire::VERSION));
        while let Some(came) = incoming.next(MAX_FRAME_BYTES).map_err(invalid)? {
            self.handle_answer(&came)?;
        }
        self.incoming = incoming;
        Ok(())
    }

    /// Handles an answer. One that is too long has no frame.
    ///
    /// # Errors
    /// The answer has a compression that was not agreed on.
    fn handle_answer(&mut self, came: &Came<'_>) -> io::Result<()> {
        let compression = self.shared.settings.compression;
        if !wire::is_agreed(came.flags, compression) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let Some(out) = self.out.remove(&came.stream) else {
            return Ok(()); // An event, or nobody's.
        };
        self.free.push(came.stream);
        let response = came
            .frame
            .and_then(|frame| Response::of_frame(frame, compression, MAX_COMPARED_BYTES));
        let error = response.as_ref().and_then(Response::error);
        match out {
            Out::Late => {}
            Out::Prepares(text) => {
                let id = response.as_ref().and_then(Response::prepared_id);
                self.finish_prepare(&text, id, error);
            }
            Out::Asked { job, again: false } if error == Some(UNPREPARED) => {
                for text in &job.prepared {
                    // Statements whose PREPARE is out stay: other jobs wait for them.
                    if let Some(Prepared::Known(_)) = self.prepared.get(&*text.text) {
                        self.prepared.remove(&*text.text);
                    }
                }
                self.ask(job, true);
            }
            Out::Asked { job, .. } => {
                let answer = match (came.opcode, error) {
                    (wire::ERROR, code) => Answer::Error(code.unwrap_or_default()),
                    _ => Answer::Result(kept(response.as_ref(), &job, self.shared)),
                };
                if job.exchange.take_mirror_answer(Ok(answer), self.shared) {
                    self.shared.compare(&job.exchange);
                }
            }
        }
        Ok(())
    }

    fn finish_prepare(&mut self, text: &Arc<[u8]>, id: Option<&[u8]>, error: Option<i32>) {
        let Some(Prepared::Out(jobs)) = self.prepared.remove(text) else {
            return;
        };
        let Some(id) = id.filter(|id| id.len() <= MAX_ID_BYTES) else {
            for (job, _) in jobs {
                let answer = Answer::Error(error.unwrap_or_default());
                if job.exchange.take_mirror_answer(Ok(answer), self.shared) {
                    self.shared.compare(&job.exchange);
                }
            }
            return;
        };
        self.prepared
            .insert(text.clone(), Prepared::Known(id.into()));
        for (job, again) in jobs {
            self.ask(job, again);
        }
    }

    /// Fails the jobs that are late.
    fn look(&mut self, now: Instant) {
        let is_late = |job: &Job| job.deadline <= now;
        let mut late: Vec<Job> = Vec::new();
        for out in self.out.values_mut() {
            if matches!(out, Out::Asked { job, .. } if is_late(job))
                && let Out::Asked { job, .. } = std::mem::replace(out, Out::Late)
            {
                late.push(job);
            }
        }
        for prepared in self.prepared.values_mut() {
            if let Prepared::Out(jobs) = prepared {
                late.extend(
                    jobs.extract_if(.., |(job, _)| is_late(job))
                        .map(|(job, _)| job),
                );
            }
        }
        while self.waiting.front().is_some_and(is_late)
            && let Some(job) = self.waiting.pop_front()
        {
            late.push(job);
        }
        for job in late {
            job.fails(Fate::Late, self.shared);
        }
    }

    /// Fails all jobs: those that are out are lost, and those that were not asked yet find the
    /// mirror away.
    fn give_up(self) {
        for out in self.out.into_values() {
            if let Out::Asked { job, .. } = out {
                job.fails(Fate::Lost, self.shared);
            }
        }
        for prepared in self.prepared.into_values() {
            if let Prepared::Out(jobs) = prepared {
                for (job, _) in jobs {
                    job.fails(Fate::Away, self.shared);
                }
            }
        }
        for job in self.waiting {
            job.fails(Fate::Away, self.shared);
        }
    }
}

fn kept(response: Option<&Response<'_>>, job: &Job, shared: &Shared) -> Option<Box<[u8]>> {
    let body = response?.proper()?;
    let fits = body.len() <= MAX_COMPARED_BYTES && job.exchange.keeps(body.len(), shared);
    fits.then(|| body.into())
}
