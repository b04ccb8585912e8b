//! The fence around `cassandra-protocol`: a panic in it costs one conversation.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use crate::NoAnswer;

static PANICS: AtomicU64 = AtomicU64::new(0);

/// The number of answers of databases on which `cassandra-protocol` has panicked since this process started.
pub fn panics() -> u64 {
    PANICS.load(Relaxed)
}

/// Runs code of the crate on bytes of a database. `decode` owns what it changes: nothing half changed is
/// left behind when it panics.
pub(crate) fn guarded<T>(decode: impl FnOnce() -> T) -> Result<T, NoAnswer> {
    catch_unwind(AssertUnwindSafe(decode)).map_err(|_| {
        PANICS.fetch_add(1, Relaxed);
        tracing::warn!(
            "a database's answer has made the decoder panic; the conversation is given up"
        );
        NoAnswer::Panicked
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_counted_and_goes_no_further() {
        let before = panics();
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let decoded: Result<(), _> = guarded(|| panic!("hostile"));
        std::panic::set_hook(hook);
        assert!(matches!(decoded, Err(NoAnswer::Panicked)));
        assert!(panics() > before);
        assert_eq!(guarded(|| 7).unwrap(), 7);
    }
}
