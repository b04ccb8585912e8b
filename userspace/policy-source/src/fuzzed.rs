//! Properties that hold for any bytes from etcd and API servers. Only tests and fuzzers have this module.

use crate::{Fragments, MAX_FRAGMENTS, Status};

pub use crate::{kubernetes::fuzzed::api_server, sharing::fuzzed::sharing};

/// Keys and values of a policy in etcd, each ended by a zero byte: files within their bounds, or none.
pub fn etcd(data: &[u8]) {
    let parts: Vec<&[u8]> = data.split(|byte| *byte == 0).collect();
    let pairs = parts.as_chunks::<2>().0;
    let read = Fragments::of_values(7, pairs.iter().map(|[name, text]| (*name, *text)));
    if let Ok(read) = read {
        assert!(read.files.len() <= MAX_FRAGMENTS);
        assert!(read.files.is_sorted_by_key(|file| file.name.as_str()));
        let kept = serde_json::to_vec(&read).unwrap_or_default();
        let again: Result<Fragments, _> = serde_json::from_slice(&kept);
        assert_eq!(again.ok().as_ref(), Some(&read));
    }
    for part in parts {
        if let Ok(status) = serde_json::from_slice::<Status>(part) {
            let text = serde_json::to_vec(&status).unwrap_or_default();
            let again: Result<Status, _> = serde_json::from_slice(&text);
            assert_eq!(again.ok(), Some(status));
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[
            ("api_server", super::api_server),
            ("etcd", super::etcd),
            ("sharing", super::sharing),
        ])
        .unwrap();
    }
}
