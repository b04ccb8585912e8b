//! Cores that stay awake.
//!
//! An idle core of a virtual machine is given back to the host, and the time that a wake-up takes
//! then (5 or 50 µs) is up to the host; it would be most of what is measured. While a request for a
//! latency of 0 µs is held (the kernel's PM QoS), idle cores poll instead, where the kernel has a driver for idle ones.

use std::{
    fs::{self, File},
    io::Write,
};

const DEVICE: &str = "/dev/cpu_dma_latency";
/// The driver of idle cores: `none` knows no states to choose from, and heeds no request.
const IDLE_DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";
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
            Ok(_) => heeded(&fs::read_to_string(IDLE_DRIVER).unwrap_or_default()),
            Err(why) => format!("left to the kernel ({why})"),
        }
    }
}

/// Returns what the kernel makes of the request with this driver of idle cores.
fn heeded(driver: &str) -> String {
    match driver.trim() {
        "" | "none" => {
            format!("asked to wake within {LATENCY} µs, but no driver of idle cores heeds it")
        }
        driver => format!("asked to wake within {LATENCY} µs ({driver}: they poll)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_heeds_the_request_is_said() {
        assert_eq!(
            heeded("haltpoll\n"),
            "asked to wake within 0 µs (haltpoll: they poll)"
        );
        let nobody = "asked to wake within 0 µs, but no driver of idle cores heeds it";
        assert_eq!([heeded("none\n"), heeded("")], [nobody, nobody]);
    }

    #[test]
    fn a_refusal_is_said() {
        let refused = Awake(Err("no such device".into()));
        assert_eq!(refused.described(), "left to the kernel (no such device)");
    }
}
