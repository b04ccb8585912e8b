//! [`Compression`]: the compression that a STARTUP asks for.

use crate::fact::Fact;
use crate::wire::cursor::Cursor;

/// The compression that STARTUP asks for (`native_protocol_v5.spec` §4.1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Nothing.
    None,
    /// `lz4`
    Lz4,
    /// `snappy`
    Snappy,
}

impl Compression {
    /// Reads the compression from the options of a STARTUP as Cassandra reads them: whatever their case, and of the same
    /// option the last one counts. [`Fact::Absent`]: a compression that is not known, or several by options that differ
    /// in case, of which the order of a hash map decides. `None`: the options cannot be read.
    pub fn asked_for(options: &[u8]) -> Option<Fact<Self>> {
        let mut options = Cursor::new(options);
        let mut asked: Option<(&[u8], Fact<Self>)> = None;
        for _ in 0..options.short()? {
            let (option, value) = (options.short_bytes()?, options.short_bytes()?);
            if option.eq_ignore_ascii_case(b"COMPRESSION") {
                let named = Self::by_name(value);
                asked = match asked {
                    Some((other, before)) if other != option && before != named => {
                        Some((other, Fact::Absent))
                    }
                    _ => Some((option, named)),
                };
            }
        }
        Some(asked.map_or(Fact::Is(Self::None), |(_, named)| named))
    }

    pub(crate) fn by_name(name: &[u8]) -> Fact<Self> {
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match () {
            () if name.is_empty() || is("none") => Fact::Is(Self::None),
            () if is("lz4") => Fact::Is(Self::Lz4),
            () if is("snappy") => Fact::Is(Self::Snappy),
            () => Fact::Absent,
        }
    }
}
