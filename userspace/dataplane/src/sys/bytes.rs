//! The types of `abi.h` as bytes: keys and values of maps, records of rings, and what programs are asked and answer.

use std::{mem::size_of, ptr, slice};

use aya::Pod;
use ebpf::abi;

/// A type from `abi.h`, as a map's key or value.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(crate) struct PodOf<T>(pub(crate) T);

/// Types that are their bytes.
///
/// # Safety
/// The compiler puts no padding in, and no bit pattern is invalid.
pub(crate) unsafe trait PlainBytes: Copy + 'static {}

macro_rules! plain_bytes {
    ($($name:ident),* $(,)?) => {$(
        // SAFETY: repr(C) integers and arrays of them; abi.h makes every padding byte a field, which the generated
        // assertions of offset and size hold it to.
        unsafe impl PlainBytes for abi::$name {}
    )*};
}

plain_bytes! {
    AgentSettings, Quota, Adoption, Policy, Rule, RuleSet, UidKey, GidKey, CgroupKey, NetnsKey,
    Endpoint, Opener, Remembered, Connect, Held, ConnectKey, NetnsAgent, Release, BackendSlots,
    DatabaseKey, IncomingDial, Decisions, Meter, TapOutcome, SpliceSlot, Splice, ShortcutLimits,
    ShortcutEnd, ShortcutCount, TurnCount, NudgeCount, EdgeSettings, EdgePort, EdgeRoot, EdgeBlock,
    EdgeLengths, EdgeBucket, EdgeLine, EdgeRule, EdgeRuleCount, EdgeInterface, EdgeBackend,
    EdgeTurns, EdgeTuple, EdgeFlow, TapRecord, TapBegin, SpliceQuestion, SpliceAnswer, LegQuestion,
    LegAnswer, Unserved, Denial, ShortcutRefusal, TapShare,
}

// SAFETY: what PlainBytes promises.
unsafe impl<T: PlainBytes> Pod for PodOf<T> {}

/// Reads a value from the beginning of these bytes; None where they are fewer than it has.
pub(crate) fn read<T: PlainBytes>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    // SAFETY: as long as the value, any bit pattern is one, and the read does not ask for alignment.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// Reads values one behind another; a last one that is cut off is left out.
pub(crate) fn read_all<T: PlainBytes>(bytes: &[u8]) -> impl Iterator<Item = T> + '_ {
    bytes.chunks_exact(size_of::<T>()).filter_map(read)
}

/// The bytes of a value.
pub(crate) fn of<T: PlainBytes>(value: &T) -> &[u8] {
    // SAFETY: a value is as many bytes as it is long, all of them initialised, and is borrowed for as long as they are.
    unsafe { slice::from_raw_parts(ptr::from_ref(value).cast(), size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_their_bytes_wherever_they_lie() {
        let value = read::<abi::ConnectKey>(&[7; 64]).unwrap();
        let bytes = of(&value).to_vec();
        assert_eq!(bytes.len(), size_of::<abi::ConnectKey>());
        let shifted = [&[1], &bytes[..], &bytes, &[2]].concat();
        assert_eq!(of(&read::<abi::ConnectKey>(&shifted[1..]).unwrap()), bytes);
        assert_eq!(read_all::<abi::ConnectKey>(&shifted[1..]).count(), 2);
        assert!(read::<abi::ConnectKey>(&bytes[1..]).is_none());
    }
}
