//! Lines as they are written, and as they are read.

use std::io::{self, BufRead, Read as _};

use serde::{Deserialize, Serialize};

use crate::{End, Header, Missed, Record, VERSION};

/// The longest line. A request has 64 KiB at most; its text may take six bytes a character in JSON, its values two a byte.
pub const MAX_LINE_BYTES: usize = 512 << 10;

/// A line behind the first one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Line {
    /// A request.
    Record(Box<Record>),
    /// Requests that were not told.
    Missed(Missed),
    /// The end.
    End(End),
}

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Flaw {
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The first line is not that of a capture.
    #[error("it is no capture: the first line is not one that `underpass capture` writes")]
    NoCapture,
    /// The format is another one.
    #[error(
        "it is a capture of format {0}, and this program reads format {VERSION}: use the version that wrote it"
    )]
    Version(u64),
    /// A line is longer than [`MAX_LINE_BYTES`].
    #[error("line {0} is longer than {MAX_LINE_BYTES} bytes, as none of a capture is")]
    Long(u64),
    /// A line is not what it should be.
    #[error("line {0} is none of a capture: {1}")]
    Wrong(u64, String),
    /// The last line says another number of records than there are.
    #[error("its last line tells of {0} requests, and there are {1}: lines were lost or added")]
    Count(u64, u64),
}

/// Writes a line.
///
/// # Errors
/// The line is longer than [`MAX_LINE_BYTES`].
pub fn line(of: &impl Serialize) -> Result<String, Flaw> {
    let text = serde_json::to_string(of).map_err(|e| Flaw::Wrong(0, e.to_string()))?;
    match text.len() <= MAX_LINE_BYTES {
        // JSON allows some control characters, and terminals obey them.
        true if text.contains(char::is_control) => Ok(text.replace(char::is_control, "?")),
        true => Ok(text),
        false => Err(Flaw::Long(0)),
    }
}

/// Reads a file, a line at a time.
#[derive(Debug)]
pub struct Reader<R> {
    from: R,
    header: Header,
    line: Vec<u8>,
    /// The number of the line.
    at: u64,
    records: u64,
    end: Option<End>,
}

impl<R: BufRead> Reader<R> {
    /// Reads the first line.
    ///
    /// # Errors
    /// The line is not a capture's.
    pub fn begin(mut from: R) -> Result<Self, Flaw> {
        let mut line = Vec::new();
        if !next(&mut from, &mut line, 1)? {
            return Err(Flaw::NoCapture);
        }
        let of: serde_json::Value = serde_json::from_slice(&line).map_err(|_| Flaw::NoCapture)?;
        let version = of
            .get("underpass_capture")
            .and_then(serde_json::Value::as_u64);
        let version = version.ok_or(Flaw::NoCapture)?;
        if version != u64::from(VERSION) {
            return Err(Flaw::Version(version));
        }
        let header = serde_json::from_value(of).map_err(|e| Flaw::Wrong(1, e.to_string()))?;
        Ok(Self {
            from,
            header,
            line,
            at: 1,
            records: 0,
            end: None,
        })
    }

    /// The first line.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The last line, once it was read. None at the end of the file: it was cut off.
    pub fn end(&self) -> Option<End> {
        self.end
    }

    /// Reads the next line. None: there are no more. A last line that is not whole, as that of a writer who was killed, is
    /// none.
    ///
    /// # Errors
    /// The line is not a capture's.
    pub fn next_line(&mut self) -> Result<Option<Line>, Flaw> {
        self.at += 1;
        if !next(&mut self.from, &mut self.line, self.at)? {
            return Ok(None);
        }
        let wrong = |why: &dyn std::fmt::Display| Flaw::Wrong(self.at, why.to_string());
        if self.end.is_some() {
            return Err(wrong(&"it stands behind the last one"));
        }
        let line = serde_json::from_slice(&self.line).map_err(|e| wrong(&e))?;
        match &line {
            Line::Record(_) => self.records += 1,
            Line::Missed(_) => {}
            Line::End(end) if end.requests != self.records => {
                return Err(Flaw::Count(end.requests, self.records));
            }
            Line::End(end) => self.end = Some(*end),
        }
        Ok(Some(line))
    }
}

/// Reads a line without its end. False: there is no whole one.
fn next(from: &mut impl BufRead, line: &mut Vec<u8>, at: u64) -> Result<bool, Flaw> {
    line.clear();
    let most = MAX_LINE_BYTES as u64 + 1;
    from.take(most).read_until(b'\n', line)?;
    match line.pop() {
        Some(b'\n') => Ok(true),
        Some(_) if line.len() >= MAX_LINE_BYTES => Err(Flaw::Long(at)),
        _ => Ok(false),
    }
}
