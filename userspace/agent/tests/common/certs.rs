//! Certificates, good and bad, made for one test.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::WebPkiClientVerifier,
};

/// Name in every server certificate here, unless a test says otherwise.
pub const NAME: &str = "db.example";

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cert: Certificate,
}

/// A certificate and its key, PEM.
pub struct Signed {
    pub cert: String,
    pub key: String,
}

impl Authority {
    pub fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(DnType::CommonName, "a test's own");
        let key = KeyPair::generate().unwrap();
        let cert = params.self_signed(&key).unwrap();
        Self {
            issuer: Issuer::new(params, key),
            cert,
        }
    }

    /// The authority's own certificate, PEM.
    pub fn pem(&self) -> String {
        self.cert.pem()
    }

    pub fn signs(&self, names: &[&str]) -> Signed {
        self.signs_as(names, |_| {})
    }

    /// Signs a certificate that has expired.
    pub fn signs_expired(&self, names: &[&str]) -> Signed {
        self.signs_as(names, |params| {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        })
    }

    /// Signs a certificate as it is made of parameters that have been changed.
    pub fn signs_as(&self, names: &[&str], tweak: impl FnOnce(&mut CertificateParams)) -> Signed {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        tweak(&mut params);
        let key = KeyPair::generate().unwrap();
        Signed {
            cert: params.signed_by(&key, &self.issuer).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.cert.der().clone()).unwrap();
        roots
    }

    /// Configuration of a client that trusts this authority, and shows `own`.
    pub fn client(&self, own: Option<&Signed>) -> Arc<ClientConfig> {
        self.client_of(rustls::ALL_VERSIONS, own)
    }

    pub fn client_of(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        own: Option<&Signed>,
    ) -> Arc<ClientConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(self.roots());
        Arc::new(match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let (chain, key) = own.parsed();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        })
    }

    /// Configuration of a server that shows `own`, and wants a certificate that `clients` has
    /// signed.
    pub fn server(own: &Signed, clients: Option<&Self>) -> Arc<ServerConfig> {
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(ca) => {
                let roots = Arc::new(ca.roots());
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let (chain, key) = own.parsed();
        Arc::new(builder.with_single_cert(chain, key).unwrap())
    }
}

impl Signed {
    fn parsed(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.cert.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        (chain.map(Result::unwrap).collect(), key.unwrap())
    }

    /// `NAME.crt`, and `NAME.key` that only its owner reads.
    pub fn write(&self, folder: &Path, name: &str) -> (PathBuf, PathBuf) {
        let cert = file(folder, &format!("{name}.crt"), &self.cert);
        let key = file(folder, &format!("{name}.key"), &self.key);
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        (cert, key)
    }
}

pub fn file(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}
