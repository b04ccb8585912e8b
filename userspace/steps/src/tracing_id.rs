//! Trace ids, as Cassandra writes them.

/// Writes a trace's id as Cassandra writes it, so that it can be looked up in `system_traces`.
pub(crate) fn uuid(id: [u8; 16]) -> String {
    uuid::Uuid::from_bytes(id).to_string()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_trace_is_written_as_cassandra_does() {
        let mut id = [0; 16];
        (0..).zip(&mut id).for_each(|(n, byte)| *byte = n * 0x11);
        assert_eq!(super::uuid(id), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
