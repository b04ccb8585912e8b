//! Results that are measured by hand and committed: their files, and the circumstances in which
//! they came about.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A committed result.
pub fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("bench/results").join(name)
}

/// Names and values of what describes this host and the compiler. A value that cannot be found out is empty.
pub fn circumstances() -> Vec<(String, String)> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim().to_owned())
    });
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let rustc = Command::new("rustc").arg("--version").output();
    let rustc = rustc.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    [
        ("processor", model.unwrap_or_default()),
        ("cores", cores.to_string()),
        ("kernel", kernel.trim().to_owned()),
        ("load when it began", load.trim().to_owned()),
        ("compiler", rustc.unwrap_or_default()),
    ]
    .map(|(what, value)| (what.to_owned(), value))
    .into()
}
