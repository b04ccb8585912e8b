//! By which names the admin interface may be asked on TCP.
//!
//! A web page can have its own name resolve to this host, so that a browser here asks the agent and gives the page the
//! answer. The browser sends that name as `Host`; it is none of this host's.

use std::{fs, net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, Uri, header};

/// The names of this host.
#[derive(Clone, Debug)]
pub(super) struct Names(Arc<[String]>);

impl Names {
    /// The names in the configuration, and this host's own.
    pub(super) fn new(configured: &[String]) -> Self {
        let own = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let own = own.map(|name| name.trim_end().to_ascii_lowercase());
        let own = own.into_iter().flat_map(|name| {
            let short = name.split('.').next().unwrap_or_default().to_owned();
            [name, short]
        });
        let named = configured.iter().cloned().chain(own);
        Self(named.chain(["localhost".to_owned()]).collect())
    }

    /// Whether a request is for this host. One of HTTP/1.0 need not say; browsers always do.
    pub(super) fn are_asked(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(header::HOST).iter();
        let host = match (hosts.next(), hosts.next(), uri.authority()) {
            (None, _, None) => return true,
            (_, Some(_), _) => return false,
            (Some(host), None, None) => host.to_str().unwrap_or("?"),
            (_, None, Some(authority)) => authority.as_str(),
        };
        let name = without_port(host).to_ascii_lowercase();
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        literal.parse::<IpAddr>().is_ok() || self.0.contains(&name)
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) && !name.ends_with(':') => {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn are_asked(host: &str) -> bool {
        let names = Names(["db1.example.org".to_owned(), "localhost".to_owned()].into());
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, host.parse().unwrap());
        names.are_asked(&Uri::from_static("/flows"), &headers)
    }

    #[test]
    fn addresses_and_own_names_are_answered() {
        for host in [
            "127.0.0.1:9180",
            "10.0.0.1",
            "[::1]:9180",
            "[2001:db8::1]",
            "localhost:9180",
            "LOCALHOST",
            "DB1.example.org:9180",
        ] {
            assert!(are_asked(host), "{host}");
        }
        assert!(Names(Arc::default()).are_asked(&Uri::from_static("/"), &HeaderMap::new()));
    }

    #[test]
    fn a_name_that_somebody_made_up_is_not() {
        for host in [
            "rebind.attacker.example:9180",
            "127.0.0.1.attacker.example",
            "localhost.attacker.example",
            "db1.example.org.attacker.example",
            "db1.example.org:x",
            "",
            "::1.attacker.example",
        ] {
            assert!(!are_asked(host), "{host}");
        }
        let names = Names(["localhost".to_owned()].into());
        let mut two = HeaderMap::new();
        two.append(header::HOST, "localhost".parse().unwrap());
        two.append(header::HOST, "attacker.example".parse().unwrap());
        assert!(!names.are_asked(&Uri::from_static("/"), &two));
        let absolute = Uri::from_static("http://attacker.example/flows");
        let mut one = HeaderMap::new();
        one.append(header::HOST, "localhost".parse().unwrap());
        assert!(!names.are_asked(&absolute, &one));
    }

    #[test]
    fn this_hosts_name_is_one() {
        let names = Names::new(&["a".into()]);
        assert!(names.0.contains(&"a".to_owned()) && names.0.contains(&"localhost".to_owned()));
        assert!(names.0.len() >= 4);
    }
}
