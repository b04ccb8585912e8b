//! The sampling: which requests are traced, and the ids of their spans.
//!
//! A client that traces has decided already, and its `traceparent` says so. Of the requests without
//! one, a fraction is traced.

use std::hash::{BuildHasher, RandomState};

use cql::TraceContext;

use crate::otlp::Identity;

/// The number of low bits of the trace's id by which the fraction is taken. They are random, as the
/// standard's flag of that name says: a collector that samples further by them takes a part of what
/// is there.
const RANDOM_BITS: u32 = 56;

/// The flags of a trace's first span. `random`: the lower [`RANDOM_BITS`] of the trace's id are
/// random. `sampled`: the span is recorded.
const ROOT_FLAGS: u32 = 0x03;

/// OTLP's flags that say that the parent is known to be in another process.
const REMOTE_PARENT: u32 = 0x300;

/// A fraction of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    /// The least value, of 2⁵⁶, at which a request is traced.
    least: u64,
}

impl Fraction {
    /// Makes a fraction. None: the number is not from 0 to 1.
    pub(super) fn new(fraction: f64) -> Option<Self> {
        let all = 1_u64 << RANDOM_BITS;
        let least = (1.0 - fraction) * all as f64;
        (0.0..=1.0).contains(&fraction).then_some(Self {
            least: least as u64,
        })
    }
}

/// The sampling of one flow.
pub(super) struct Sampling {
    fraction: Fraction,
    /// Random keys, drawn by the standard library: with them, a counter becomes bits that nobody
    /// can foresee.
    keys: RandomState,
    drawn: u64,
}

impl Sampling {
    pub(super) fn new(fraction: Fraction) -> Self {
        Self {
            fraction,
            keys: RandomState::new(),
            drawn: 0,
        }
    }

    /// Decides whether a request is traced. None: it is not.
    pub(super) fn decide(&mut self, parent: Option<TraceContext>) -> Option<Identity> {
        match parent {
            Some(parent) if !parent.is_sampled() => None,
            Some(parent) => Some(Identity {
                trace_id: parent.trace_id,
                span_id: self.span_id(),
                parent_id: Some(parent.parent_id),
                flags: u32::from(parent.flags) | REMOTE_PARENT,
            }),
            None => {
                let low = self.draw();
                let part = low & ((1 << RANDOM_BITS) - 1);
                if part < self.fraction.least {
                    return None;
                }
                let trace_id = u128::from(self.draw()) << 64 | u128::from(low);
                Some(Identity {
                    trace_id: trace_id.max(1).to_be_bytes(),
                    span_id: self.span_id(),
                    parent_id: None,
                    flags: ROOT_FLAGS,
                })
            }
        }
    }

    /// Draws a span's id. All zeros would be no id.
    fn span_id(&mut self) -> [u8; 8] {
        self.draw().max(1).to_be_bytes()
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        self.keys.hash_one(self.drawn)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn sampling(fraction: f64) -> Sampling {
        Sampling::new(Fraction::new(fraction).unwrap())
    }

    fn parent(flags: u8) -> Option<TraceContext> {
        Some(TraceContext {
            trace_id: [7; 16],
            parent_id: [9; 8],
            flags,
        })
    }

    #[test]
    fn a_fraction_is_from_none_to_all() {
        for wrong in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Fraction::new(wrong), None, "{wrong}");
        }
        assert_eq!(Fraction::new(1.0), Some(Fraction { least: 0 }));
        assert_eq!(Fraction::new(0.0), Some(Fraction { least: 1 << 56 }));
    }

    #[test]
    fn what_begins_a_trace_is_traced_by_the_fraction() {
        let traced = |fraction, times| {
            let mut sampling = sampling(fraction);
            let decided = (0..times).filter(|_| sampling.decide(None).is_some());
            decided.count()
        };
        assert_eq!(traced(0.0, 1_000), 0);
        assert_eq!(traced(1.0, 1_000), 1_000);
        // Ten standard deviations on either side.
        assert!((9_000..11_000).contains(&traced(0.1, 100_000)));
    }

    #[test]
    fn a_parent_decides_whatever_the_fraction() {
        for fraction in [0.0, 0.5, 1.0] {
            let mut sampling = sampling(fraction);
            for flags in [0x00, 0x02, 0xFE] {
                assert_eq!(sampling.decide(parent(flags)), None);
            }
            for flags in [0x01, 0x03] {
                let identity = sampling.decide(parent(flags)).unwrap();
                assert_eq!(identity.trace_id, [7; 16]);
                assert_eq!(identity.parent_id, Some([9; 8]));
                assert_eq!(identity.flags, 0x300 | u32::from(flags));
            }
        }
    }

    #[test]
    fn ids_are_told_apart_over_flows() {
        let flows = (0..50).flat_map(|_| {
            let mut sampling = sampling(1.0);
            let identities = (0..100).map(|_| sampling.decide(None).unwrap());
            identities.collect::<Vec<_>>()
        });
        let identities: Vec<_> = flows.collect();
        let traces: HashSet<_> = identities.iter().map(|i| i.trace_id).collect();
        let spans: HashSet<_> = identities.iter().map(|i| i.span_id).collect();
        assert_eq!((traces.len(), spans.len()), (5_000, 5_000));
        assert!(!traces.contains(&[0; 16]) && !spans.contains(&[0; 8]));
    }
}
