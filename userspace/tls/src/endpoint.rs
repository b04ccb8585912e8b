//! The address of a service that the agent asks for itself, by HTTP/2.

use http::Uri;

/// A `HOST:PORT`, and whether it is reached by TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    authority: String,
    host: String,
    is_encrypted: bool,
}

/// A kind of service, as errors in its address name it.
#[derive(Clone, Copy, Debug)]
pub struct Service {
    /// The meaning of the address, such as `where clients reach a member of etcd`.
    pub place: &'static str,
    /// A good address.
    pub example: &'static str,
    /// The place of user and password, which do not belong in an address.
    pub login: &'static str,
}

impl Endpoint {
    /// Reads a setting.
    ///
    /// # Errors
    /// Says what it should be. A log-in is not repeated: it would be in every log.
    pub fn parse(text: &str, service: Service) -> Result<Self, String> {
        let found = match text.contains('@') {
            true => format!("a log-in, which {}", service.login),
            false => format!("{text:?}"),
        };
        let expected = || {
            format!(
                "expected `http://HOST:PORT` or `https://HOST:PORT`, {}, such as `{}`; found {found}",
                service.place, service.example
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
            is_bare
                && !authority.host().is_empty()
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

    /// Whether the service is reached by TLS.
    pub fn is_encrypted(&self) -> bool {
        self.is_encrypted
    }

    /// Whether the service is on this host.
    pub fn is_here(&self) -> bool {
        matches!(self.host.as_str(), "127.0.0.1" | "[::1]" | "localhost")
    }

    /// Returns the name or address; IPv6 in brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns `HOST:PORT`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns a path's URL, with the scheme.
    pub fn url(&self, path: &str) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        format!("{scheme}://{}{path}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = Service {
        place: "where a collector takes OTLP over gRPC",
        example: "http://127.0.0.1:4317",
        login: "no collector is sent",
    };

    #[test]
    fn an_endpoint_is_a_host_and_a_port() {
        for (text, expected) in [
            ("http://127.0.0.1:4317", "127.0.0.1:4317"),
            ("http://[::1]:4317/", "[::1]:4317"),
            ("http://collector.monitoring:1", "collector.monitoring:1"),
        ] {
            let read = Endpoint::parse(text, SERVICE).unwrap();
            assert_eq!(read.authority(), expected);
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
            let error = Endpoint::parse(text, SERVICE).unwrap_err();
            assert!(
                error.contains("expected `http://HOST:PORT` or `https://HOST:PORT`, where"),
                "{error}"
            );
            assert!(!error.contains("hunter2"), "{error}");
        }
        let encrypted = Endpoint::parse("https://[::1]:4317", SERVICE).unwrap();
        assert!(encrypted.is_encrypted() && encrypted.is_here());
        assert_eq!(
            (encrypted.host(), &*encrypted.url("/a")),
            ("[::1]", "https://[::1]:4317/a")
        );
    }
}
