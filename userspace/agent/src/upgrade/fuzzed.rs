//! Any bytes as messages between an agent that runs and one that takes over.

use super::{Message, predecessor::wanted};
use crate::marks;

/// A message means the same when it is said again, and a mark in it can be put into force.
pub fn handover(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Message>(data) else {
        return;
    };
    let text = serde_json::to_string(&message).unwrap_or_default();
    let again = serde_json::from_str::<Message>(&text);
    let again = again.map(|again| serde_json::to_string(&again).unwrap_or_default());
    assert_eq!(again.ok(), Some(text));
    if let Message::Mark {
        target,
        action,
        lasts_s,
    } = &message
        && let Ok(wanted) = wanted(target, action, *lasts_s)
    {
        marks::fuzzed::holds(&wanted);
    }
}

/// The next agent understands what this one says of a mark.
pub(crate) fn handed_over(message: &Message) {
    let Message::Mark {
        target,
        action,
        lasts_s,
    } = message
    else {
        return;
    };
    assert!(wanted(target, action, *lasts_s).is_ok(), "{message:?}");
}
