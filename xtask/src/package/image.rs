//! A container image of the agent, as an OCI image layout in a tarball
//! (<https://github.com/opencontainers/image-spec>): one layer with the binary and the libraries that it loads, and nothing else.
//!
//! Nothing has to be installed to write it, nor pulled: buildah would want a mount, and gives files the time of the build. The
//! same binary makes the same bytes here.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::{deb, release::Release, tree};
use crate::{
    paths,
    run::{capture, run as run_command},
};

/// The most bytes of an image's files. A node pulls it in a second.
const MAX_BYTES: u64 = 40 << 20;

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Folders that are there for what is mounted, and for what the agent writes.
const FOLDERS: [&str; 7] = [
    "dev",
    "etc/underpass/conf.d",
    "proc",
    "run/underpass",
    "sys",
    "tmp",
    "var/log/underpass",
];

/// Files that the C library and the agent look at: who is who.
const FILES: [(&str, &str); 2] = [
    ("etc/passwd", "root:x:0:0:root:/:/usr/bin/underpass\n"),
    ("etc/group", "root:x:0:\n"),
];

/// A file of the image by its digest.
struct Blob {
    digest: String,
    bytes: u64,
}

/// Builds the image of a stripped binary into `out`, and returns its path.
pub fn build(release: &Release, binary: &Path, work: &Path, out: &Path) -> Result<PathBuf> {
    let (root, layout) = (work.join("root"), work.join("layout"));
    let size = lay(release, &root, binary)?;
    ensure!(
        !release.compressed || size <= MAX_BYTES,
        "the image's files have {size} bytes, and {MAX_BYTES} is the most: what has grown?"
    );
    tree::settle(&root, release.epoch)?;
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let tar = work.join("layer.tar");
    run_command(&mut deb::tar(release, &root, &tar, "s,^\\./,,"))?;
    let diff = digest(&tar)?;
    run_command(
        Command::new("gzip")
            .args(["--no-name", release.level()])
            .arg(&tar),
    )?;
    let layer = keep(&work.join("layer.tar.gz"), &blobs)?;
    let config = write(&config(release, &diff), work, &blobs)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.described(CONFIG),
        "layers": [layer.described(LAYER)],
    });
    let manifest = write(&manifest, work, &blobs)?;
    let name = format!("docker.io/library/underpass:{}", release.version);
    let described = json!({
        "mediaType": MANIFEST,
        "digest": manifest.name(),
        "size": manifest.bytes,
        "platform": {"architecture": release.processor.arch, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": release.version,
        },
    });
    let index = json!({"schemaVersion": 2, "manifests": [described]});
    fs::write(layout.join("index.json"), index.to_string())?;
    fs::write(
        layout.join("oci-layout"),
        r#"{"imageLayoutVersion":"1.0.0"}"#,
    )?;
    tree::settle(&layout, release.epoch)?;
    let image = out.join(format!(
        "underpass-{}-{}.oci.tar",
        release.version, release.processor.arch
    ));
    run_command(&mut deb::tar(release, &layout, &image, "s,^\\./,,"))?;
    Ok(image)
}

/// Lays the image's files beneath `root`, and returns how many bytes they have.
fn lay(release: &Release, root: &Path, binary: &Path) -> Result<u64> {
    for folder in FOLDERS.iter().map(|folder| root.join(folder)) {
        fs::create_dir_all(folder)?;
    }
    tree::install(binary, &root.join("usr/bin/underpass"), tree::OPEN)?;
    for (name, text) in FILES {
        fs::write(root.join(name), text)?;
    }
    let policy = paths::root().join("packaging/underpass.toml");
    tree::install(
        &policy,
        &root.join("etc/underpass/underpass.toml"),
        tree::PLAIN,
    )?;
    for (from, to) in release.processor.libraries(binary)? {
        let to = root.join(to.strip_prefix("/").unwrap_or(&to));
        tree::install(&from, &to, tree::OPEN)?;
    }
    let mut bytes = 0;
    for file in tree::files(root)? {
        bytes += fs::metadata(&file)?.len();
    }
    Ok(bytes)
}

/// Makes the configuration: how the image is run.
fn config(release: &Release, diff: &str) -> Value {
    let created = capture(
        Command::new("date")
            .args(["--utc", "+%Y-%m-%dT%H:%M:%SZ"])
            .arg(format!("--date=@{}", release.epoch)),
    );
    let created = created.map(|said| String::from_utf8_lossy(&said).trim().to_owned());
    json!({
        "created": created.unwrap_or_default(),
        "architecture": release.processor.arch,
        "os": "linux",
        "config": {
            "User": "0:0",
            "Env": ["PATH=/usr/bin"],
            "Entrypoint": ["/usr/bin/underpass"],
            "Cmd": ["run"],
            "StopSignal": "SIGTERM",
            "Labels": {
                "org.opencontainers.image.title": "underpass",
                "org.opencontainers.image.description": "transparent database proxy for Cassandra, by eBPF",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0 OR MIT",
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff}")]},
        "history": [{"created_by": "cargo xtask package"}],
    })
}

impl Blob {
    fn name(&self) -> String {
        format!("sha256:{}", self.digest)
    }

    fn described(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.name(), "size": self.bytes})
    }
}

fn write(value: &Value, work: &Path, blobs: &Path) -> Result<Blob> {
    let file = work.join("blob.json");
    fs::write(&file, value.to_string())?;
    keep(&file, blobs)
}

/// Moves a file among the blobs.
fn keep(file: &Path, blobs: &Path) -> Result<Blob> {
    let digest = digest(file)?;
    let bytes = fs::metadata(file)?.len();
    fs::rename(file, blobs.join(&digest))?;
    Ok(Blob { digest, bytes })
}

fn digest(file: &Path) -> Result<String> {
    let said = capture(Command::new("sha256sum").arg("--binary").arg(file))?;
    let said = String::from_utf8_lossy(&said);
    let (sum, _) = said.split_once(' ').context("sha256sum says no sum")?;
    Ok(sum.to_owned())
}
