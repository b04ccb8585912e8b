//! Any bytes as messages between the agent and the keeper of its sockets.

use super::protocol::Message;

/// A message means the same when it is said again, and a flow in it can go on.
pub fn keeper(data: &[u8]) {
    let Ok(message) = serde_json::from_slice::<Message>(data) else {
        return;
    };
    let text = serde_json::to_string(&message).unwrap_or_default();
    let again = serde_json::from_str::<Message>(&text);
    let again = again.map(|again| serde_json::to_string(&again).unwrap_or_default());
    assert_eq!(again.ok(), Some(text));
    if let Message::Keep(snapshot) = message {
        let flow = snapshot.carried(7);
        assert_eq!(flow.id.number(), 7);
        assert_eq!(flow.near(), snapshot.near());
        let _ = flow.opened_at();
    }
}
