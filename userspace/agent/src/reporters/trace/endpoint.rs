//! Where a collector is.

use hyper::Uri;

/// `HOST:PORT`, which takes OTLP over gRPC without TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint(String);

impl Endpoint {
    /// Of a setting.
    ///
    /// # Errors
    /// What it should be.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let expected = || {
            format!(
                "endpoint: expected `http://HOST:PORT`, where a collector takes OTLP over gRPC, such as \
                 `http://127.0.0.1:4317`; found {text:?}"
            )
        };
        let uri: Uri = text.parse().map_err(|_| expected())?;
        if uri.scheme_str() == Some("https") {
            return Err(format!(
                "endpoint: expected `http://HOST:PORT`: spans are sent without TLS. Where that does not do, have a \
                 collector on this host take them and pass them on; found {text:?}"
            ));
        }
        let is_bare = uri.path() == "/" && uri.query().is_none();
        let authority = uri.authority().filter(|authority| {
            let host = authority.host();
            is_bare
                && uri.scheme_str() == Some("http")
                && !host.is_empty()
                && !authority.as_str().contains('@')
                && authority.port_u16().is_some_and(|port| port > 0)
        });
        let authority = authority.ok_or_else(expected)?;
        Ok(Self(authority.as_str().to_owned()))
    }

    /// `HOST:PORT`.
    pub(super) fn authority(&self) -> &str {
        &self.0
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
            "http://me@127.0.0.1:4317",
            "grpc://127.0.0.1:4317",
            "unix:///run/collector.sock",
        ] {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(
                error.contains("expected `http://HOST:PORT`, where"),
                "{error}"
            );
        }
        let error = Endpoint::parse("https://127.0.0.1:4317").unwrap_err();
        assert!(error.contains("without TLS"), "{error}");
    }
}
