//! The container image: whether its layout is what runtimes expect, and an agent that has nothing but what is in it.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;

use super::{Application, database, made};
use crate::common::{operator::output, *};

/// The layout of an image, unpacked.
struct Layout(PathBuf);

impl Layout {
    fn of(image: &Path, folder: &Path) -> Self {
        let layout = folder.join("layout");
        unpack(image, &layout);
        Self(layout)
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.0.join(name)).unwrap()).unwrap()
    }

    /// The file that a descriptor names, once its size and digest are what that says.
    fn blob(&self, descriptor: &Value, media_type: &str) -> String {
        assert_eq!(descriptor["mediaType"], media_type);
        let digest = descriptor["digest"].as_str().unwrap();
        let name = format!("blobs/{}", digest.replace(':', "/"));
        let size = fs::metadata(self.0.join(&name)).unwrap().len();
        assert_eq!(descriptor["size"], size);
        assert_eq!(
            sha256(Command::new("sha256sum").arg(self.0.join(&name))),
            digest
        );
        name
    }
}

fn sha256(command: &mut Command) -> String {
    let said = output(command);
    assert!(said.status.success(), "{said:?}");
    let said = String::from_utf8(said.stdout).unwrap();
    format!("sha256:{}", said.split(' ').next().unwrap())
}

fn unpack(tar: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let mut command = Command::new("tar");
    command.arg("--extract").arg("--file").arg(tar);
    let said = output(command.arg("--directory").arg(to));
    assert!(said.status.success(), "{said:?}");
}

/// Checks a layout by the image specification, and unpacks its file system.
fn root_of(layout: &Layout, root: &Path) {
    assert_eq!(layout.json("oci-layout")["imageLayoutVersion"], "1.0.0");
    let index = layout.json("index.json");
    let [manifest] = &index["manifests"].as_array().unwrap()[..] else {
        panic!("{index}");
    };
    let name = &manifest["annotations"]["io.containerd.image.name"];
    assert_eq!(name, "docker.io/library/underpass:0.1.0");
    let manifest = layout.blob(manifest, "application/vnd.oci.image.manifest.v1+json");
    let manifest = layout.json(&manifest);
    assert_eq!(
        (&index["schemaVersion"], &manifest["schemaVersion"]),
        (&2.into(), &2.into())
    );
    let config = layout.blob(
        &manifest["config"],
        "application/vnd.oci.image.config.v1+json",
    );
    let config = layout.json(&config);
    let run = &config["config"];
    assert_eq!(
        (&run["Entrypoint"][0], &run["Cmd"][0]),
        (&"/usr/bin/underpass".into(), &"run".into())
    );
    assert_eq!(run["Labels"]["org.opencontainers.image.version"], "0.1.0");
    assert!(config["created"].as_str().unwrap().ends_with('Z'));
    let [layer] = &manifest["layers"].as_array().unwrap()[..] else {
        panic!("{manifest}");
    };
    let layer = layout.blob(layer, "application/vnd.oci.image.layer.v1.tar+gzip");
    let layer = layout.0.join(layer);
    let mut content = Command::new("sh");
    content.args([
        "-c",
        "gzip --decompress --stdout < \"$1\" | sha256sum",
        "sh",
    ]);
    assert_eq!(config["rootfs"]["diff_ids"][0], sha256(content.arg(&layer)));
    unpack(&layer, root);
}

/// A program of the image, in its file system and with what a runtime mounts, and nothing else.
fn inside(root: &Path, args: &[&str]) -> Command {
    let mounts = "for shared in proc sys dev; do mount --rbind \"/$shared\" \"$1/$shared\" || exit; done; \
                  exec chroot \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", mounts, "sh"])
        .arg(root);
    command.arg("/usr/bin/underpass").args(args).env_clear();
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0.id() as i32), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

#[test]
fn an_image_has_all_that_the_agent_needs() {
    let folder = tempfile::tempdir().unwrap();
    let sandbox = sandbox::Sandbox::new().unwrap();
    let root = folder.path().join("root");
    let image = made(folder.path(), "0.1.0", "image");
    root_of(&Layout::of(&image, folder.path()), &root);

    let run = |args: &[&str]| {
        let said = sandbox.server(|| output(&mut inside(&root, args))).unwrap();
        assert!(said.status.success(), "{args:?}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    assert!(run(&["--version"]).starts_with("underpass "));
    let doctor = run(&["doctor"]);
    assert!(doctor.contains("connect hooks"), "{doctor}");

    let database = database(&sandbox);
    let cgroup = sandbox.cgroup.path();
    let pins = cgroup.file_name().unwrap().to_str().unwrap();
    let policy = format!(
        "[agent]\ncgroup = {cgroup:?}\npins = \"/sys/fs/bpf/image-{pins}\"\nholdout = \"0%\"\n\
         [[rule]]\nname = \"r\"\nto = [\"{}\"]\naction = \"enrich\"\npath = \"inline\"\n\
         pipeline = [{{ transform = \"stats\" }}]\n",
        database.addr()
    );
    fs::write(root.join("etc/underpass/underpass.toml"), policy).unwrap();
    let log = folder.path().join("log");
    let mut command = inside(&root, &["run"]);
    command.stderr(File::create(&log).unwrap());
    let agent = sandbox.server(|| command.spawn()).unwrap().unwrap();
    let agent = Running(agent);
    let said = || fs::read_to_string(&log).unwrap();
    eventually("it is ready", || said().contains("ready cgroup="));
    let mut application = Application::new(&sandbox, database.addr());
    application.selects();
    let flows: Value = serde_json::from_str(&run(&["flows", "--json"])).unwrap();
    assert_eq!(
        (&flows[0]["rule"], &flows[0]["path"]),
        (&"r".into(), &"enrich".into()),
        "{flows}"
    );
    eventually("it is counted", || run(&["statements"]).contains("orders"));
    drop(agent);
    assert!(said().contains("detached"), "{}", said());
}
