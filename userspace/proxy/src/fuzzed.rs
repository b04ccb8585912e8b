//! Properties that hold for any bytes from other processes of this program. Only tests and fuzzers have this module.

pub use crate::keeper::fuzzed::keeper;

#[cfg(test)]
mod tests {
    #[test]
    fn what_must_hold_holds_for_every_input() {
        corpus::hold(&[("keeper", super::keeper)]).unwrap();
    }
}
