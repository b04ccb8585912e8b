//! A mirror that is asked what copies of packets say: as inline, and what copies do not have is counted and never
//! taken for a difference.

use super::*;

const COMPARES: &str = ", what = [\"reads\", \"writes\"], compare = true, timeout = \"10s\"";

#[test]
fn writes_reach_both_from_copies() {
    writes_reach_both("tap");
}

#[test]
fn what_differs_is_found_by_copies() {
    finds_what_differs("tap");
}

#[test]
fn what_copies_do_not_have_is_counted_and_no_difference() {
    world(|world| {
        let mirror = world.mirror();
        world.rule_by("tap", mirror.addr(), COMPARES);
        let mut client = world.client(4);
        // Its answer is longer than what is copied of one.
        let long = "x".repeat(50_000);
        client.does(&insert(1, &long));
        client.does(&insert(2, &long));
        eventually("both have them", || world.compared("same") == 2);
        let unknown = world.compared("unknown");
        client.does("SELECT v FROM shop.orders WHERE id IN (1, 2)");
        eventually("it is not compared", || {
            world.compared("unknown") == unknown + 1
        });
        // A request of which not all is copied is not mirrored.
        let unseen = "outcome=\"passed\",reason=\"not_copied\",rule=\"r\"";
        let unseen = format!("underpass_pipeline_unseen_total{{{unseen}}}");
        client.does(&insert(3, &"x".repeat(100_000)));
        eventually("it is counted", || {
            world.agent.metric(&unseen).unwrap_or(0.0) == 1.0
        });
        client.inserts(4, "behind");
        eventually("it is mirrored", || world.compared("same") == 3);
        assert!(world.value_at(mirror.addr(), 3).is_none());
        for kind in [
            "mirror_error",
            "database_error",
            "error_code",
            "columns",
            "rows",
            "values",
        ] {
            assert_eq!(world.compared(kind), 0, "{kind}");
        }
    });
}

#[test]
fn what_was_said_before_its_flow_was_read_is_not_guessed() {
    world(|world| {
        let mirror = world.mirror();
        let mut client = world.client(4);
        let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
        client.does("USE shop");
        world.rule_by("tap", mirror.addr(), COMPARES);
        let adopted = "underpass_observed_adopted_total{rule=\"r\"}";
        eventually("it is found", || {
            world.agent.metric(adopted).unwrap_or_default() == 1.0
        });
        let execute = client.execute(&id, &[&1_i32.to_be_bytes(), b"bound"]);
        assert_eq!(client.ask(&execute).0, RESULT);
        eventually("its PREPARE was not seen", || world.fate("unprepared") == 1);
        client.does("INSERT INTO orders (id, v) VALUES (2, 'unqualified')");
        eventually("its USE was not seen", || {
            world.fate("keyspace_unknown") == 1
        });
        // From what is seen on it is as ever.
        let id = client.prepares("INSERT INTO shop.orders (id, v) VALUES (?, ?)");
        let execute = client.execute(&id, &[&3_i32.to_be_bytes(), b"bound"]);
        assert_eq!(client.ask(&execute).0, RESULT);
        client.does("USE shop");
        client.does("INSERT INTO orders (id, v) VALUES (4, 'used')");
        eventually("both are mirrored", || world.compared("same") == 2);
        for (id, there) in [(1, false), (2, false), (3, true), (4, true)] {
            assert_eq!(world.value_at(mirror.addr(), id).is_some(), there, "{id}");
        }
        assert_eq!(world.fate("refused"), 0);
    });
}
