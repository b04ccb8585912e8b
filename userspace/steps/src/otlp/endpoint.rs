//! The address of a collector.

use hyper::Uri;

/// A `HOST:PORT` that takes OTLP over gRPC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    authority: String,
    host: String,
    is_encrypted: bool,
}

impl Endpoint {
    /// Reads a setting.
    ///
    /// # Errors
    /// Says what it should be.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        // A log-in would be in every log.
        let found = match text.contains('@') {
            true => "a log-in, which no collector is sent".to_owned(),
            false => format!("{text:?}"),
        };
        let expected = || {
            format!(
                "endpoint: expected `http://HOST:PORT` or `https://HOST:PORT`, where a collector takes OTLP over gRPC, \
                 such as `http://127.0.0.1:4317`; found {found}"
            )
        };
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let is_encrypted = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(expected()),
        };
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let authority = uri.authority().filter(|authority| {
            let host = authority.host();
            is_bare
                && !host.is_empty()
                && !authority.as_str().contains('@')
                && authority.port_u16().is_some_and(|port| port > 0)
        });
        let authority = authority.ok_or_else(expected)?;
        Ok(Self {
            authority: authority.as_str().to_owned(),
            host: authority.host().to_owned(),
            is_encrypted,
        })
    }

    /// Whether the endpoint is reached by TLS.
    pub(super) fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Returns the name or address; IPv6 in brackets.
    pub(super) fn host(&self) -> &str {
        &self.host
    }

    /// Returns a path's URL, with the scheme.
    pub(super) fn url(&self, path: &str) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority)
    }

    /// Returns `HOST:PORT`.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for (text, expected) in [
            ("http://127.0.0.1:4317", "127.0.0.1:4317"),
            ("http://[::1]:4317/", "[::1]:4317"),
            ("http://collector.monitoring:1", "collector.monitoring:1"),
        ] {
            assert_eq!(Endpoint::parse(text).unwrap().authority(), expected);
        }
        for text in [
            "",
            "127.0.0.1:4317",
            "http://127.0.0.1",
            "http://127.0.0.1:0",
            "http://127.0.0.1:70000",
            "http://:4317",
            "http://127.0.0.1:4317/v1/traces",
            "http://127.0.0.1:4317?a",
            "http://me:hunter2@127.0.0.1:4317",
            "grpc://127.0.0.1:4317",
            "unix:///run/collector.sock",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(
                error.contains("expected `http://HOST:PORT` or `https://HOST:PORT`, where"),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let encrypted = Endpoint::parse("https://[::1]:4317").unwrap();
        assert!(encrypted.is_encrypted());
        assert_eq!(
            (encrypted.host(), &*encrypted.url("/a")),
            ("[::1]", "https://[::1]:4317/a")
        );
    }
}
