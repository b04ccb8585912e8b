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
use serde_json::Value;

use crate::schema::{Run, SCHEMA};

/// The command that makes a new file.
const HOW: &str = "run `cargo xtask bench run`";

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
    let text = serde_json::to_string(run).context("a run as JSON")?;
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

fn beside(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", process::id()));
    file.with_file_name(name)
}
