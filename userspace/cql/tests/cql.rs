//! Tests of the decoder. They are one program; the tests that count allocations have one of their own.

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
mod positions;
#[cfg(test)]
mod streams;
#[cfg(test)]
#[allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test program uses a part of it"
)]
mod support;
#[cfg(test)]
mod verdicts;
