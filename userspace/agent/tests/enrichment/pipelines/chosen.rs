//! Choice of a flow's pipeline: by session, by sample, by trigger, by reload.

use std::{
    io::{Read, Write},
    time::Duration,
};

use super::{LOCAL_QUORUM, SELECT, at_level, begin, policy};
use crate::common::{
    eventually,
    frames::{query, void},
    wire::{Conversation, Host, host, set_keyspace},
};

#[test]
fn the_pipeline_is_that_of_the_rule_that_the_session_decides() {
    host(|host| {
        let rules = policy(
            "keyspace = [\"shop\"]",
            "{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }",
        );
        host.policy(&format!(
            "{rules}[[rule]]\nname = \"rest\"\nto = [\":PORT\"]\naction = \"bypass\"\n"
        ));
        for version in [4, 5] {
            for (keyspace, level) in [("shop", LOCAL_QUORUM), ("other", 1)] {
                let mut c = begin(host, version);
                c.client_sends(&query(version, 1, &format!("USE {keyspace}")));
                c.server_sends(&set_keyspace(version, 1, keyspace));
                let sent = c.wrap(&query(version, 2, SELECT));
                for byte in &sent {
                    c.client.write_all(std::slice::from_ref(byte)).unwrap();
                }
                let expected = c.wrap(&at_level(version, 2, level));
                c.server_gets(&expected);
                c.server_sends(&void(version, 2));
                c.ends();
            }
        }
    });
}

/// Why it is on its path; None: it is not the agent's.
fn why(host: &Host<'_>, c: &Conversation) -> Option<String> {
    let client = c.client.local_addr().unwrap().to_string();
    let flows = host.agent.json("/flows").unwrap();
    let mut flows = flows.as_array().unwrap().iter();
    let flow = flows.find(|flow| flow["client"] == client.as_str())?;
    Some(flow["why"].as_str().unwrap().to_owned())
}

/// How many of so many connections come to a pipeline, by what their database gets.
fn changed_of(host: &Host<'_>, flows: usize) -> usize {
    let changed = |_: &usize| {
        let mut c = begin(host, 4);
        c.client.write_all(&query(4, 1, SELECT)).unwrap();
        let mut got = query(4, 1, SELECT);
        c.server.read_exact(&mut got).unwrap();
        c.server_sends(&void(4, 1));
        let changed = got == at_level(4, 1, LOCAL_QUORUM);
        // One that never came to the agent is not among its flows.
        if let Some(why) = why(host, &c) {
            let (of, not) = (
                "says enrich, of its sample; inline, because `consistency` may change, answer, delay or refuse requests; through consistency",
                "not of the sample of rule r",
            );
            assert!(why.contains(if changed { of } else { not }), "{why}");
        }
        c.ends();
        changed
    };
    (0..flows).filter(changed).count()
}

#[test]
fn a_sample_of_a_rules_flows_is_enriched_and_the_others_are_left_alone() {
    const FLOWS: usize = 200;
    let sampled = |conditions: &str| {
        policy(
            &format!("{conditions}\nsample = 0.5"),
            "{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }",
        )
    };
    host(|host| {
        let connections = |outcome: &str| {
            let labels = format!("outcome=\"{outcome}\",rule=\"r\"");
            host.metric("connections", &labels)
        };
        host.policy(&sampled(""));
        let changed = changed_of(host, FLOWS);
        assert_eq!(connections("intercepted"), changed as u64);
        assert_eq!(connections("untouched"), (FLOWS - changed) as u64);
        // Seven standard deviations: once in 10^11 runs.
        assert!(changed.abs_diff(FLOWS / 2) <= 50, "{changed} of {FLOWS}");

        // The agent draws where only it knows whether the rule holds: by the flows' numbers.
        host.policy(&sampled("protocol = [\"v4\"]"));
        let changed = changed_of(host, 40);
        assert!(changed.abs_diff(20) <= 2, "{changed} of 40");
    });
}

#[test]
fn observed_flows_that_are_slow_have_later_ones_enriched_until_they_are_not() {
    const AT_ONCE: i16 = 30;
    const SLOW: Duration = Duration::from_millis(60);
    host(|host| {
        host.policy(
            "[[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"observe\"\n\
             trigger = { p99_ms = 50, for = \"1s\" }\n\
             pipeline = [{ transform = \"consistency\", exactly = \"LOCAL_QUORUM\" }]\n",
        );
        let is_on = || {
            host.agent
                .metric("underpass_triggered{rule=\"r\"}")
                .unwrap()
                == 1.0
        };
        let asks = |c: &mut Conversation, level| {
            c.client.write_all(&query(4, 1, SELECT)).unwrap();
            c.server_gets(&at_level(4, 1, level));
            c.server_sends(&void(4, 1));
        };
        let mut observed = begin(host, 4);
        let mut quick = begin(host, 4);
        asks(&mut quick, 1);
        assert!(!is_on());
        eventually("it is slow", || {
            (0..AT_ONCE).for_each(|stream| observed.client_sends(&query(4, stream, SELECT)));
            std::thread::sleep(SLOW);
            (0..AT_ONCE).for_each(|stream| observed.server_sends(&void(4, stream)));
            is_on()
        });
        let mut enriched = begin(host, 4);
        asks(&mut enriched, LOCAL_QUORUM);
        let expected = "rule r says enrich, because others are slow; through consistency";
        assert_eq!(why(host, &enriched).as_deref(), Some(expected));
        // Those that are observed stay so.
        asks(&mut quick, 1);
        eventually("it is not slow any more", || !is_on());
        eventually("it is let go", || {
            host.flow(&enriched)["action"] == "bypass"
        });
        asks(&mut enriched, 1);
        let mut later = begin(host, 4);
        asks(&mut later, 1);
        for each in [observed, quick, enriched, later] {
            each.ends();
        }
    });
}

#[test]
fn a_reload_changes_what_new_flows_meet() {
    host(|host| {
        let pipeline = |level: &str| {
            policy(
                "",
                &format!("{{ transform = \"consistency\", exactly = \"{level}\" }}"),
            )
        };
        host.policy(&pipeline("LOCAL_QUORUM"));
        let mut old = begin(host, 4);
        host.policy(&pipeline("ALL"));
        let mut new = begin(host, 4);
        for (c, level) in [(&mut old, LOCAL_QUORUM), (&mut new, 5)] {
            c.client.write_all(&query(4, 1, SELECT)).unwrap();
            c.server_gets(&at_level(4, 1, level));
            c.server_sends(&void(4, 1));
        }
        old.ends();
        new.ends();
    });
}
