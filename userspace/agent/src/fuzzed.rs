//! Properties that hold for any bytes from operators, runtimes and other agents. Only tests and fuzzers have this module.

pub use crate::{
    admin::fuzzed::admin,
    config::fuzzed::{config, objects},
    containers::fuzzed::containers,
    marks::fuzzed::control,
    upgrade::fuzzed::handover,
};

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[
            ("admin", super::admin),
            ("config", super::config),
            ("containers", super::containers),
            ("control", super::control),
            ("handover", super::handover),
            ("objects", super::objects),
        ])
        .unwrap();
    }
}
