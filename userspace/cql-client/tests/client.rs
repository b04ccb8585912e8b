//! Conversations with a database that behaves, and with some that do not.

#[cfg(test)]
#[path = "client/hostile.rs"]
mod hostile;
#[cfg(test)]
#[path = "client/node.rs"]
mod node;
#[cfg(test)]
#[path = "client/peer.rs"]
mod peer;
#[cfg(test)]
#[path = "client/played.rs"]
mod played;
