//! `setup`: installs what the machine lacks. It looks for tools and not for packages, so that a
//! tool from elsewhere serves as well.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use nix::unistd::geteuid;

use crate::{
    cassandra,
    generators::{self, Generator},
    kubernetes, peers, programs, python,
    run::{capture, find_program, run as run_command},
};

/// Options of `setup`.
#[derive(clap::Args)]
pub struct Args {
    /// Look only at what one part needs
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
}

/// A part of what chores need.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Part {
    /// Compile the workspace, look at BPF, make network namespaces
    Build,
    /// Run a Cassandra node: Java 17 and Maven
    Cassandra,
    /// Run the driver suites: Python 3.10 or newer, with venv and pip
    Python,
    /// Build and run the driver suites in other languages: Go, Node.js with npm, a JDK with Maven
    Drivers,
    /// Measure: peers, a browser, a profiler
    Bench,
    /// Measure beside proxies that Debian does not have: envoy, shotover
    Peers,
    /// Measure by load generators of others: latte, YCSB
    Generators,
    /// Make packages for arm64 on another processor: a compiler, and an emulator that asks the program for its man pages
    Package,
    /// Try other kernels: an emulator, and what a guest is made of
    Kernels,
    /// Try the Helm chart, and agents at an API server of Kubernetes: a Go compiler, and what it makes in ten minutes
    Kubernetes,
}

/// The needs of the tests and the benchmark, in the order in which a newcomer meets them.
pub const ALL: [Part; 5] = [
    Part::Build,
    Part::Cassandra,
    Part::Python,
    Part::Drivers,
    Part::Bench,
];

/// A Debian package, and the test whether its tool is here, from wherever.
struct Need {
    part: Part,
    package: &'static str,
    is_met: fn() -> bool,
}

const NEEDS: [Need; 42] = [
    Need {
        part: Part::Build,
        package: "clang-19",
        is_met: || env::var_os("UNDERPASS_CLANG").is_some() || find_clang().is_some(),
    },
    Need {
        part: Part::Build,
        package: "libbpf-dev",
        is_met: || Path::new("/usr/include/bpf/bpf_helpers.h").exists(),
    },
    Need {
        part: Part::Build,
        package: "linux-libc-dev",
        is_met: || Path::new("/usr/include/linux/bpf.h").exists() && has_asm_headers(),
    },
    // The agent's allocator is built by it.
    Need {
        part: Part::Build,
        package: "make",
        is_met: || find_program("make").is_some(),
    },
    // Messages of etcd are made of their descriptions.
    Need {
        part: Part::Build,
        package: "protobuf-compiler",
        is_met: || env::var_os("PROTOC").is_some() || find_program("protoc").is_some(),
    },
    Need {
        part: Part::Build,
        package: "libprotobuf-dev",
        is_met: || {
            let described = "/usr/include/google/protobuf/descriptor.proto";
            env::var_os("PROTOC").is_some() || Path::new(described).exists()
        },
    },
    // A fleet's policy is tested with a real cluster.
    Need {
        part: Part::Build,
        package: "etcd-server",
        is_met: || find_program("etcd").is_some(),
    },
    Need {
        part: Part::Build,
        package: "etcd-client",
        is_met: || find_program("etcdctl").is_some(),
    },
    Need {
        part: Part::Build,
        package: "bpftool",
        is_met: || find_program("bpftool").is_some(),
    },
    Need {
        part: Part::Build,
        package: "iproute2",
        is_met: || find_program("ip").is_some(),
    },
    Need {
        part: Part::Build,
        package: "ethtool",
        is_met: || find_program("ethtool").is_some(),
    },
    Need {
        part: Part::Build,
        package: "curl",
        is_met: || find_program("curl").is_some(),
    },
    Need {
        part: Part::Build,
        package: "nftables",
        is_met: || find_program("nft").is_some(),
    },
    // Packages of the agent: their binary, and what systemd says of their unit.
    Need {
        part: Part::Build,
        package: "binutils",
        is_met: || find_program("objcopy").is_some(),
    },
    Need {
        part: Part::Build,
        package: "systemd",
        is_met: || find_program("systemd-analyze").is_some(),
    },
    Need {
        part: Part::Cassandra,
        package: "openjdk-17-jre-headless",
        is_met: || cassandra::find_java().is_some(),
    },
    Need {
        part: Part::Cassandra,
        package: "maven",
        is_met: || find_program("mvn").is_some(),
    },
    Need {
        part: Part::Python,
        package: "python3-venv",
        is_met: has_python,
    },
    Need {
        part: Part::Drivers,
        package: "golang-go",
        is_met: || find_program("go").is_some(),
    },
    Need {
        part: Part::Drivers,
        package: "nodejs",
        is_met: || find_program("node").is_some(),
    },
    Need {
        part: Part::Drivers,
        package: "npm",
        is_met: || find_program("npm").is_some(),
    },
    Need {
        part: Part::Drivers,
        package: "openjdk-17-jdk-headless",
        is_met: || find_program("javac").is_some() && find_program("java").is_some(),
    },
    Need {
        part: Part::Drivers,
        package: "maven",
        is_met: || find_program("mvn").is_some(),
    },
    Need {
        part: Part::Kubernetes,
        package: "golang-go",
        is_met: || find_program("go").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "haproxy",
        is_met: || find_program("haproxy").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "nginx",
        is_met: || find_program("nginx").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "libnginx-mod-stream",
        is_met: || Path::new("/usr/lib/nginx/modules/ngx_stream_module.so").exists(),
    },
    Need {
        part: Part::Bench,
        package: "redis-server",
        is_met: || find_program("redis-server").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "chromium",
        is_met: || find_program("chromium").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "prometheus",
        is_met: || find_program("prometheus").is_some() && find_program("promtool").is_some(),
    },
    Need {
        part: Part::Bench,
        package: "linux-perf",
        is_met: || succeeds(Command::new("perf").arg("--version")),
    },
    Need {
        part: Part::Bench,
        package: "valgrind",
        is_met: || find_program("valgrind").is_some(),
    },
    // latte has TLS from the system's library.
    Need {
        part: Part::Generators,
        package: "libssl-dev",
        is_met: || Path::new("/usr/include/openssl/ssl.h").exists(),
    },
    Need {
        part: Part::Generators,
        package: "pkg-config",
        is_met: || find_program("pkg-config").is_some(),
    },
    Need {
        part: Part::Package,
        package: "gcc-aarch64-linux-gnu",
        is_met: || find_program("aarch64-linux-gnu-gcc").is_some(),
    },
    Need {
        part: Part::Package,
        package: "libc6-dev-arm64-cross",
        is_met: || Path::new("/usr/aarch64-linux-gnu/include/stdio.h").exists(),
    },
    Need {
        part: Part::Package,
        package: "qemu-user",
        is_met: || find_program("qemu-aarch64").is_some(),
    },
    Need {
        part: Part::Kernels,
        package: "qemu-system-x86",
        is_met: || find_program("qemu-system-x86_64").is_some(),
    },
    Need {
        part: Part::Package,
        package: "qemu-system-arm",
        is_met: || find_program("qemu-system-aarch64").is_some(),
    },
    Need {
        part: Part::Kernels,
        package: "busybox-static",
        is_met: || find_program("busybox").is_some(),
    },
    Need {
        part: Part::Kernels,
        package: "cpio",
        is_met: || find_program("cpio").is_some(),
    },
    Need {
        part: Part::Kernels,
        package: "xz-utils",
        is_met: || find_program("xz").is_some(),
    },
];

/// Packages that Debian makes services of, which start when the machine does.
const SERVERS: [&str; 5] = [
    "etcd-server",
    "haproxy",
    "nginx",
    "prometheus",
    "redis-server",
];

/// The command.
pub fn run(args: &Args) -> Result<()> {
    let parts = args.only.map_or_else(|| ALL.to_vec(), |part| vec![part]);
    ensure(&parts)?;
    if parts.contains(&Part::Package) {
        ensure_target(ARM)?;
    }
    if parts.contains(&Part::Cassandra) {
        cassandra::ensure()?;
    }
    if parts.contains(&Part::Python) {
        python::ensure()?;
    }
    if parts.contains(&Part::Drivers) {
        programs::ensure()?;
    }
    if parts.contains(&Part::Peers) {
        ensure(&[Part::Python, Part::Bench])?;
        peers::ensure()?;
    }
    if parts.contains(&Part::Generators) {
        for generator in [Generator::Latte, Generator::Ycsb] {
            ensure(generator.needs())?;
            generators::ensure(generator)?;
        }
    }
    if parts.contains(&Part::Kubernetes) {
        kubernetes::ensure()?;
    }
    eprintln!("setup: nothing is missing");
    Ok(())
}

/// The target that packages are made for on another processor.
const ARM: &str = "aarch64-unknown-linux-gnu";

/// Installs Rust's standard library for a target, where rustup keeps the toolchain.
pub fn ensure_target(target: &str) -> Result<()> {
    let rustc = |what: &str| {
        let said = capture(Command::new("rustc").args(["--print", what, "--target", target]));
        said.map(|said| String::from_utf8_lossy(&said).trim().to_owned())
    };
    if Path::new(&rustc("target-libdir")?).is_dir() {
        return Ok(());
    }
    let mut add = Command::new("rustup");
    run_command(add.args(["target", "add", target])).with_context(|| {
        format!("Rust's library for {target} is missing: install it beside this toolchain")
    })
}

/// Installs what these parts lack; says nothing when that is nothing.
pub fn ensure(parts: &[Part]) -> Result<()> {
    if parts.contains(&Part::Build) {
        note_rust_components();
    }
    let lacking = missing(parts);
    if lacking.is_empty() {
        return Ok(());
    }
    install(&lacking)?;
    let still = missing(parts);
    if !still.is_empty() {
        bail!(
            "installed, but not found: {}; is another version first on PATH?",
            still.join(" ")
        );
    }
    Ok(())
}

/// clang under the names by which ebpf/build.rs looks for it.
pub fn find_clang() -> Option<std::path::PathBuf> {
    ["clang-19", "clang-20", "clang-18", "clang"]
        .into_iter()
        .find_map(find_program)
}

/// The folder of <asm/types.h>, where `clang -target bpf` does not look by itself.
pub fn multiarch_include() -> String {
    format!("/usr/include/{}-linux-gnu", env::consts::ARCH)
}

fn missing(parts: &[Part]) -> Vec<&'static str> {
    NEEDS
        .iter()
        .filter(|need| parts.contains(&need.part) && !(need.is_met)())
        .map(|need| need.package)
        .collect()
}

fn install(packages: &[&str]) -> Result<()> {
    let line = format!(
        "apt-get install -y --no-install-recommends {}",
        packages.join(" ")
    );
    if find_program("apt-get").is_none() {
        bail!(
            "missing (names of Debian's packages): {}",
            packages.join(" ")
        );
    }
    if !geteuid().is_root() {
        bail!("something is missing: run this as root, then try again: {line}");
    }
    eprintln!("installing with apt: {}", packages.join(" "));
    let failed = || format!("apt could not install everything: see above, then try `{line}`");
    run_command(apt().arg("update")).with_context(failed)?;
    run_command(
        apt()
            .args(["install", "-y", "--no-install-recommends"])
            .args(packages),
    )
    .with_context(failed)?;
    let servers = packages.iter().filter(|package| SERVERS.contains(package));
    for server in servers {
        eprintln!("note: {server} was not started; `systemctl disable {server}` keeps it so");
    }
    Ok(())
}

fn apt() -> Command {
    let mut apt = Command::new("apt-get");
    // No questions, and no terminal of its own: it runs beside the terminal's foreground.
    apt.env("DEBIAN_FRONTEND", "noninteractive")
        .args(["-q", "-o", "Dpkg::Use-Pty=0"]);
    // Packages of servers would start them, on their well-known ports: systemctl(1) then starts
    // nothing, and invoke-rc.d(8) takes this for single-user mode, in which none belongs.
    apt.env("SYSTEMD_OFFLINE", "1")
        .env("RUNLEVEL", "1")
        .env("PREVLEVEL", "N");
    apt
}

fn has_asm_headers() -> bool {
    [multiarch_include().as_str(), "/usr/include"]
        .into_iter()
        .any(|dir| Path::new(dir).join("asm/types.h").exists())
}

fn has_python() -> bool {
    succeeds(Command::new("python3").args([
        "-c",
        "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))",
    ]))
}

/// Notes missing components of the Rust toolchain, which apt does not install, and only `ci` and
/// `generate` need.
fn note_rust_components() {
    for (component, probe) in [("rustfmt", "rustfmt"), ("clippy", "cargo-clippy")] {
        if !succeeds(Command::new(probe).arg("--version")) {
            eprintln!(
                "note: {component} is missing, for `cargo xtask ci`: `rustup component add {component}`"
            );
        }
    }
}

fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}
