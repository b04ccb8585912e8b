//! The reasons why TLS fails.

use rustls::{AlertDescription, CertificateError, Error};

use super::Side;

/// The reason of a failure: the label in `underpass_tls_handshakes_failed_total`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The handshake took too long.
    Deadline,
    /// The connection ended.
    Ended,
    /// The connection failed.
    Connection,
    /// The client did not encrypt.
    Plain,
    /// No certificate was shown.
    NoCertificate,
    /// The certificate is not valid any more, or not yet.
    Expired,
    /// The certificate is signed by an unknown authority.
    UnknownIssuer,
    /// The certificate has another name.
    WrongName,
    /// The certificate is bad in another way.
    BadCertificate,
    /// No version or cipher is common to both.
    Incompatible,
    /// An alert has come from the peer.
    Alert,
    /// The bytes that came are no TLS, or violate it.
    Malformed,
}

impl Failure {
    /// All reasons.
    pub const ALL: [Self; 12] = [
        Self::Deadline,
        Self::Ended,
        Self::Connection,
        Self::Plain,
        Self::NoCertificate,
        Self::Expired,
        Self::UnknownIssuer,
        Self::WrongName,
        Self::BadCertificate,
        Self::Incompatible,
        Self::Alert,
        Self::Malformed,
    ];

    /// Classifies an error of rustls.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::NoCertificatesPresented => Self::NoCertificate,
            Error::InvalidCertificate(why) => match why {
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. } => Self::Expired,
                // An issuer of the same name may have another key.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                    Self::UnknownIssuer
                }
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::WrongName,
                _ => Self::BadCertificate,
            },
            Error::PeerIncompatible(_) | Error::NoApplicationProtocol => Self::Incompatible,
            Error::AlertReceived(AlertDescription::CloseNotify) => Self::Ended,
            Error::AlertReceived(_) => Self::Alert,
            _ => Self::Malformed,
        }
    }

    /// Returns the label in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Ended => "ended",
            Self::Connection => "connection",
            Self::Plain => "plain",
            Self::NoCertificate => "no_certificate",
            Self::Expired => "expired",
            Self::UnknownIssuer => "unknown_issuer",
            Self::WrongName => "wrong_name",
            Self::BadCertificate => "bad_certificate",
            Self::Incompatible => "incompatible",
            Self::Alert => "alert",
            Self::Malformed => "malformed",
        }
    }

    /// Advises what to do about the failure.
    pub fn advice(self, side: Side) -> &'static str {
        match (side, self) {
            (Side::Client, Self::Plain) => {
                "have the client encrypt, or say `required = false` in the rule's `tls`"
            }
            (Side::Client, Self::NoCertificate) => {
                "give the client a certificate, or take `client_ca` out of the rule's `tls`"
            }
            (Side::Client, Self::Expired | Self::BadCertificate | Self::WrongName) => {
                "give the client another certificate"
            }
            (Side::Client, Self::UnknownIssuer) => {
                "give the client a certificate that is signed by one in `client_ca`, or add its issuer \
                 there"
            }
            (Side::Client, Self::Alert) => {
                "the client does not accept the rule's `cert`: have it trust who signed that, for the \
                 name that it connects to"
            }
            (Side::Client, _) => "look at the client's side",
            (Side::Database, Self::Expired) => {
                "give the database a certificate that is valid today"
            }
            (Side::Database, Self::UnknownIssuer) => {
                "have `ca` of the rule's `upstream_tls` hold who signed the database's certificate"
            }
            (Side::Database, Self::WrongName) => {
                "set `server_name` of the rule's `upstream_tls` to a name in the database's certificate"
            }
            (Side::Database, Self::Alert) => {
                "the database does not accept the agent: does it want a certificate (`cert` and `key` \
                 of the rule's `upstream_tls`)?"
            }
            (Side::Database, Self::Malformed | Self::Ended | Self::Deadline) => {
                "does the database speak TLS at that port?"
            }
            (Side::Database, _) => "look at the database's side",
        }
    }
}
