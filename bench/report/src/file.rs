//! Result files: read with errors that say what to do, written so that no reader ever sees half
//! of one.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, bail, ensure};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde::Serialize;
use serde_json::{
    Value,
    ser::{Formatter, PrettyFormatter, Serializer},
};

use crate::schema::{Run, SCHEMA};

/// The command that makes a new file.
const HOW: &str = "run `cargo xtask bench run`";

/// Below this depth a file is indented; a round is the first thing that is not, so that each has
/// a line: run, experiments, experiment, series, one of them, rounds.
const INDENTED: usize = 6;

/// The first bytes of what gzip has written.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads a run, which may be compressed.
///
/// # Errors
/// The file is missing, not JSON, not a result file, or of another schema.
pub fn read(file: &Path) -> anyhow::Result<Run> {
    let name = file.display();
    let bytes = match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            bail!("there is no {name}: {HOW}");
        }
        other => other.with_context(|| format!("cannot read {name}"))?,
    };
    let mut text = String::new();
    let unpacked = match bytes.starts_with(&GZIP) {
        true => GzDecoder::new(&*bytes).read_to_string(&mut text),
        false => (&*bytes).read_to_string(&mut text),
    };
    unpacked.with_context(|| format!("cannot read {name}"))?;
    parse(&text).with_context(|| format!("{name} cannot be used"))
}

fn parse(text: &str) -> anyhow::Result<Run> {
    let value: Value = serde_json::from_str(text).context("it is not JSON")?;
    let schema = value.get("schema").and_then(Value::as_u64);
    let schema = schema.context("it is JSON, but not a result file: it has no schema version")?;
    ensure!(
        schema == u64::from(SCHEMA),
        "it is of schema {schema}, and this program reads {SCHEMA}: {HOW}"
    );
    serde_json::from_str(text).context("it is not what its schema version says")
}

/// Writes a run: beside its place first, then renamed. With a name that ends in `.gz` it is compressed.
///
/// # Errors
/// A figure is not a number, or the file cannot be written.
pub fn write(run: &Run, file: &Path) -> anyhow::Result<()> {
    let text = serialized(run)?;
    // JSON has no NaN: it would be null, and nobody could read the file any more.
    parse(&text).context("a figure of the run is not a number")?;
    let bytes = match file.extension() {
        Some(end) if end == "gz" => {
            let mut packed = GzEncoder::new(Vec::new(), Compression::best());
            packed.write_all(text.as_bytes())?;
            packed.finish()?
        }
        _ => text.into_bytes(),
    };
    let aside = beside(file);
    let written = fs::write(&aside, bytes).and_then(|()| fs::rename(&aside, file));
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written.with_context(|| format!("cannot write {}", file.display()))
}

/// The text of a result file.
///
/// # Errors
/// None in practice: every part of a run has a form in JSON.
pub fn serialized(run: &Run) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut bytes, Lines::default());
    run.serialize(&mut serializer).context("a run as JSON")?;
    bytes.push(b'\n');
    String::from_utf8(bytes).context("JSON is UTF-8")
}

fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", process::id()));
    file.with_file_name(name)
}

/// Indented down to [`INDENTED`], on one line below.
#[derive(Default)]
struct Lines {
    pretty: PrettyFormatter<'static>,
    depth: usize,
}

impl Lines {
    fn is_indented(&self) -> bool {
        self.depth <= INDENTED
    }
}

impl Formatter for Lines {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        match self.is_indented() {
            true => self.pretty.begin_array(writer),
            false => writer.write_all(b"["),
        }
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        let indented = self.is_indented();
        self.depth -= 1;
        match indented {
            true => self.pretty.end_array(writer),
            false => writer.write_all(b"]"),
        }
    }

    fn begin_array_value<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.is_indented(), first) {
            (true, _) => self.pretty.begin_array_value(writer, first),
            (false, true) => Ok(()),
            (false, false) => writer.write_all(b","),
        }
    }

    fn end_array_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.is_indented() {
            true => self.pretty.end_array_value(writer),
            false => Ok(()),
        }
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth += 1;
        match self.is_indented() {
            true => self.pretty.begin_object(writer),
            false => writer.write_all(b"{"),
        }
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        let indented = self.is_indented();
        self.depth -= 1;
        match indented {
            true => self.pretty.end_object(writer),
            false => writer.write_all(b"}"),
        }
    }

    fn begin_object_key<W: io::Write + ?Sized>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        match (self.is_indented(), first) {
            (true, _) => self.pretty.begin_object_key(writer, first),
            (false, true) => Ok(()),
            (false, false) => writer.write_all(b", "),
        }
    }

    fn begin_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }

    fn end_object_value<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.is_indented() {
            true => self.pretty.end_object_value(writer),
            false => Ok(()),
        }
    }
}
