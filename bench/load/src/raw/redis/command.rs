//! Commands in RESP2: the parts that never change are encoded once.

use anyhow::bail;

use crate::{
    raw::protocol::{At, Draw},
    values::Values,
    workload::{
        Step,
        words::{self, Part},
    },
};

/// The commands of one step.
#[derive(Clone, Debug)]
pub struct Commands {
    pieces: Vec<Piece>,
    /// The number of commands in one pipeline.
    pub count: usize,
}

#[derive(Clone, Debug)]
enum Piece {
    /// Bytes that are encoded already.
    Fixed(Vec<u8>),
    /// A word to be made.
    Word(Vec<Part>),
}

impl Commands {
    /// Makes the commands of a step.
    ///
    /// # Errors
    /// The step is not for Redis, or a word of it is wrong.
    pub fn new(step: &Step) -> anyhow::Result<Self> {
        let Step::Redis { command, count } = step else {
            bail!("a step of CQL for Redis");
        };
        let mut pieces = Vec::new();
        let mut fixed = format!("*{}\r\n", command.len()).into_bytes();
        for word in command {
            let parts = words::parse(word)?;
            if let [Part::Literal(text)] = &*parts {
                fixed.extend_from_slice(format!("${}\r\n{text}\r\n", text.len()).as_bytes());
            } else {
                pieces.push(Piece::Fixed(std::mem::take(&mut fixed)));
                pieces.push(Piece::Word(parts));
            }
        }
        pieces.push(Piece::Fixed(fixed));
        Ok(Self {
            pieces,
            count: *count,
        })
    }

    /// All of them: the first with the operation's key, the others each with one of its own.
    pub fn put(&self, at: At, draw: &mut Draw<'_>, word: &mut Vec<u8>, out: &mut Vec<u8>) {
        for n in 0..self.count {
            let key = if n == 0 { at.key } else { draw.further_key(at) };
            for piece in &self.pieces {
                match piece {
                    Piece::Fixed(bytes) => out.extend_from_slice(bytes),
                    Piece::Word(parts) => {
                        word.clear();
                        put_word(parts, key, draw.values, word);
                        out.push(b'$');
                        put_length(word.len(), out);
                        out.extend_from_slice(b"\r\n");
                        out.extend_from_slice(word);
                        out.extend_from_slice(b"\r\n");
                    }
                }
            }
        }
    }
}

/// A word without its length.
fn put_word(parts: &[Part], key: u64, values: &mut Values, out: &mut Vec<u8>) {
    for part in parts {
        match part {
            Part::Literal(text) => out.extend_from_slice(text.as_bytes()),
            Part::Bind(bind) => values.put_text(*bind, key, out),
        }
    }
}

fn put_length(length: usize, out: &mut Vec<u8>) {
    if length >= 10 {
        put_length(length / 10, out);
    }
    out.push(b'0' + (length % 10) as u8);
}
