//! [`Answer`]: what a database has answered, and what `cassandra-protocol` makes of it.

use std::collections::HashMap;

use cassandra_protocol::{
    frame::{Opcode, Version, message_response::ResponseBody, message_result::ColType},
    types::rows::Row,
};

use crate::{NoAnswer, guard::guarded, scan};

/// Bytes of an error's text that are shown.
const MAX_SHOWN_BYTES: usize = 256;

/// A whole answer. Its body is not compressed, and nothing stands in front of it.
#[derive(Debug)]
pub struct Answer {
    version: Version,
    opcode: Opcode,
    body: Vec<u8>,
}

/// A statement that a database has prepared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// The statement's id.
    pub id: Box<[u8]>,
    /// The id of its result's metadata, which version 5 wants with each EXECUTE.
    pub metadata_id: Option<Box<[u8]>>,
    /// The types of its values, in order.
    pub types: Box<[ColType]>,
}

/// The outcome of a request, in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// So many rows.
    Rows {
        /// How many.
        rows: u32,
        /// Whether there are pages behind them.
        more_pages: bool,
    },
    /// Done, without rows.
    Done,
    /// An ERROR.
    Error {
        /// The code (`native_protocol_v5.spec` §9).
        code: i32,
    },
}

/// The rows of an answer.
#[derive(Debug)]
pub struct Rows(Vec<Row>);

impl Answer {
    pub(crate) fn new(version: Version, opcode: Opcode, body: Vec<u8>) -> Self {
        Self {
            version,
            opcode,
            body,
        }
    }

    /// The answer's opcode.
    pub(crate) fn opcode(&self) -> Opcode {
        self.opcode
    }

    /// The answer, if it is of this kind.
    ///
    /// # Errors
    /// [`NoAnswer::Refused`] if it is an ERROR, and [`NoAnswer::Unexpected`] if it is something else.
    pub(crate) fn expect(self, expected: Opcode) -> Result<Self, NoAnswer> {
        match self.opcode {
            opcode if opcode == expected => Ok(self),
            Opcode::Error => Err(self.refused()),
            other => Err(NoAnswer::Unexpected(other.into())),
        }
    }

    fn refused(&self) -> NoAnswer {
        let Some((code, text)) = scan::error(&self.body) else {
            return NoAnswer::Unreadable;
        };
        let text = text.get(..MAX_SHOWN_BYTES).unwrap_or(text);
        NoAnswer::Refused {
            code,
            message: String::from_utf8_lossy(text).escape_debug().to_string(),
        }
    }

    /// The outcome of a QUERY, EXECUTE or BATCH. Reads no row.
    ///
    /// # Errors
    /// The answer is none to such a request, or malformed.
    pub fn outcome(&self) -> Result<Outcome, NoAnswer> {
        match self.opcode {
            Opcode::Error => {
                let error = scan::error(&self.body);
                let code = error.map(|(code, _)| code);
                code.map(|code| Outcome::Error { code })
                    .ok_or(NoAnswer::Unreadable)
            }
            Opcode::Result => match scan::counted(&self.body).ok_or(NoAnswer::Unreadable)? {
                Some((rows, more_pages)) => Ok(Outcome::Rows { rows, more_pages }),
                None => Ok(Outcome::Done),
            },
            other => Err(NoAnswer::Unexpected(other.into())),
        }
    }

    /// The rows of the RESULT of a query.
    ///
    /// # Errors
    /// The answer is none, or malformed.
    pub fn rows(self) -> Result<Rows, NoAnswer> {
        let answer = self.expect(Opcode::Result)?;
        let rows = answer.decode(scan::is_rows(&answer.body))?.into_rows();
        rows.map(Rows).ok_or(NoAnswer::Unreadable)
    }

    /// The statement that the RESULT of a PREPARE names.
    ///
    /// # Errors
    /// The answer is none, or malformed.
    pub fn prepared(self) -> Result<Prepared, NoAnswer> {
        let answer = self.expect(Opcode::Result)?;
        let is_one = scan::is_prepared(&answer.body, answer.version);
        let prepared = answer.decode(is_one)?.into_prepared();
        let prepared = prepared.ok_or(NoAnswer::Unreadable)?;
        let id = prepared.id.into_bytes().ok_or(NoAnswer::Unreadable)?;
        let metadata_id = prepared.result_metadata_id.and_then(|id| id.into_bytes());
        Ok(Prepared {
            id: id.into(),
            metadata_id: metadata_id.map(Into::into),
            types: prepared
                .metadata
                .col_specs
                .iter()
                .map(|column| column.col_type.id)
                .collect(),
        })
    }

    /// The options that a SUPPORTED names, with the values that the server supports.
    ///
    /// # Errors
    /// The answer is none, or malformed.
    pub fn supported(self) -> Result<HashMap<String, Vec<String>>, NoAnswer> {
        let answer = self.expect(Opcode::Supported)?;
        match answer.decode(scan::is_supported(&answer.body))? {
            ResponseBody::Supported(supported) => Ok(supported.data),
            _ => Err(NoAnswer::Unreadable),
        }
    }

    /// Has the crate read the body, if the scanner lets it pass.
    fn decode(&self, passes: bool) -> Result<ResponseBody, NoAnswer> {
        if !passes {
            return Err(NoAnswer::Unreadable);
        }
        let decoded =
            guarded(|| ResponseBody::try_from(&self.body, self.opcode, self.version).ok())?;
        decoded.ok_or(NoAnswer::Unreadable)
    }
}

impl Rows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Reads each row with the crate's own accessors. They see bytes of the database, so a panic in them is
    /// caught here.
    ///
    /// # Errors
    /// `read` has given `None` for a row: a column is not there, or not of that type.
    pub fn read<T>(&self, read: impl Fn(&Row) -> Option<T>) -> Result<Vec<T>, NoAnswer> {
        let all = guarded(|| self.0.iter().map(read).collect::<Option<Vec<T>>>())?;
        all.ok_or(NoAnswer::Unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errors_text_is_shown_short_and_escaped() {
        let text = format!("no\n{}", "x".repeat(300));
        let length = (text.len() as u16).to_be_bytes();
        let body = [&0x0100_i32.to_be_bytes()[..], &length, text.as_bytes()].concat();
        let answer = Answer::new(Version::V4, Opcode::Error, body);
        let failure = answer.expect(Opcode::Ready).unwrap_err();
        assert!(failure.to_string().starts_with("no\\nxxx"));
        assert_eq!(failure.to_string().len(), MAX_SHOWN_BYTES + 1);
        assert!(matches!(failure, NoAnswer::Refused { code: 0x0100, .. }));
    }

    #[test]
    fn an_answer_of_another_kind_is_none() {
        let answer = Answer::new(Version::V4, Opcode::Ready, Vec::new());
        let failure = answer.rows().unwrap_err();
        assert_eq!(failure.to_string(), "unexpected opcode 0x02");
    }
}
