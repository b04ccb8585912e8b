//! What passes through the decoder and the editors, and what they make of it. One program: what counts
//! allocations has one of its own.

#[cfg(test)]
mod capping;
#[cfg(test)]
mod carrying;
#[cfg(test)]
mod conversations;
#[cfg(test)]
mod cuts;
#[cfg(test)]
mod details;
#[cfg(test)]
mod editing;
#[cfg(test)]
mod fingerprints;
#[cfg(test)]
mod frames;
#[cfg(test)]
mod guarding;
#[cfg(test)]
mod handshake;
#[cfg(test)]
mod looking_up;
#[cfg(test)]
mod merging;
#[cfg(test)]
mod no_utf_8;
#[cfg(test)]
mod parking;
#[cfg(test)]
mod places;
#[cfg(test)]
mod protecting;
#[cfg(test)]
mod rewriting;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tagging;
#[cfg(test)]
mod throttling;
#[cfg(test)]
mod transforming;
#[cfg(test)]
mod verdicts;
