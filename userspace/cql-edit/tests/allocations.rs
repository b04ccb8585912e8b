//! Frames that nobody changes allocate nothing, in the steady state.

#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test program uses a part of it"
)]
mod support;

#[cfg(test)]
#[path = "../../cql/tests/support/counting.rs"]
mod counting;

#[cfg(test)]
mod tests {
    use super::counting::{ALLOCATIONS, Counting};
    use super::support::edit::{Edits, KINDS, Kind, Noted, step};
    use super::support::values::{execute_with, parameters, prepares};
    use super::support::*;
    use cql_edit::Edited;

    #[global_allocator]
    static COUNTING: Counting = Counting;

    /// Allocations of a thousand rounds through an editor after the first few; of requests that are seen, and of
    /// answers that nobody waits for.
    fn edited(kind: Kind) -> usize {
        let version = kind.version;
        let pipeline = [
            "transform = \"consistency\"\nat_most = \"QUORUM\"",
            "transform = \"guard\"\nrefuse = [\"ddl\"]",
            "transform = \"throttle\"\nrate = 1e9",
            "transform = \"throttle\"\nrate = 1e9\nscope = \"fleet\"",
        ];
        let mut flow = Edits::new(kind, pipeline.map(step).to_vec());
        let text =
            "SELECT a FROM ks.t WHERE a = 'a', in which something is the same, the same, the same";
        prepares(&mut flow, text, b"0123456789abcdef");
        let execute = execute_with(
            version,
            b"0123456789abcdef",
            parameters(version, &[], None, None),
        );
        let request = |stream, opcode, body: &[u8]| kind.sent(0, stream, opcode, body);
        let requests = [
            request(1, QUERY, &ask(version, text)),
            request(2, EXECUTE, &execute),
            request(3, BATCH, &batch(version, &[Child::Text(text)], None)),
            request(4, OPTIONS, &[]),
        ]
        .concat();
        let rows = [&[0, 0, 0, 2][..], &[7; 1000]].concat();
        let responses: Vec<u8> = (1..5)
            .flat_map(|stream| kind.sent(0x80, stream, RESULT, &rows))
            .collect();
        let mut before = 0;
        for round in 0..1010 {
            if round == 10 {
                before = ALLOCATIONS.get();
            }
            let untouched = Edited::default();
            let Edits { editor, noted, .. } = &mut flow;
            assert_eq!(editor.requests(round, &requests, noted), untouched);
            assert_eq!(editor.responses(&responses, noted), untouched);
        }
        let allocations = ALLOCATIONS.get() - before;
        assert_eq!(flow.noted, Noted::default());
        allocations
    }

    #[test]
    fn what_nobody_changes_allocates_nothing() {
        for kind in KINDS {
            assert_eq!(edited(kind), 0, "{kind:?}");
        }
    }

    #[test]
    fn the_count_counts() {
        let before = ALLOCATIONS.get();
        drop(std::hint::black_box(Box::new(1)));
        assert_eq!(ALLOCATIONS.get() - before, 1);
    }
}
