//! `limit` of a rule: how many connections one client may have.

use policy::{Action, ClientLimit, LimitPer, SessionConditions};

use super::{
    bounds::{LIMITS_PER, MAX_LIMIT},
    error::Flaw,
    raw::RawRule,
    value::{one_of, whole},
};

/// Checks that the rule can have a limit: it is decided as the connection begins, by what is known then, and not refused
/// anyway.
pub(super) fn check(rule: &RawRule, session: &SessionConditions) -> Result<(), Flaw> {
    let Some(limit) = &rule.limit else {
        return Ok(());
    };
    let per = limit.get_ref().per.as_ref();
    let by_address = per.is_some_and(|per| per.get_ref() == "address");
    let why = if rule.action.get_ref() == Action::Deny.as_str() {
        "`action = \"deny\"` lets nobody connect"
    } else if by_address && rule.from.is_empty() {
        "`per = \"address\"` counts clients on other hosts; name them, as in `from = [\"0.0.0.0/0\", \"::/0\"]`"
    } else if !by_address && !rule.from.is_empty() {
        "of clients on other hosts only the address is known; write `per = \"address\"`"
    } else if by_address
        && !rule.backends.is_empty()
        && rule.action.get_ref() != Action::Enrich.as_str()
    {
        "the edge forwards connections to `backends` and does not count them; write `action = \"enrich\"`"
    } else if session.named().next().is_some() {
        "a condition on the session is not known at connect(), where is counted"
    } else {
        return Ok(());
    };
    let message = format!("rule.limit: expected a rule that can have one: {why}");
    Err(Flaw::new(limit.span(), message))
}

/// Reads the limit of a rule.
pub(super) fn of(rule: &RawRule) -> Result<Option<ClientLimit>, Flaw> {
    let Some(limit) = rule.limit.as_ref().map(|limit| limit.get_ref()) else {
        return Ok(None);
    };
    let per = limit.per.as_ref();
    Ok(Some(ClientLimit {
        connections: whole("rule.limit.connections", &limit.connections, MAX_LIMIT)? as u32,
        per: per.map_or(Ok(LimitPer::Uid), |per| {
            one_of("rule.limit.per", per, &LIMITS_PER)
        })?,
    }))
}

#[cfg(test)]
mod tests {
    use policy::{ClientLimit, LimitPer};

    use crate::config::tests::{parse, refusal};

    fn rule(rest: &str) -> String {
        format!("[[rule]]\nname = \"r\"\nto = [\":9042\"]\nfail = \"open\"\n{rest}\n")
    }

    #[test]
    fn a_limit_is_read() {
        let limit = |text: &str| {
            let rest = format!("action = \"bypass\"\nlimit = {text}");
            parse(&rule(&rest)).unwrap().policy.rules[0].limit
        };
        let of = |connections, per| Some(ClientLimit { connections, per });
        assert_eq!(limit("{ connections = 5 }"), of(5, LimitPer::Uid));
        assert_eq!(
            limit("{ connections = 1, per = \"process\" }"),
            of(1, LimitPer::Process)
        );
        assert_eq!(
            limit("{ connections = 2, per = \"address\" }\nfrom = [\"10.0.0.0/8\"]"),
            of(2, LimitPer::Address)
        );
    }

    #[test]
    fn a_rule_that_cannot_have_one_says_why() {
        let of_gateway =
            "action = \"bypass\"\nfrom = [\"10.0.0.0/8\"]\nbackends = [\"10.9.0.1:9042\"]";
        for (rest, per, why) in [
            ("action = \"deny\"", "uid", "lets nobody connect"),
            (
                "action = \"bypass\"\nfrom = [\"10.0.0.0/8\"]",
                "process",
                "write `per = \"address\"`",
            ),
            ("action = \"bypass\"", "address", "from = ["),
            (of_gateway, "address", "the edge forwards"),
            (
                "action = \"bypass\"\nuser = [\"a\"]",
                "uid",
                "not known at connect()",
            ),
        ] {
            let limit = format!("limit = {{ connections = 5, per = \"{per}\" }}");
            let text = rule(&format!("{rest}\n{limit}"));
            let said = refusal(&text.replace("\":9042\"", "\"10.0.0.9:9042\""));
            assert!(
                said.contains("rule.limit: expected a rule that can have one")
                    && said.contains(why),
                "{said}"
            );
        }
        let said = refusal(&rule("action = \"bypass\"\nlimit = { connections = 0 }"));
        assert!(
            said.contains("rule.limit.connections: expected a whole number from 1 to 65536"),
            "{said}"
        );
    }
}
