//! The Node.js driver, which has neither v5 nor compression.

use super::program::Program;

const NODE: Program = Program {
    name: "node",
    variable: "UNDERPASS_NODE_SUITE",
    prepares: &[
        ("types", 3),
        ("prepared", 2),
        ("altered", 2),
        // Of its batches each text, too.
        ("batched", 11),
        ("counted", 1),
        ("conditional", 1),
        ("paged", 2),
        ("large", 1),
        ("per_request", 1),
        ("used", 1),
    ],
    // It is refused.
    besides: &[("erring", "select", 1)],
};

#[test]
fn v4_directly() {
    NODE.directly("node::v4_directly", 4, "none");
}

#[test]
fn v4_past_tcp_through_a_pipeline() {
    NODE.past_tcp_through_a_pipeline("node::v4_past_tcp_through_a_pipeline", 4);
}

#[test]
fn v4_found_running() {
    NODE.adopted("node::v4_found_running", 4);
}

#[test]
fn v4_is_told_of_copies() {
    NODE.told_of_copies("node::v4_is_told_of_copies", 4, "none");
}
