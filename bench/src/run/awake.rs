//! Cores that stay awake.
//!
//! An idle core of a virtual machine is given back to the host, and the time that a wake-up takes
//! then (5 or 50 µs) is up to the host; it would be most of what is measured. While a request for a
//! latency of 0 µs is held (the kernel's PM QoS), idle cores poll instead.

use std::{fs::File, io::Write};

const DEVICE: &str = "/dev/cpu_dma_latency";
/// The requested latency in µs, as the device wants it.
const LATENCY: i32 = 0;

/// The request, which ends when this is dropped.
pub struct Awake(Result<File, String>);

impl Awake {
    /// Makes the request. A kernel that refuses is no error, but a circumstance.
    pub fn ask() -> Self {
        let asked = File::options()
            .write(true)
            .open(DEVICE)
            .and_then(|mut device| {
                device.write_all(&LATENCY.to_ne_bytes())?;
                Ok(device)
            });
        Self(asked.map_err(|error| format!("{DEVICE}: {error}")))
    }

    /// Describes the outcome for a reader of results.
    pub fn described(&self) -> String {
        match &self.0 {
            Ok(_) => format!("asked to wake within {LATENCY} µs (they poll)"),
            Err(why) => format!("left to the kernel ({why})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_said() {
        let refused = Awake(Err("no such device".into()));
        assert_eq!(refused.described(), "left to the kernel (no such device)");
    }
}
