//! The number of instructions in a piece of machine code.

use iced_x86::{Decoder, DecoderOptions};

/// The bits of x86-64's code.
const BITS: u32 = 64;

/// Counts the instructions in `image`, from its first byte to its last. None: this is no x86-64, or
/// a byte of it is no instruction.
pub(super) fn instructions(image: &[u8]) -> Option<u64> {
    if !cfg!(target_arch = "x86_64") {
        return None;
    }
    let mut count = 0;
    for instruction in Decoder::new(BITS, image, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return None;
        }
        count += 1;
    }
    Some(count)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn lengths_differ_and_each_counts_once() {
        let image = [
            0xF3, 0x0F, 0x1E, 0xFA, // endbr64
            0x0F, 0x1F, 0x44, 0x00, 0x00, // nop, five bytes
            0x55, // push rbp
            0x48, 0x89, 0xE5, // mov rbp, rsp
            0xC9, // leave
            0xC3, // ret
        ];
        assert_eq!(instructions(&image), Some(6));
        assert_eq!(instructions(&[]), Some(0));
    }

    #[test]
    fn what_is_no_code_has_no_count() {
        assert_eq!(instructions(&[0x0F, 0xFF]), None);
        assert_eq!(instructions(&[0x48, 0x89]), None, "cut short");
    }
}
