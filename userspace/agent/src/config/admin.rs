//! Where the admin interface can be reached on TCP, and by which names.

use std::net::SocketAddr;

use toml::Spanned;

use super::{
    bounds::{MAX_ADMIN_HOSTS, USUAL_ADMIN, USUAL_METRICS},
    error::Flaw,
    value::expected,
};

/// The longest name that DNS has.
const MAX_HOST_BYTES: usize = 253;

/// Reads `agent.admin`. Warns of an address that other hosts can reach.
pub(super) fn address(
    text: Option<&Spanned<String>>,
    warnings: &mut Vec<String>,
) -> Result<Option<SocketAddr>, Flaw> {
    let Some(address) = of("agent.admin", text, USUAL_ADMIN)? else {
        return Ok(None);
    };
    let ip = address.ip().to_canonical();
    if ip.is_unspecified() {
        warnings.push(format!(
            "agent.admin = \"{address}\" listens on every interface: whoever reaches one of them can read all flows and \
             statements; name one address, or use `admin_socket` alone"
        ));
    } else if !ip.is_loopback() {
        warnings.push(format!(
            "agent.admin = \"{address}\" can be reached from other hosts: whoever can connect can read all flows and \
             statements"
        ));
    }
    Ok(Some(address))
}

/// Reads `agent.metrics`. There are names of rules, tables and users in it, and no statement.
pub(super) fn metrics(text: Option<&Spanned<String>>) -> Result<Option<SocketAddr>, Flaw> {
    of("agent.metrics", text, USUAL_METRICS)
}

fn of(key: &str, text: Option<&Spanned<String>>, usual: &str) -> Result<Option<SocketAddr>, Flaw> {
    match text.map(|text| (text, text.get_ref().parse())) {
        None => Ok(None),
        Some((_, Ok(address))) => Ok(Some(address)),
        Some((text, Err(_))) => expected(
            key,
            text,
            &format!("an address and port, such as `{usual}`"),
        ),
    }
}

/// Reads `agent.admin_hosts`.
pub(super) fn hosts(names: &[Spanned<String>]) -> Result<Vec<String>, Flaw> {
    if let Some(first_too_many) = names.get(MAX_ADMIN_HOSTS) {
        let most = format!("at most {MAX_ADMIN_HOSTS} names");
        return expected("agent.admin_hosts", first_too_many, &most);
    }
    names.iter().map(host).collect()
}

fn host(name: &Spanned<String>) -> Result<String, Flaw> {
    let text = name.get_ref();
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    match !text.is_empty() && text.len() <= MAX_HOST_BYTES && text.chars().all(legal) {
        true => Ok(text.to_ascii_lowercase()),
        false => expected(
            "agent.admin_hosts",
            name,
            "a host's name without a port, such as `db1.example.org`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::tests::{parse, refusal};

    #[test]
    fn tcp_is_opt_in() {
        let config = parse("").unwrap();
        assert_eq!(config.admin, None);
        assert!(config.warnings.is_empty());
        let config = parse("[agent]\nadmin = \"127.0.0.1:9180\"\nadmin_hosts = [\"DB1\"]").unwrap();
        assert_eq!(config.admin.unwrap().port(), 9180);
        assert_eq!(config.admin_hosts, ["db1"]);
        assert!(config.warnings.is_empty());
    }

    #[test]
    fn an_address_that_others_can_reach_is_warned_of() {
        for (address, word) in [
            ("0.0.0.0:1", "every interface"),
            ("[::]:1", "every interface"),
            ("[::ffff:0.0.0.0]:1", "every interface"),
            ("10.1.2.3:1", "other hosts"),
            ("[2001:db8::1]:1", "other hosts"),
        ] {
            let warnings = parse(&format!("[agent]\nadmin = \"{address}\""))
                .unwrap()
                .warnings;
            assert!(
                warnings.len() == 1 && warnings[0].contains(word),
                "{warnings:?}"
            );
        }
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for name in ["", "a:1", "a b", "*"] {
            let said = refusal(&format!("[agent]\nadmin_hosts = [{name:?}]"));
            assert!(
                said.contains("agent.admin_hosts: expected a host's name"),
                "{said}"
            );
        }
        let many = vec!["\"a\""; 17].join(",");
        assert!(refusal(&format!("[agent]\nadmin_hosts = [{many}]")).contains("at most 16"));
    }
}
