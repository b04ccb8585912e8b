//! Properties that hold for any bytes from other processes of this program. Only tests and fuzzers have this module.

pub use crate::{keeper::fuzzed::keeper, read_on::fuzzed::handed};

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[("handed", super::handed), ("keeper", super::keeper)]).unwrap();
    }
}
