//! Certificates and keys: their files are read and checked. An error begins with the key of the
//! rule that names the file, and describes the mistake in one line.

use std::{
    io::Read,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
};

use rustls::{
    Error, RootCertStore,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
};

use trusted::Untrusted;

use super::made::Hears;

/// The largest file. A chain of certificates has a few KiB, a bundle of all public authorities less
/// than half of this.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The mode bits of users who are neither the owner nor in the group.
const OTHERS: u32 = 0o007;

/// Reads a certificate with the chain that has signed it, and its key.
pub(super) fn own(
    hears: &mut Hears,
    cert_key: &str,
    cert: &Path,
    key_key: &str,
    key: &Path,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), String> {
    let chain = certificates(hears, cert_key, cert)?;
    let bytes = read(hears, key_key, key, true)?;
    let secret = PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| match e {
        pem::Error::NoItemsFound => format!(
            "{key_key}: expected a private key in {} (PEM, not encrypted); found none",
            key.display()
        ),
        e => format!("{key_key}: {} cannot be read as PEM: {e}", key.display()),
    })?;
    Ok((chain, secret))
}

/// Explains rustls's error on a certificate and a key.
pub(super) fn mismatch(error: &Error, cert: &Path, key: &Path) -> String {
    match error {
        Error::InconsistentKeys(_) => format!(
            "key: expected {} to be the key of the first certificate in {}; found another's",
            key.display(),
            cert.display()
        ),
        error => format!(
            "cert: {} with {} cannot be used: {error}",
            cert.display(),
            key.display()
        ),
    }
}

/// Reads the authorities whose signature counts.
pub(super) fn roots(hears: &mut Hears, key: &str, path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(hears, key, path)? {
        roots.add(certificate).map_err(|e| {
            format!(
                "{key}: a certificate in {} cannot be used: {e}",
                path.display()
            )
        })?;
    }
    Ok(roots)
}

fn certificates(
    hears: &mut Hears,
    key: &str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read(hears, key, path, false)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match found {
        Ok(found) if found.is_empty() => Err(format!(
            "{key}: expected a certificate in {} (PEM); found none",
            path.display()
        )),
        Ok(found) => Ok(found),
        Err(e) => Err(format!(
            "{key}: {} cannot be read as PEM: {e}",
            path.display()
        )),
    }
}

fn read(hears: &mut Hears, key: &str, path: &Path, is_secret: bool) -> Result<Vec<u8>, String> {
    let said = |e: Untrusted| match e {
        Untrusted::NoFile { path, .. } => {
            format!("{key}: expected a file; {} is none", path.display())
        }
        Untrusted::Io { path, source } => {
            format!("{key}: cannot read {}: {source}", path.display())
        }
        other => format!("{key}: {other}"),
    };
    // Opened without waiting: a pipe would make the agent wait.
    let file = trusted::open(path).map_err(said)?;
    let unreadable = |e| format!("{key}: cannot read {}: {e}", path.display());
    let about = file.metadata().map_err(unreadable)?;
    if about.size() > MAX_FILE_BYTES {
        return Err(format!(
            "{key}: expected at most {MAX_FILE_BYTES} bytes in {}; found {}",
            path.display(),
            about.size()
        ));
    }
    let mode = about.permissions().mode();
    if is_secret && mode & OTHERS != 0 {
        return Err(format!(
            "{key}: expected {} to be closed to others (chmod o= {0}); its mode is {:03o}",
            path.display(),
            mode & 0o777
        ));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    hears.hear(&bytes);
    Ok(bytes)
}
