//! Questions for the texts of statements, as they go out and come back: see `lookups`.

use crate::log::{Log, LookedUp};
use crate::lookups::{Answer, FIRST_STREAM, MAX_ANSWER_BYTES, MAX_IDS, MAX_LOOKUPS, question};
use crate::request::{Request, Statement};
use crate::response::Response;
use crate::state::EditState;
use cql::StreamId;
use cql::wire::Header;
use cql::wire::compress;

impl EditState {
    /// Some step wants statements looked up.
    fn looks_up(&self) -> bool {
        self.pipeline.iter().any(|step| step.looks_up())
    }

    /// A client's request on a stream that is for questions: whose the answer is could not be told.
    pub(crate) fn is_for_lookups(&self, stream: StreamId) -> bool {
        let begins = i32::from(FIRST_STREAM);
        let number = i32::from(stream.0) - begins;
        number < MAX_LOOKUPS as i32 && (self.looks_up() || !self.lookups.is_idle())
    }

    /// Asks for what is executed and not known to all who want to know it.
    pub(crate) fn look_up(&mut self, request: &Request<'_>, now_ns: u64, log: &mut dyn Log) {
        if !self.session.terms.accepted || self.lookups.locked || !self.looks_up() {
            return;
        }
        let ids = request
            .statements()
            .filter_map(|statement| match statement {
                Statement::Prepared(id) => Some(id),
                Statement::Text(_) => None,
            });
        for id in ids.take(MAX_IDS) {
            if self.lookups.known.contains(id) {
                continue;
            }
            let prepared = self.lookups.prepared.as_ref();
            let caller = &self.session.caller;
            let is_known = prepared.is_none_or(|prepared| prepared.knows(id))
                && !self.pipeline.iter().any(|step| step.lacks(id, caller));
            if is_known {
                self.lookups.remember_known(id);
            } else if self.lookups.may_ask(id, now_ns) {
                let Some(stream) = self.lookups.free_stream() else {
                    return log.looked_up(LookedUp::Busy);
                };
                self.lookups.goes_out(stream, id, now_ns);
                let question = question(self.session.terms.version, stream, id);
                self.outgoing.late.extend_from_slice(&question);
            }
        }
    }

    /// Whether a question's answer is kept back until it is whole; otherwise it is dropped.
    pub(crate) fn reads_answer(&mut self, header: &Header, log: &mut dyn Log) -> bool {
        let reads = header.length as usize <= MAX_ANSWER_BYTES;
        if !reads {
            self.fail_lookup(header, log);
        }
        reads
    }

    /// A question's answer is there, and cannot be read.
    pub(crate) fn fail_lookup(&mut self, header: &Header, log: &mut dyn Log) {
        self.lookups.out.remove(&header.stream);
        self.lookups.failed = true;
        log.looked_up(LookedUp::Failed);
    }

    /// A question's answer is there.
    pub(crate) fn finish_lookup(&mut self, header: &Header, body: &[u8], log: &mut dyn Log) {
        let Some(id) = self.lookups.out.remove(&header.stream) else {
            return;
        };
        let plain = match header.is_compressed() {
            true => compress::expand_to(self.session.terms.compression, body, MAX_ANSWER_BYTES),
            false => Some(body.into()),
        };
        let response = Response::new(*header, plain.unwrap_or_default());
        let what = match Answer::of(&response, &id) {
            Answer::Is { keyspace, text } => {
                for step in self.pipeline.iter() {
                    step.learns(&id, keyspace, text, &self.session.caller);
                }
                if let Some(prepared) = &self.lookups.prepared {
                    prepared.learn(&id, keyspace, text);
                }
                LookedUp::Found
            }
            Answer::Nothing => LookedUp::NotFound,
            Answer::Another => LookedUp::Mismatch,
            Answer::Unreadable => LookedUp::Failed,
        };
        self.lookups.failed |= what == LookedUp::Failed;
        log.looked_up(what);
    }
}
