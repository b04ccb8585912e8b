//! Answers as a client reads them: frames, in segments or not.

use std::collections::VecDeque;

const HEADER_BYTES: usize = 9;
const SEGMENT_HEADER_BYTES: usize = 6;
const SEGMENT_TRAILER_BYTES: usize = 4;
const ERROR: u8 = 0;
const RESULT: u8 = 8;
const PREPARED: [u8; 4] = [0, 0, 0, 4];

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub flags: u8,
    pub stream: i16,
    pub opcode: u8,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn is_error(&self) -> bool {
        self.opcode == ERROR
    }

    /// The code of an error.
    pub fn error(&self) -> Option<i32> {
        let code = self.body.first_chunk().filter(|_| self.is_error());
        code.map(|code| i32::from_be_bytes(*code))
    }

    /// The ids of a statement that was prepared, and of its result's metadata.
    pub fn ids(&self, version: u8) -> Option<(Vec<u8>, Vec<u8>)> {
        let rest = self
            .body
            .strip_prefix(&PREPARED)
            .filter(|_| self.opcode == RESULT)?;
        let (id, rest) = short_bytes(rest)?;
        let of_result = match version {
            5 => short_bytes(rest)?.0,
            _ => &[],
        };
        Some((id.to_vec(), of_result.to_vec()))
    }

    /// The body, but for what a database makes of a text that a step has changed: ids of 16 bytes.
    pub fn without_ids(&self) -> Vec<u8> {
        match self.body.strip_prefix(&PREPARED) {
            Some(rest) if self.opcode == RESULT => {
                let behind = rest.get(18..).unwrap_or_default();
                // In v5 an id of the result's metadata follows, which is made of names.
                let is_id = behind.starts_with(&[0, 16]);
                behind
                    .get(if is_id { 18 } else { 0 }..)
                    .unwrap_or_default()
                    .to_vec()
            }
            _ => self.body.clone(),
        }
    }
}

fn short_bytes(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

/// Answers in the order in which they came.
pub struct Answers {
    is_v5: bool,
    is_segmented: bool,
    raw: Vec<u8>,
    frames: Vec<u8>,
    answers: VecDeque<Answer>,
}

impl Answers {
    pub fn new(version: u8) -> Self {
        Self {
            is_v5: version == 5,
            is_segmented: false,
            raw: Vec::new(),
            frames: Vec::new(),
            answers: VecDeque::new(),
        }
    }

    /// Takes bytes of a database, or of a step.
    pub fn take(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        loop {
            if self.is_segmented {
                while self.take_segment() {}
            } else {
                self.frames.append(&mut self.raw);
            }
            if !self.take_frame() {
                return;
            }
        }
    }

    fn take_segment(&mut self) -> bool {
        let Some([l0, l1, l2]) = self.raw.first_chunk() else {
            return false;
        };
        let length = usize::from_le_bytes([*l0, *l1, l2 & 1, 0, 0, 0, 0, 0]);
        let end = SEGMENT_HEADER_BYTES + length;
        let Some(payload) = self.raw.get(SEGMENT_HEADER_BYTES..end) else {
            return false;
        };
        self.frames.extend_from_slice(payload);
        self.raw
            .drain(..(end + SEGMENT_TRAILER_BYTES).min(self.raw.len()));
        true
    }

    fn take_frame(&mut self) -> bool {
        let Some([_, flags, s0, s1, opcode, length @ ..]) =
            self.frames.first_chunk::<HEADER_BYTES>()
        else {
            return false;
        };
        let end = HEADER_BYTES + u32::from_be_bytes(*length) as usize;
        let Some(body) = self.frames.get(HEADER_BYTES..end) else {
            return false;
        };
        self.answers.push_back(Answer {
            flags: *flags,
            stream: i16::from_be_bytes([*s0, *s1]),
            opcode: *opcode,
            body: body.to_vec(),
        });
        self.frames.drain(..end);
        if self.is_v5 && !self.is_segmented {
            // Behind READY.
            self.is_segmented = true;
            self.raw = std::mem::take(&mut self.frames);
        }
        true
    }

    /// The first answer.
    pub fn pop(&mut self) -> Option<Answer> {
        self.answers.pop_front()
    }

    /// Takes the first answer on a stream.
    pub fn of(&mut self, stream: i16) -> Option<Answer> {
        let at = self
            .answers
            .iter()
            .position(|answer| answer.stream == stream)?;
        self.answers.remove(at)
    }
}
