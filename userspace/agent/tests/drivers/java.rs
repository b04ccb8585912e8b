//! The Java driver, in both protocols and all that it compresses with.

use super::program::Program;

const JAVA: Program = Program {
    name: "java",
    variable: "UNDERPASS_JAVA_SUITE",
    prepares: &[
        ("types", 3),
        ("prepared", 2),
        ("altered", 2),
        ("batched", 1),
        ("counted", 1),
        ("conditional", 1),
        ("paged", 1),
        ("large", 1),
        ("per_request", 1),
        ("used", 1),
    ],
    besides: &[
        // It asks for the new column by itself.
        ("altered", "select", 1),
        // It is refused.
        ("erring", "select", 1),
    ],
};

#[test]
fn v5_directly() {
    JAVA.directly("java::v5_directly", 5, "none");
}

#[test]
fn v4_through_a_pipeline() {
    JAVA.through_a_pipeline("java::v4_through_a_pipeline", 4, "none");
}

#[test]
fn v4_in_lz4_through_a_pipeline() {
    JAVA.through_a_pipeline("java::v4_in_lz4_through_a_pipeline", 4, "lz4");
}

#[test]
fn v4_in_snappy_through_a_pipeline() {
    JAVA.through_a_pipeline("java::v4_in_snappy_through_a_pipeline", 4, "snappy");
}

#[test]
fn v5_past_tcp_through_a_pipeline() {
    JAVA.past_tcp_through_a_pipeline("java::v5_past_tcp_through_a_pipeline", 5);
}

/// v5 has no other compression.
#[test]
fn v5_in_lz4_through_a_pipeline() {
    JAVA.through_a_pipeline("java::v5_in_lz4_through_a_pipeline", 5, "lz4");
}

#[test]
fn v4_found_running() {
    JAVA.adopted("java::v4_found_running", 4);
}

#[test]
fn v4_is_told_of_copies() {
    JAVA.told_of_copies("java::v4_is_told_of_copies", 4, "none");
}

#[test]
fn v5_is_told_of_copies() {
    JAVA.told_of_copies("java::v5_is_told_of_copies", 5, "none");
}
