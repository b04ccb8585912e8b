//! `limit` of a rule: how many connections one client may have.

use policy::{Action, ClientLimit, LimitPer, SessionConditions};

use super::{
    bounds::{LIMITS_PER, MAX_LIMIT},
    error::Flaw,
    raw::RawRule,
    value::{one_of, whole},
};

/// Checks that the rule can have a limit: it is decided at connect(), on this host, and not refused anyway.
pub(super) fn check(rule: &RawRule, session: &SessionConditions) -> Result<(), Flaw> {
    let Some(limit) = &rule.limit else {
        return Ok(());
    };
    let why = if rule.action.get_ref() == Action::Deny.as_str() {
        "`action = \"deny\"` lets nobody connect"
    } else if !rule.from.is_empty() {
        "with `from` it holds for other hosts, whose connections are not counted"
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
            let config = parse(&rule(&format!("action = \"bypass\"\nlimit = {text}"))).unwrap();
            config.policy.rules[0].limit
        };
        let of = |connections, per| Some(ClientLimit { connections, per });
        assert_eq!(limit("{ connections = 5 }"), of(5, LimitPer::Uid));
        assert_eq!(
            limit("{ connections = 1, per = \"process\" }"),
            of(1, LimitPer::Process)
        );
    }

    #[test]
    fn a_rule_that_cannot_have_one_says_why() {
        for (rest, why) in [
            ("action = \"deny\"", "lets nobody connect"),
            (
                "action = \"bypass\"\nfrom = [\"10.0.0.0/8\"]",
                "other hosts",
            ),
            (
                "action = \"bypass\"\nuser = [\"a\"]",
                "not known at connect()",
            ),
        ] {
            let said = refusal(&rule(&format!("{rest}\nlimit = {{ connections = 5 }}")));
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
