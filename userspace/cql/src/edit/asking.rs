//! What becomes of requests.

use super::Unreadable;
use super::cutter::{Fate, Frames, Plan};
use super::lane::{Lane, Reads, may_begin};
use super::login::MAX_TOKEN_BYTES;
use super::output::Output;
use super::request::{Request, Statement};
use super::room::Taken;
use super::talk::{KEYSPACE, Talk, Terms};
use super::transform::{Error, Log, Outcome, Refused, Unseen};
use crate::compress::MAX_SEEN_BYTES;
use crate::frame::{HEADER_BYTES, Header, Opcode};
use crate::parse::parse;
use crate::statement::StatementKind;

/// A few short strings; with the configuration that some drivers report, some KiB.
const MAX_STARTUP_BYTES: u32 = 1 << 20;

/// Requests.
pub(super) struct Asking<'e> {
    pub(super) talk: &'e mut Talk,
    /// The direction's first frame was seen to begin.
    pub(super) begun: &'e mut bool,
    pub(super) pause_ns: &'e mut u64,
    pub(super) now_ns: u64,
    pub(super) log: &'e mut dyn Log,
}

impl Reads for Asking<'_> {
    fn terms(&self) -> &Terms {
        &self.talk.terms
    }

    fn between(&mut self, _: &Lane, _: &mut Output<'_>) {}
}

impl Frames<Unreadable> for Asking<'_> {
    fn plan(&mut self, first: u8, header: &Header) -> Result<Plan, Unreadable> {
        if let Err(why) = may_begin(first, 0, *self.begun, &self.talk.terms) {
            if why == Unreadable::Version && self.talk.is_strict() {
                self.answer_version(header);
            }
            return Err(why);
        }
        *self.begun = true;
        if !self.talk.terms.accepted {
            self.talk.terms.version = header.version;
        }
        let Some(opcode) = header.opcode else {
            return Ok(Plan::Pass);
        };
        if self.talk.terms.startup.is_some() {
            self.talk.early = true;
            if self.talk.is_strict() {
                return Err(Unreadable::Early);
            }
        }
        if opcode == Opcode::Startup && self.talk.terms.may_start() {
            return match header.length <= MAX_STARTUP_BYTES {
                true => Ok(Plan::See),
                false => Err(Unreadable::NotCql),
            };
        }
        if opcode == Opcode::AuthResponse {
            return Ok(match header.length <= MAX_TOKEN_BYTES {
                true => Plan::See,
                false => Plan::Pass,
            });
        }
        // Without a pipeline, which may come: in which keyspace the flow is.
        let is_looked_at = self.talk.pipeline.is_empty() && opcode == Opcode::Query;
        if !is_looked_at && !self.talk.pipeline.iter().any(|step| step.wants(opcode)) {
            return Ok(Plan::Pass);
        }
        if header.length as usize <= MAX_SEEN_BYTES {
            return Ok(Plan::See);
        }
        Ok(match self.is_unseen(header, opcode, Unseen::TooLarge) {
            true => Plan::Drop,
            false => Plan::Pass,
        })
    }

    fn room(&mut self, bytes: usize) -> Option<Taken> {
        self.talk.room.take(bytes)
    }

    fn crowded(&mut self, header: &Header) -> Plan {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        match self.is_unseen(header, opcode, Unseen::NoRoom) {
            true => Plan::Drop,
            false => Plan::Pass,
        }
    }

    fn lost(&mut self, first: u8) -> Unreadable {
        let why = may_begin(first, 0, *self.begun, &self.talk.terms).err();
        why.unwrap_or(match *self.begun {
            true => Unreadable::Framing,
            false => Unreadable::NotCql,
        })
    }

    fn see(&mut self, header: &Header, frame: &[u8]) -> Fate {
        let Some((raw, body)) = frame.split_first_chunk::<HEADER_BYTES>() else {
            return Fate::Keep;
        };
        if header.opcode == Some(Opcode::Startup) {
            self.talk.terms.starts(header, body);
            return Fate::Keep;
        }
        if header.opcode == Some(Opcode::AuthResponse) {
            let plain = self.talk.terms.plain(header, body).unwrap_or_default();
            self.talk.login.goes_out(header.stream, &plain);
            return Fate::Keep;
        }
        self.show(header, raw, body)
    }
}

impl Asking<'_> {
    /// Shows a request to the pipeline.
    fn show(&mut self, header: &Header, raw: &[u8; HEADER_BYTES], body: &[u8]) -> Fate {
        let opcode = header.opcode.unwrap_or(Opcode::Options);
        let plain = self
            .talk
            .terms
            .plain(header, body)
            .ok_or(Unseen::Compression);
        let request =
            plain.and_then(|plain| Request::read(*header, plain).ok_or(Unseen::Malformed));
        let mut request = match request {
            Ok(request) => request,
            Err(why) => {
                return match self.is_unseen(header, opcode, why) {
                    true => Fate::Drop,
                    false => Fate::Keep,
                };
            }
        };
        let pipeline = self.talk.pipeline.clone();
        if let Some(step) = pipeline.iter().find(|step| step.must_see())
            && self.talk.awaited.contains_key(&header.stream)
        {
            // Whose the next response is could not be told: what is learned of one would be of the other.
            self.log.refused(header.stream, step.name(), "stream");
            let message = format!("stream {} waits for a response", header.stream.0);
            self.talk.answer(header, &Error::Protocol(message));
            return Fate::Drop;
        }
        let mut awaited = Vec::new();
        let steps = pipeline.iter().enumerate();
        for (place, step) in steps.filter(|(_, step)| step.wants(opcode)) {
            let outcome = step.request(&mut request, &self.talk.caller, self.now_ns);
            if let Some((number, note)) = request.take_awaited() {
                awaited.push((place, number, note));
            }
            match outcome {
                Outcome::Pass => {}
                Outcome::Changed => self.log.changed(step.name()),
                Outcome::Slow(ns) => {
                    *self.pause_ns = ns.max(*self.pause_ns);
                    self.log.slowed(step.name(), ns);
                }
                Outcome::WouldRefuse(reason) => self.log.would_refuse(step.name(), reason),
                Outcome::Answer => {
                    self.log.answered(step.name());
                    self.talk.answer_void(header);
                    return Fate::Drop;
                }
                Outcome::Refuse(Refused { reason, error }) => {
                    self.log.refused(header.stream, step.name(), reason);
                    self.talk.answer(header, &error);
                    return Fate::Drop;
                }
            }
        }
        if asks_to_use(&request) {
            self.talk.uses.goes_out(&mut self.talk.caller.keyspace);
            awaited.push((KEYSPACE, 0, None));
        }
        match awaited.is_empty() {
            true => drop(self.talk.awaited.remove(&header.stream)),
            false => drop(self.talk.awaited.insert(header.stream, awaited)),
        }
        match request.changed() {
            None => Fate::Keep,
            Some((header, body)) => self.talk.terms.encoded(header, raw, body),
        }
    }

    /// Whether a request that nobody can look at is refused.
    fn is_unseen(&mut self, header: &Header, opcode: Opcode, why: Unseen) -> bool {
        let mut wanting = self.talk.pipeline.iter().filter(|step| step.wants(opcode));
        let refused = wanting.any(|step| step.is_strict());
        self.log.unseen(header.stream, why, refused);
        if refused {
            let error = match why {
                Unseen::TooLarge => Error::Invalid(
                    "the request is larger than the proxy's policy can look at".to_owned(),
                ),
                Unseen::NoRoom => {
                    Error::Overloaded("the proxy holds back as much as it may".to_owned())
                }
                Unseen::Compression | Unseen::Malformed => {
                    Error::Invalid("the proxy's policy cannot read the request".to_owned())
                }
            };
            self.talk.answer(header, &error);
        }
        refused
    }

    /// In a version that every driver reads; those that may try a lower one do, as they do with a
    /// server that does not know theirs.
    fn answer_version(&mut self, header: &Header) {
        let message = format!(
            "Invalid or unsupported protocol version ({}); the proxy's policy reads 3/v3, 4/v4 and \
             5/v5",
            header.version
        );
        let readable = Header {
            version: 4,
            ..*header
        };
        self.talk.answer(&readable, &Error::Protocol(message));
    }
}

/// Whether it is a USE. Drivers send it as text.
fn asks_to_use(request: &Request<'_>) -> bool {
    request.opcode() == Opcode::Query
        && request.statements().any(|statement| match statement {
            Statement::Text(text) => parse(text, text.len()).statement.kind == StatementKind::Use,
            Statement::Prepared(_) => false,
        })
}
