//! What passes through the decoder, and what it makes of it. One program: what counts allocations has one of its own.

#[cfg(test)]
mod conversations;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod details;
#[cfg(test)]
mod fingerprints;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod handshake;
#[cfg(test)]
mod places;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test program uses a part of it"
)]
mod support;
#[cfg(test)]
mod verdicts;
