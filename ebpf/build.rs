//! Compiles the BPF programs with clang into the objects that `lib.rs` embeds.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

/// Newest first; Debian installs only the versioned name.
const CLANGS: [&str; 4] = ["clang-19", "clang-20", "clang-18", "clang"];

/// Each becomes an object of the same name.
const OBJECTS: [&str; 3] = ["underpass.bpf.c", "edge.bpf.c", "idle.bpf.c"];

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-env-changed=UNDERPASS_CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    for object in OBJECTS {
        let source = Path::new("src").join(object);
        if let Err(reason) = compile(&source, &out.join(object).with_extension("o")) {
            println!("cargo::error={reason}");
        }
    }
}

fn compile(source: &Path, object: &Path) -> Result<(), String> {
    let clang = find_clang().ok_or(
        "no clang for the BPF programs: run `cargo xtask setup`, or `apt-get install clang-19 \
         libbpf-dev linux-libc-dev`, or name one in UNDERPASS_CLANG",
    )?;
    // clang's bpf target does not search the host's multiarch folder for <asm/types.h>.
    let asm = format!("/usr/include/{}-linux-gnu", env::consts::ARCH);
    let target = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default();
    // As libbpf names it.
    let is_x86 = (target == "x86_64").then_some("-D__TARGET_ARCH_x86");
    let output = Command::new(&clang)
        .args(["-g", "-O2", "-target", "bpf", "-mcpu=v3"])
        .args(is_x86)
        .args(["-Wall", "-Wextra", "-Werror", "-I", &asm, "-c"])
        .arg(source)
        .arg("-o")
        .arg(object)
        .output()
        .map_err(|e| format!("cannot run {clang}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    for line in stderr.lines() {
        println!("cargo::warning={line}");
    }
    let hint = if stderr.contains("file not found") {
        " (a header is missing: run `cargo xtask setup`)"
    } else {
        ""
    };
    Err(format!("{clang} refused {}{hint}", source.display()))
}

fn find_clang() -> Option<String> {
    if let Ok(named) = env::var("UNDERPASS_CLANG") {
        return Some(named);
    }
    CLANGS
        .into_iter()
        .find(|clang| {
            Command::new(clang)
                .arg("--version")
                .output()
                .is_ok_and(|o| o.status.success())
        })
        .map(str::to_owned)
}
