//! The description of a run: the source, the host, and the versions.

use std::{collections::BTreeMap, fs, process::Command};

use anyhow::{Context, ensure};
use report::schema::{Machine, Source};

use crate::{account::field, server::binary};

/// The lock file that this program was built with.
const LOCK: &str = include_str!("../../../Cargo.lock");

/// Crates whose versions a reader may want to know.
const CRATES: [&str; 2] = ["scylla", "aya"];

/// Describes the checkout in which this is run.
///
/// # Errors
/// There is no checkout, or git is missing.
pub fn source() -> anyhow::Result<Source> {
    Ok(Source {
        commit: said(Command::new("git").args(["rev-parse", "HEAD"]))?,
        dirty: !said(Command::new("git").args(["status", "--porcelain"]))?.is_empty(),
    })
}

/// Describes this host.
///
/// # Errors
/// /proc is not as expected.
pub fn machine() -> anyhow::Result<Machine> {
    let cpus = fs::read_to_string("/proc/cpuinfo")?;
    let memory = fs::read_to_string("/proc/meminfo")?;
    let kib = field(&memory, "MemTotal").and_then(|m| m.split(' ').next()?.parse::<u64>().ok());
    Ok(Machine {
        kernel: first_line("/proc/sys/kernel/osrelease").context("no kernel release")?,
        // ARM's file has no such line.
        cpu: field(&cpus, "model name").unwrap_or("unknown").to_owned(),
        cores: std::thread::available_parallelism()?.get(),
        memory_mib: kib.context("no MemTotal in /proc/meminfo")? / 1024,
        mitigations: mitigations(),
        circumstances: circumstances(&cpus),
    })
}

/// Lists the versions of everything that is used in every experiment.
///
/// # Errors
/// The agent does not report its version.
pub fn versions() -> anyhow::Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::from([(
        "underpass".to_owned(),
        number(
            "underpass",
            &said(Command::new(binary("underpass")?).arg("--version"))?,
        ),
    )]);
    // A host that only measures has no compiler.
    let tools = [
        ("rustc", "--version"),
        ("clang-19", "--version"),
        ("java", "-version"),
    ];
    for (tool, flag) in tools {
        let line = said(Command::new(tool).arg(flag)).ok();
        let line = line.and_then(|text| Some(text.lines().next()?.to_owned()));
        versions.extend(line.map(|line| (tool.to_owned(), number(tool, &line))));
    }
    for name in CRATES {
        let version = of_crate(LOCK, name);
        versions.extend(version.map(|v| (format!("{name} (crate)"), v.to_owned())));
    }
    Ok(versions)
}

/// Returns a tool's version, without the tool's name in front.
fn number(tool: &str, line: &str) -> String {
    let rest = line.strip_prefix(tool).unwrap_or(line);
    rest.trim_start().to_owned()
}

/// Returns the time in UTC (ISO 8601).
///
/// # Errors
/// The program `date` is missing.
pub fn date() -> anyhow::Result<String> {
    said(Command::new("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))
}

/// Lists the kernel's mitigations of the CPU's vulnerabilities; vulnerabilities that do not affect
/// it are left out.
fn mitigations() -> BTreeMap<String, String> {
    let Ok(files) = fs::read_dir("/sys/devices/system/cpu/vulnerabilities") else {
        return BTreeMap::new();
    };
    let each = files.flatten().filter_map(|file| {
        let state = first_line(file.path().to_str()?)?;
        let name = file.file_name().to_string_lossy().into_owned();
        (state != "Not affected").then_some((name, state))
    });
    each.collect()
}

fn circumstances(cpus: &str) -> BTreeMap<String, String> {
    let files = [
        (
            "clock source",
            "/sys/devices/system/clocksource/clocksource0/current_clocksource",
        ),
        (
            "governor",
            "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
        ),
        (
            "idle driver",
            "/sys/devices/system/cpu/cpuidle/current_driver",
        ),
        ("BPF JIT", "/proc/sys/net/core/bpf_jit_enable"),
        ("hypervisor", "/sys/hypervisor/type"),
        ("product", "/sys/class/dmi/id/product_name"),
        (
            "transparent huge pages",
            "/sys/kernel/mm/transparent_hugepage/enabled",
        ),
    ];
    let read = files.map(|(name, file)| Some((name.to_owned(), first_line(file)?)));
    let mut all: BTreeMap<String, String> = read.into_iter().flatten().collect();
    let flags = field(cpus, "flags").unwrap_or_default();
    let is_virtual = flags.split(' ').any(|flag| flag == "hypervisor");
    all.insert("virtual machine".into(), is_virtual.to_string());
    if shares_by_cgroup() {
        let what = "shared by cgroup: generators and agent of our paths have a share of their own";
        all.insert("CPU".into(), what.into());
    }
    all
}

/// Whether the scheduler weighs cgroup v2 folders against each other.
fn shares_by_cgroup() -> bool {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else {
        return false;
    };
    let mut roots = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let folder = words.next()?;
        (words.next()? == "cgroup2").then(|| format!("{folder}/cgroup.subtree_control"))
    });
    let control = roots.find_map(|file| first_line(&file));
    control.is_some_and(|names| names.split(' ').any(|name| name == "cpu"))
}

fn first_line(file: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

fn of_crate<'l>(lock: &'l str, name: &str) -> Option<&'l str> {
    let (_, rest) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    rest.split('"').next()
}

/// Returns the command's output, on whichever of the two streams.
fn said(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output();
    let output = output.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", output.status);
    let stdout = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if stdout.is_empty() {
        return Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    Ok(stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_found() {
        let machine = machine().unwrap();
        assert!(machine.cores > 0 && machine.memory_mib > 0 && !machine.kernel.is_empty());
        assert!(machine.circumstances.contains_key("virtual machine"));
        assert_eq!(date().unwrap().len(), "2025-01-01T00:00:00Z".len());
    }

    #[test]
    fn a_tool_is_named_once() {
        assert_eq!(number("rustc", "rustc 1.95.0 (5980)"), "1.95.0 (5980)");
        assert_eq!(number("java", "openjdk version 17"), "openjdk version 17");
    }

    #[test]
    fn crates_have_versions() {
        for name in CRATES {
            let version = of_crate(LOCK, name).unwrap();
            assert!(version.split('.').count() >= 3, "{name} {version}");
        }
        assert_eq!(of_crate(LOCK, "no-such-crate"), None);
    }
}
