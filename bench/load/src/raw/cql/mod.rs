//! CQL: native protocol v4, prepared statements and batches of them, consistency ONE.
//!
//! A request's slot is its stream id.

pub mod session;
pub mod wire;

use anyhow::{Context, bail};

use super::{
    patient::Patient,
    protocol::{Answered, At, Draw, Protocol, Taken},
};
use crate::{
    order::Credentials,
    values::Values,
    workload::{Bind, Job, Step},
};
use session::{Session, StatementId};
use wire::{
    BATCH, ERROR, EXECUTE, HEADER_BYTES, Header, ONE, RESULT, VALUES_SKIP_METADATA, begin,
    describe_error, end, put_short_bytes,
};

/// §4.1.7: types of a batch, kinds of its statements.
const LOGGED: u8 = 0;
const UNLOGGED: u8 = 1;
const BY_ID: u8 = 1;
/// §2.2: stream -1 is an event's.
const EVENT: i16 = -1;

/// A connection's statements, by operation and step.
pub struct Cql {
    operations: Vec<Vec<Prepared>>,
}

struct Prepared {
    id: StatementId,
    binds: Vec<Bind>,
    batch: Option<Batch>,
}

struct Batch {
    count: u16,
    is_logged: bool,
    has_keys: bool,
}

impl Protocol for Cql {
    fn open(
        stream: &mut Patient<'_>,
        job: &Job,
        credentials: Option<&Credentials>,
    ) -> anyhow::Result<Self> {
        let mut session = Session::over(stream, credentials)?;
        let mut operations = Vec::new();
        for operation in &job.operations {
            let mut steps = Vec::new();
            // An operation that only fills is prepared only to fill.
            if operation.is_active() {
                for step in &operation.steps {
                    steps.push(Prepared::new(step, |cql| session.prepare(cql))?);
                }
            }
            operations.push(steps);
        }
        Ok(Self { operations })
    }

    fn put(&mut self, at: At, draw: &mut Draw<'_>, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let steps = self.operations.get(at.operation);
        let step = steps.and_then(|steps| steps.get(at.step));
        let step = step.context("no such step")?;
        match &step.batch {
            None => step.put_execute(at, draw.values, out),
            Some(batch) => step.put_batch(batch, at, draw, out),
        }
    }

    fn take(&mut self, bytes: &[u8]) -> anyhow::Result<Option<Taken>> {
        let Some(header) = Header::of_response(bytes)? else {
            return Ok(None);
        };
        let length = HEADER_BYTES + header.length;
        let Some(body) = bytes.get(HEADER_BYTES..length) else {
            return Ok(None);
        };
        if header.stream == EVENT {
            return Ok(Some(Taken {
                bytes: length,
                answered: None,
            }));
        }
        let error = match header.opcode {
            RESULT => None,
            ERROR => Some(describe_error(body)),
            other => bail!("opcode {other:#04x} instead of a result: framing is lost"),
        };
        Ok(Some(Taken {
            bytes: length,
            answered: Some(Answered {
                slot: u16::try_from(header.stream).context("a stream that nobody has")?,
                error,
            }),
        }))
    }
}

impl Prepared {
    fn new(
        step: &Step,
        prepare: impl FnOnce(&str) -> anyhow::Result<StatementId>,
    ) -> anyhow::Result<Self> {
        let (cql, binds, batch) = match step {
            Step::Statement { cql, bind } => (cql, bind, None),
            Step::Batch {
                cql,
                bind,
                count,
                logged,
                keys,
            } => {
                let batch = Batch {
                    count: u16::try_from(*count)?,
                    is_logged: *logged,
                    has_keys: *keys,
                };
                (cql, bind, Some(batch))
            }
            Step::Redis { .. } => bail!("a command of Redis for a CQL database"),
        };
        Ok(Self {
            id: prepare(cql)?,
            binds: binds.clone(),
            batch,
        })
    }

    /// §4.1.6.
    fn put_execute(&self, at: At, values: &mut Values, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let start = begin(EXECUTE, at.slot, out);
        put_short_bytes(&self.id, out)?;
        out.extend_from_slice(&ONE);
        out.push(VALUES_SKIP_METADATA);
        self.put_values(at.key, values, out)?;
        end(start, out)
    }

    /// §4.1.7.
    fn put_batch(
        &self,
        batch: &Batch,
        at: At,
        draw: &mut Draw<'_>,
        out: &mut Vec<u8>,
    ) -> anyhow::Result<()> {
        let start = begin(BATCH, at.slot, out);
        out.push(if batch.is_logged { LOGGED } else { UNLOGGED });
        out.extend_from_slice(&batch.count.to_be_bytes());
        for n in 0..batch.count {
            let key = if batch.has_keys && n > 0 {
                draw.further_key(at)
            } else {
                at.key
            };
            out.push(BY_ID);
            put_short_bytes(&self.id, out)?;
            self.put_values(key, draw.values, out)?;
        }
        out.extend_from_slice(&ONE);
        out.push(0);
        end(start, out)
    }

    fn put_values(&self, key: u64, values: &mut Values, out: &mut Vec<u8>) -> anyhow::Result<()> {
        out.extend_from_slice(&u16::try_from(self.binds.len())?.to_be_bytes());
        for bind in &self.binds {
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            values.put_cql(*bind, key, out);
            let length = i32::try_from(out.len() - start - 4)?;
            if let Some(place) = out.get_mut(start..start + 4) {
                place.copy_from_slice(&length.to_be_bytes());
            }
        }
        Ok(())
    }
}
