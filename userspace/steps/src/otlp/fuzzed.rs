//! Any bytes as a collector's answer.

use super::messages::rejected;
use crate::grpc;

/// An answer is a whole message, and what it rejects is a number.
pub fn collector(data: &[u8]) {
    let _ = rejected(data);
    if let Some(message) = grpc::unframed(data) {
        assert_eq!(message.len() + 5, data.len());
        let _ = rejected(message);
    }
}
