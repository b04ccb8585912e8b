//! The protocols' interface: how a request is written, and where a response ends.

use super::patient::Patient;
use crate::{
    keys::{Source, random::Random},
    order::Credentials,
    values::Values,
    workload::Job,
};

/// The longest response that is one; more means that framing is lost.
pub const MAX_RESPONSE_BYTES: usize = 16 << 20;

/// A protocol's state on one connection.
pub trait Protocol: Send + Sized {
    /// Logs in and prepares.
    ///
    /// # Errors
    /// When the database refuses.
    fn open(
        stream: &mut Patient<'_>,
        job: &Job,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Self>;

    /// Appends the request of a step.
    ///
    /// # Errors
    /// When there is no such step, or it does not fit the protocol.
    fn put(&mut self, at: At, draw: &mut Draw<'_>, out: &mut Vec<u8>) -> anyhow::Result<()>;

    /// The first response in these bytes; None: it is not whole yet.
    ///
    /// # Errors
    /// When it is none: framing is lost.
    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Option<Taken>>;
}

/// A request's place.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The slot that the response brings back.
    pub slot: u16,
    /// The operation's number in the job.
    pub operation: usize,
    /// The step's number in the operation.
    pub step: usize,
    /// The operation's key.
    pub key: u64,
    /// Whether further keys are new ones.
    pub new_key: bool,
}

/// A piece of input that was understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The response's length.
    pub bytes: usize,
    /// The request that it completes, if it does.
    pub answered: Option<Answered>,
}

/// The end of a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Answered {
    /// The slot in which it was.
    pub slot: u16,
    /// The error with which the database answered.
    pub error: Option<String>,
}

/// The source of a request's values.
pub struct Draw<'a> {
    /// The source of further keys.
    pub source: &'a mut Source,
    /// The random numbers for them.
    pub random: &'a mut Random,
    /// All other values.
    pub values: &'a mut Values,
}

impl Draw<'_> {
    /// Returns one more key for the same request; the first one again where there is no further
    /// one.
    pub fn further_key(&mut self, at: At) -> u64 {
        if at.new_key {
            return self.source.another();
        }
        self.source.existing(self.random).unwrap_or(at.key)
    }
}
