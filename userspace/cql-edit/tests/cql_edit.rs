//! Tests of editors and transforms. They are one program; the tests that count allocations have one of
//! their own.

#[cfg(test)]
mod capping;
#[cfg(test)]
mod carrying;
#[cfg(test)]
mod editing;
#[cfg(test)]
mod extensions;
#[cfg(test)]
mod grammar;
#[cfg(test)]
mod guarding;
#[cfg(test)]
mod looking_up;
#[cfg(test)]
mod merging;
#[cfg(test)]
mod no_utf_8;
#[cfg(test)]
mod pacing;
#[cfg(test)]
mod parking;
#[cfg(test)]
mod protecting;
#[cfg(test)]
mod refusing;
#[cfg(test)]
mod resting;
#[cfg(test)]
mod rewriting;
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
mod tagging;
#[cfg(test)]
mod throttling;
#[cfg(test)]
mod transforming;
#[cfg(test)]
mod warning;
