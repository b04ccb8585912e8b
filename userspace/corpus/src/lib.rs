//! Corpora of fuzzers: all inputs of a target in one compressed archive.
//!
//! **Invariant**: an archive is a function of its inputs: they are sorted by name, and no time, user
//! or mode of a file gets in. The same inputs give the same bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use flate2::{Compression, GzBuilder, read::GzDecoder};
use tar::{Archive, Builder, Header};

/// Inputs by name.
pub type Inputs = BTreeMap<String, Vec<u8>>;

/// Reads all inputs of an archive.
///
/// # Errors
/// The file cannot be read, or is no such archive.
pub fn read(archive: &Path) -> io::Result<Inputs> {
    let mut inputs = Inputs::new();
    let mut archive = Archive::new(GzDecoder::new(File::open(archive)?));
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.to_string_lossy().into_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        inputs.insert(name, bytes);
    }
    Ok(inputs)
}

/// A fuzz target: panics when something does not hold for an input.
pub type Check = fn(&[u8]);

/// The committed corpora: an archive for each target.
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus");

/// The ending of an archive's name.
pub const ENDING: &str = ".tar.gz";

/// A corpus with fewer inputs than this lost something.
const FEW: usize = 20;

/// Runs the committed inputs of these targets. The name of each is written to standard error first, so that a test shows which
/// one made it panic.
///
/// # Errors
/// A corpus cannot be read, or has too few inputs.
pub fn hold(targets: &[(&str, Check)]) -> io::Result<()> {
    for (target, check) in targets {
        for (name, input) in committed(target)? {
            eprintln!("{target}: {name}");
            check(&input);
        }
    }
    Ok(())
}

/// Reads the committed inputs of a target.
///
/// # Errors
/// The corpus cannot be read, or has too few inputs.
pub fn committed(target: &str) -> io::Result<Inputs> {
    let archive = Path::new(FOLDER).join(format!("{target}{ENDING}"));
    let inputs = read(&archive)
        .map_err(|e| io::Error::new(e.kind(), format!("{}: {e}", archive.display())))?;
    match inputs.len() < FEW {
        false => Ok(inputs),
        true => {
            let few = format!("{target}: {} inputs, expected {FEW}", inputs.len());
            Err(io::Error::other(few))
        }
    }
}

/// Writes an archive in place of what is there.
///
/// # Errors
/// The file cannot be written.
pub fn write(archive: &Path, inputs: &Inputs) -> io::Result<()> {
    let compressed = GzBuilder::new()
        .mtime(0)
        .write(File::create(archive)?, Compression::best());
    let mut builder = Builder::new(compressed);
    for (name, bytes) in inputs {
        let mut header = Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        builder.append_data(&mut header, name, bytes.as_slice())?;
    }
    builder.into_inner()?.finish()?.sync_all()
}

/// Reads the files of a folder, as a fuzzer leaves them.
///
/// # Errors
/// The folder cannot be read.
pub fn gather(folder: &Path) -> io::Result<Inputs> {
    fs::read_dir(folder)?
        .map(|entry| {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, fs::read(entry.path())?))
        })
        .collect()
}

/// Writes each input to a file of `folder`, as a fuzzer wants them.
///
/// # Errors
/// The folder cannot be written.
pub fn scatter(inputs: &Inputs, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    inputs
        .iter()
        .try_for_each(|(name, bytes)| fs::write(folder.join(name), bytes))
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn what_is_written_is_read_and_the_same_inputs_give_the_same_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let inputs: Inputs = [
            ("b".to_owned(), vec![0; 1000]),
            ("a".to_owned(), Vec::new()),
        ]
        .into();
        let loose = folder.path().join("loose");
        scatter(&inputs, &loose).unwrap();
        let archives = ["one", "two"].map(|name| folder.path().join(name));
        write(&archives[0], &inputs).unwrap();
        write(&archives[1], &gather(&loose).unwrap()).unwrap();
        assert_eq!(read(&archives[0]).unwrap(), inputs);
        let [one, two] = archives.map(|archive| fs::read(archive).unwrap());
        assert_eq!(one, two);
    }

    #[test]
    fn a_cut_archive_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        write(&archive, &[("a".to_owned(), vec![7; 5000])].into()).unwrap();
        let bytes = fs::read(&archive).unwrap();
        fs::write(&archive, &bytes[..bytes.len() / 2]).unwrap();
        assert!(read(&archive).is_err());
    }
}
