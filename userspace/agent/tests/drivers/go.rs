//! gocql, which prepares all that is not a definition.

use super::program::Program;

const GO: Program = Program {
    name: "go",
    variable: "UNDERPASS_GO_SUITE",
    prepares: &[
        ("types", 3),
        ("simple", 6),
        ("prepared", 2),
        ("altered", 4),
        ("batched", 2),
        ("counted", 2),
        ("conditional", 1),
        ("paged", 2),
        ("large", 2),
        ("traced", 2),
        // It is refused, and nothing is executed.
        ("erring", 1),
        ("per_request", 2),
        ("used", 2),
    ],
    besides: &[],
};

#[test]
fn v5_directly() {
    GO.directly("go::v5_directly", 5, "none");
}

#[test]
fn v4_through_a_pipeline() {
    GO.through_a_pipeline("go::v4_through_a_pipeline", 4, "none");
}

#[test]
fn v4_in_lz4_through_a_pipeline() {
    GO.through_a_pipeline("go::v4_in_lz4_through_a_pipeline", 4, "lz4");
}

#[test]
fn v4_in_snappy_through_a_pipeline() {
    GO.through_a_pipeline("go::v4_in_snappy_through_a_pipeline", 4, "snappy");
}

#[test]
fn v5_past_tcp_through_a_pipeline() {
    GO.past_tcp_through_a_pipeline("go::v5_past_tcp_through_a_pipeline", 5);
}

/// v5 has no other compression.
#[test]
fn v5_in_lz4_through_a_pipeline() {
    GO.through_a_pipeline("go::v5_in_lz4_through_a_pipeline", 5, "lz4");
}

#[test]
fn v5_found_running() {
    GO.adopted("go::v5_found_running", 5);
}

#[test]
fn v4_is_told_of_copies() {
    GO.told_of_copies("go::v4_is_told_of_copies", 4, "none");
}

#[test]
fn v5_in_lz4_is_told_of_copies() {
    GO.told_of_copies("go::v5_in_lz4_is_told_of_copies", 5, "lz4");
}
