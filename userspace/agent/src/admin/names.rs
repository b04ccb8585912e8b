//! By which names the admin interface may be asked.
//!
//! A web page can have its own name resolve to this host, so that a browser here asks the agent and gives the page the
//! answer. The browser sends that name as `Host`; it is none of this host's. By `ssh -L` a browser may also come to the
//! socket, where programs send whatever name they like: one without a dot is no web page's.

use std::{net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, Uri, header};

/// The door by which a request came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    BySocket,
    ByTcp,
}

/// The names of this host.
#[derive(Clone, Debug)]
pub(super) struct Names {
    known: Arc<[String]>,
    came: Came,
}

impl Names {
    /// The names in the configuration, and this host's own.
    pub(super) fn new(configured: &[String], came: Came) -> Self {
        let own = dataplane::host::hostname().to_ascii_lowercase();
        let short = own.split('.').next().unwrap_or_default().to_owned();
        let own = [own, short].into_iter().filter(|name| !name.is_empty());
        let named = configured.iter().cloned().chain(own);
        Self {
            known: named.chain(["localhost".to_owned()]).collect(),
            came,
        }
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
        let is_a_word = self.came == Came::BySocket && !name.contains('.');
        literal.parse::<IpAddr>().is_ok() || is_a_word || self.known.contains(&name)
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

    fn names(known: &[&str], came: Came) -> Names {
        let known = known.iter().map(|name| (*name).to_owned()).collect();
        Names { known, came }
    }

    fn are_asked(host: &str, came: Came) -> bool {
        let names = names(&["db1.example.org", "localhost"], came);
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
            assert!(
                are_asked(host, Came::ByTcp) && are_asked(host, Came::BySocket),
                "{host}"
            );
        }
        assert!(names(&[], Came::ByTcp).are_asked(&Uri::from_static("/"), &HeaderMap::new()));
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
            assert!(!are_asked(host, Came::ByTcp), "{host}");
            assert!(
                !host.contains('.') || !are_asked(host, Came::BySocket),
                "{host}"
            );
        }
        // A program that asks by the socket may call it what it likes.
        assert!(are_asked("underpass", Came::BySocket) && !are_asked("underpass", Came::ByTcp));
        let names = names(&["localhost"], Came::BySocket);
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
        let known = Names::new(&["a".into()], Came::ByTcp).known;
        assert!(known.contains(&"a".to_owned()) && known.contains(&"localhost".to_owned()));
        assert!(known.len() >= 4);
    }
}
