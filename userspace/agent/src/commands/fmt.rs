//! `underpass fmt`: policy files, laid out.

use std::{
    fs::{self, File, Permissions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context as _, bail};

use crate::config::laid_out;

/// The name of standard input and output.
const STANDARD: &str = "-";

/// Lays out each file, or says which are not.
///
/// # Errors
/// A file is no TOML, or cannot be read or replaced. The files before it have been.
pub fn run(files: &[PathBuf], check: bool) -> anyhow::Result<ExitCode> {
    let mut other = Vec::new();
    for file in files {
        let is_standard = file == Path::new(STANDARD);
        let text = read(file, is_standard)?;
        let out = laid_out(file, &text)?;
        match (check, is_standard) {
            (true, _) if out != text => other.push(file.display().to_string()),
            (false, true) => io::stdout().write_all(out.as_bytes())?,
            (false, false) if out != text => replace(file, &out)?,
            _ => {}
        }
    }
    if !other.is_empty() {
        let files = other.join(" ");
        bail!("not laid out: {files}; `underpass fmt {files}` does it");
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path, is_standard: bool) -> anyhow::Result<String> {
    if !is_standard {
        return fs::read_to_string(file)
            .with_context(|| format!("cannot read {}: name a policy file", file.display()));
    }
    let mut text = String::new();
    io::stdin()
        .read_to_string(&mut text)
        .context("cannot read standard input")?;
    Ok(text)
}

/// Replaces a file by one with the same owner and mode, at once: an agent never reads a half of it.
fn replace(file: &Path, text: &str) -> anyhow::Result<()> {
    // Of a link, what it names is replaced.
    let file = fs::canonicalize(file)?;
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        bail!("{} is no file", file.display());
    };
    // Agents and editors pass over such names.
    let aside = folder.join(format!(
        ".{}.{}",
        name.to_string_lossy(),
        std::process::id()
    ));
    let write = || {
        let was = fs::metadata(&file)?;
        let mut new = File::create_new(&aside)?;
        chown(&aside, Some(was.uid()), Some(was.gid()))?;
        new.set_permissions(Permissions::from_mode(was.mode() & 0o7777))?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&aside, &file)
    };
    let written: io::Result<()> = write();
    written.map_err(|error| {
        // It may not be there.
        let _ = fs::remove_file(&aside);
        anyhow::anyhow!("cannot replace {}: {error}", file.display())
    })
}
