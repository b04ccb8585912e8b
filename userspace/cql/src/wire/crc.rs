//! The two checksums of a v5 segment (`native_protocol_v5.spec` §2.1).

/// CRC-24 of a segment's header bytes: polynomial 0x1974F0B, initial value 0x875060, most
/// significant bit first, nothing reflected. Bit by bit: three bytes do not earn a table.
pub(crate) fn crc24(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x197_4F0B;
    bytes.iter().fold(0x87_5060, |crc, byte| {
        (0..8).fold(crc ^ (u32::from(*byte) << 16), |crc, _| {
            let shifted = crc << 1;
            shifted ^ (POLYNOMIAL & ((shifted >> 24) & 1).wrapping_neg())
        })
    })
}

/// CRC-32 (IEEE) of a segment's payload. Cassandra feeds FA 2D 55 CA first, which the
/// specification does not say; `SEEDED` is the checksum of those four bytes.
pub(crate) fn crc32(payload: &[u8]) -> u32 {
    const SEEDED: u32 = 0x4477_7ED3;
    let mut hasher = crc32fast::Hasher::new_with_initial(SEEDED);
    hasher.update(payload);
    hasher.finalize()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_cassandra_protocol(bytes: Vec<u8>) {
            prop_assert_eq!(super::crc24(&bytes) as i32, cassandra_protocol::crc::crc24(&bytes));
            prop_assert_eq!(super::crc32(&bytes), cassandra_protocol::crc::crc32(&bytes));
        }
    }
}
