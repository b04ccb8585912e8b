//! The kernel's own address translation, as `nft` sets it up.

use std::{
    io::Write,
    net::SocketAddr,
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use sandbox::{Netns, run_in};

const PROGRAM: &str = "nft";

/// The name in tables.
pub const NAME: &str = "nftables";
/// The path of the bytes, in one line.
pub const ABOUT: &str =
    "a gateway's netfilter rewrites the destination (dnat) and tracks connections";

/// Returns the version that the program reports; or the reason why it cannot be had.
pub fn version() -> Result<String, String> {
    let said = Command::new(PROGRAM).arg("--version").output();
    let said = said.map_err(|_| "not installed: apt-get install nftables".to_owned())?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let version = said
        .split_whitespace()
        .find_map(|word| word.strip_prefix('v'));
    Ok(version.unwrap_or("unknown").to_owned())
}

/// Makes a gateway send connections on. The rules are gone with the namespace.
///
/// # Errors
/// The error has the output of `nft`.
pub fn set(gateway: &Netns, from: SocketAddr, to: SocketAddr) -> anyhow::Result<()> {
    let rules = rules(from, to);
    run_in(Some(gateway), None, || load(&rules))?
}

/// Writes the rules. Answers come back through the gateway anyway, so the source stays.
fn rules(from: SocketAddr, to: SocketAddr) -> String {
    let (ip, port) = (from.ip(), from.port());
    format!(
        "table ip underpass_bench {{\n  chain prerouting {{\n    type nat hook prerouting priority dstnat\n    \
         ip daddr {ip} tcp dport {port} dnat to {to}\n  }}\n}}\n"
    )
}

fn load(rules: &str) -> anyhow::Result<()> {
    let mut nft = Command::new(PROGRAM)
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run nft (Debian's nftables)")?;
    // The pipe's end comes when this is dropped.
    nft.stdin
        .take()
        .context("no stdin")?
        .write_all(rules.as_bytes())?;
    let done = nft.wait_with_output()?;
    let complaint = String::from_utf8_lossy(&done.stderr);
    ensure!(done.status.success(), "nft: {}", complaint.trim());
    Ok(())
}
