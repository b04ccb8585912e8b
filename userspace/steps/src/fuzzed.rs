//! Properties that hold for any bytes from those whom steps ask. Only tests and fuzzers have this module.

pub use crate::{cache::fuzzed::resp, otlp::fuzzed::collector, protect::fuzzed::keys};

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[
            ("collector", super::collector),
            ("keys", super::keys),
            ("resp", super::resp),
        ])
        .unwrap();
    }
}
