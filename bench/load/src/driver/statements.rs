//! A job's operations in the driver's terms.

use anyhow::{Context, bail};
use scylla::{
    client::session::Session,
    serialize::{
        SerializationError,
        row::{RowSerializationContext, SerializeRow},
        writers::RowWriter,
    },
    statement::{
        batch::{Batch, BatchType},
        prepared::PreparedStatement,
    },
};

use crate::{
    raw::protocol::{At, Draw},
    values::Values,
    workload::{Bind, Job, Step},
};

/// A session with its statements, by operation and step.
pub struct Target {
    session: Session,
    operations: Vec<Vec<Prepared>>,
}

struct Prepared {
    statement: PreparedStatement,
    binds: Vec<Bind>,
    /// The batch, its number of statements, and whether each has a key of its own.
    batch: Option<(Batch, usize, bool)>,
}

/// The values of one step: a row, or one for each statement of a batch.
type Rows = Vec<Row>;

impl Target {
    /// Prepares all statements that are used.
    pub async fn open(session: Session, job: &Job) -> anyhow::Result<Self> {
        let mut operations = Vec::new();
        for operation in &job.operations {
            let mut steps = Vec::new();
            if operation.is_active() {
                for step in &operation.steps {
                    steps.push(Prepared::new(&session, step).await?);
                }
            }
            operations.push(steps);
        }
        Ok(Self {
            session,
            operations,
        })
    }

    /// The values of all steps of an operation.
    pub fn values(&self, at: At, draw: &mut Draw<'_>) -> Vec<Rows> {
        let steps = self.operations.get(at.operation).into_iter().flatten();
        steps.map(|step| step.values(at, draw)).collect()
    }

    /// Does all steps of an operation with these values.
    pub async fn perform(&self, operation: usize, values: Vec<Rows>) -> Result<(), String> {
        let steps = self.operations.get(operation).into_iter().flatten();
        for (step, rows) in steps.zip(values) {
            step.perform(&self.session, rows).await?;
        }
        Ok(())
    }
}

impl Prepared {
    async fn new(session: &Session, step: &Step) -> anyhow::Result<Self> {
        let prepare = async |text: &str| {
            let prepared = session.prepare(text).await;
            prepared.with_context(|| text.to_owned())
        };
        Ok(match step {
            Step::Statement { cql, bind } => Self {
                statement: prepare(cql).await?,
                binds: bind.clone(),
                batch: None,
            },
            Step::Batch {
                cql,
                bind,
                count,
                logged,
                keys,
            } => {
                let statement = prepare(cql).await?;
                let mut batch = Batch::new(if *logged {
                    BatchType::Logged
                } else {
                    BatchType::Unlogged
                });
                for _ in 0..*count {
                    batch.append_statement(statement.clone());
                }
                Self {
                    statement,
                    binds: bind.clone(),
                    batch: Some((batch, *count, *keys)),
                }
            }
            Step::Redis { .. } => bail!("a command of Redis for a CQL database"),
        })
    }

    fn values(&self, at: At, draw: &mut Draw<'_>) -> Rows {
        let (count, has_keys) = match &self.batch {
            None => (1, false),
            Some((_, count, has_keys)) => (*count, *has_keys),
        };
        let row = |n| {
            let key = if has_keys && n > 0 {
                draw.further_key(at)
            } else {
                at.key
            };
            Row::new(&self.binds, key, draw.values)
        };
        (0..count).map(row).collect()
    }

    async fn perform(&self, session: &Session, mut rows: Rows) -> Result<(), String> {
        match &self.batch {
            None => {
                let row = rows.pop().ok_or("no values")?;
                let done = session.execute_unpaged(&self.statement, row).await;
                done.map(drop).map_err(|error| error.to_string())
            }
            Some((batch, ..)) => {
                let done = session.batch(batch, rows).await;
                done.map(drop).map_err(|error| error.to_string())
            }
        }
    }
}

/// Values as they are sent. Of the right types by the workload's word: as without a driver, it
/// is the database that refuses others.
pub struct Row {
    bytes: Vec<u8>,
    /// The end of each value.
    ends: Vec<usize>,
}

impl Row {
    fn new(binds: &[Bind], key: u64, values: &mut Values) -> Self {
        let mut row = Self {
            bytes: Vec::new(),
            ends: Vec::with_capacity(binds.len()),
        };
        for bind in binds {
            values.put_cql(*bind, key, &mut row.bytes);
            row.ends.push(row.bytes.len());
        }
        row
    }
}

impl SerializeRow for Row {
    fn serialize(
        &self,
        _context: &RowSerializationContext<'_>,
        writer: &mut RowWriter<'_>,
    ) -> Result<(), SerializationError> {
        let mut begin = 0;
        for end in &self.ends {
            let value = self.bytes.get(begin..*end).unwrap_or_default();
            let written = writer.make_cell_writer().set_value(value);
            written.map_err(SerializationError::new)?;
            begin = *end;
        }
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }
}
