//! `generate`: Rust's twin of ebpf/src/abi.h, made from BTF, which shows what the compiler really
//! laid out, and not from the C text.
//!
//! ebpf/src/abi.c --clang--> object --bpftool--> JSON --[`btf`]--> types --[`emit`]--> abi.rs

use std::{
    fs,
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, ensure};

use crate::{
    paths,
    run::{capture, find_program},
    setup::{find_clang, multiarch_include},
};

mod btf;
mod emit;

/// Options of `generate`.
#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail when the committed file is not what would be written
    #[arg(long)]
    check: bool,
}

/// The command.
pub fn run(args: &Args) -> Result<()> {
    if args.check {
        return check();
    }
    let path = committed();
    let text = generated()?;
    if fs::read_to_string(&path).is_ok_and(|have| have == text) {
        eprintln!("{} is up to date", path.display());
        return Ok(());
    }
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

/// Fails when the committed file is not what [`run`] would write.
pub fn check() -> Result<()> {
    let path = committed();
    let have = fs::read_to_string(&path).unwrap_or_default();
    ensure!(
        have == generated()?,
        "{} is not what ebpf/src/abi.h says: run `cargo xtask generate` and commit the result",
        path.display()
    );
    Ok(())
}

fn committed() -> PathBuf {
    paths::root().join("ebpf/src/abi.rs")
}

fn generated() -> Result<String> {
    let json = btf_json().context("cannot read the BTF of ebpf/src/abi.c")?;
    let abi = btf::parse(&json)?;
    rustfmt(&emit::emit(&abi))
}

/// Compiles abi.c and has bpftool print the object's BTF.
fn btf_json() -> Result<Vec<u8>> {
    let object = paths::target().join("abi.bpf.o");
    let clang = std::env::var_os("UNDERPASS_CLANG").map(PathBuf::from);
    let clang = clang
        .or_else(find_clang)
        .context("no clang: run `cargo xtask setup`")?;
    capture(
        Command::new(clang)
            .args([
                "-g",
                "-target",
                "bpf",
                "-Wall",
                "-Werror",
                "-I",
                &multiarch_include(),
                "-c",
            ])
            .arg(paths::root().join("ebpf/src/abi.c"))
            .arg("-o")
            .arg(&object),
    )?;
    let bpftool = find_program("bpftool").context("no bpftool: run `cargo xtask setup`")?;
    capture(
        Command::new(bpftool)
            .args(["-j", "btf", "dump", "file"])
            .arg(&object),
    )
}

/// Formats from standard input to standard output, because a file would need a place.
fn rustfmt(source: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("no rustfmt: run `rustup component add rustfmt`")?;
    let mut stdin = child
        .stdin
        .take()
        .context("rustfmt has no standard input")?;
    // It reads all before it writes, so this cannot block for ever.
    stdin
        .write_all(source.as_bytes())
        .context("rustfmt ended early")?;
    drop(stdin);
    let output = child
        .wait_with_output()
        .context("cannot wait for rustfmt")?;
    ensure!(
        output.status.success(),
        "rustfmt refused the generated file"
    );
    String::from_utf8(output.stdout).context("rustfmt printed no UTF-8")
}
