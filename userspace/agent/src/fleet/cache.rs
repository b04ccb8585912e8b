//! The last good policy of the fleet on disk.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::Path,
};

use policy_source::{Fragments, MAX_FRAGMENT_BYTES, MAX_OBJECTS_BYTES};

use crate::config::{PolicySource, Store};

/// The most bytes of the file: a policy's, each escaped in JSON by six, and names.
fn most(store: &Store) -> u64 {
    let bytes = match store {
        Store::Etcd(_) => MAX_FRAGMENT_BYTES,
        Store::Kubernetes(_) => MAX_OBJECTS_BYTES,
    };
    6 * bytes as u64 + (64 << 10)
}

/// Reads the file, which only root may be able to change. None: there is none yet.
///
/// # Errors
/// It cannot be trusted, or is damaged.
pub fn read(source: &PolicySource) -> Result<Option<Fragments>, String> {
    let path = &source.cache;
    let text = match trusted::read_text(path, most(&source.store)) {
        Ok(text) => text,
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    let damaged = |why: String| format!("{} is damaged: {why}: remove it", path.display());
    let read: Fragments = serde_json::from_str(&text).map_err(|e| damaged(e.to_string()))?;
    // Both stores have names and bounds of their own; what has been in the other one is not taken for a policy of this.
    let read = match &source.store {
        Store::Etcd(_) => Fragments::new(read.revision, read.files),
        Store::Kubernetes(_) => Fragments::of_objects(read.revision, read.files),
    };
    read.map(Some).map_err(|e| damaged(e.to_string()))
}

/// Replaces the file at once: a reader, or a host that loses its power, finds the old one or the new one.
pub(super) fn write(path: &Path, fragments: &Fragments) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    trusted::folder(folder).map_err(io::Error::other)?;
    let aside = path.with_extension("new");
    // What an agent left that was killed in between.
    if let Err(error) = fs::remove_file(&aside)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)?;
    file.write_all(&serde_json::to_vec(fragments)?)?;
    file.sync_all()?;
    fs::rename(&aside, path)?;
    fs::File::open(folder)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use policy_source::Fragment;

    use super::*;
    use crate::config::Config;

    fn parse(text: &str) -> Result<Config, crate::config::ConfigError> {
        Config::parse("/own.toml".as_ref(), text)
    }

    #[test]
    fn what_was_written_is_read_and_damage_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/policy.json");
        let text = format!(
            "[policy]\nsource = \"etcd\"\nendpoints = [\"http://127.0.0.1:1\"]\ncache = {path:?}"
        );
        let source = parse(&text).unwrap().source.unwrap();
        let read = |_: &Path| read(&source);
        assert_eq!(read(&path), Ok(None));
        for text in ["a", "\u{1}\"\\ä"] {
            let file = Fragment {
                name: "a.toml".into(),
                text: text.into(),
            };
            let fragments = Fragments::new(7, vec![file]).unwrap();
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path.with_extension("new"), "half").unwrap();
            write(&path, &fragments).unwrap();
            assert_eq!(read(&path), Ok(Some(fragments)));
        }
        let whole = fs::read(&path).unwrap();
        for end in 0..whole.len() {
            fs::write(&path, &whole[..end]).unwrap();
            // Within a character it is no text.
            let refused = read(&path).unwrap_err();
            assert!(refused.contains(path.to_str().unwrap()), "{refused}");
        }
        fs::write(&path, &whole).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(read(&path).unwrap_err().contains("others can write"));
    }
}
