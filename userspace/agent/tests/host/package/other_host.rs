//! A host with a file system of its own: this one's, with changes that are nowhere but in memory.

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use sandbox::Sandbox;

/// Mounts that only this shell and its children see. `/run` and the folder of pins are new and empty.
const MOUNT: &str = r#"
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for shared in proc sys dev tmp; do mount --rbind "/$shared" "$1/root/$shared"; done
mount -t tmpfs none "$1/root/run"
mount -t bpf -o mode=700 none "$1/root/sys/fs/bpf"
echo mounted
exec cat
"#;

/// Files of dpkg and man, which remember what they have shown.
const OF_OTHERS: [&str; 3] = ["/var/lib/dpkg/", "/var/log/dpkg.log", "/var/cache/man/"];

/// See the module. The network is the sandbox's.
pub struct OtherHost<'s> {
    pub sandbox: &'s Sandbox,
    folder: tempfile::TempDir,
    /// Holds the mounts, until it or the test ends.
    holder: Child,
}

impl<'s> OtherHost<'s> {
    pub fn new(sandbox: &'s Sandbox) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut holder = Command::new("unshare");
        holder
            .args([
                "--mount",
                "--propagation",
                "private",
                "sh",
                "-c",
                MOUNT,
                "sh",
            ])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let mut line = String::new();
        let stdout = holder.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        Self {
            sandbox,
            folder,
            holder,
        }
    }

    /// A command that runs there, once it is started in the sandbox's network.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("chroot")
            .arg(self.folder.path().join("root"))
            .args(words)
            .stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        let run = || self.command(words).output().unwrap();
        self.sandbox.server(run).unwrap()
    }

    /// Runs a command that has to succeed, and returns what it says.
    pub fn succeeds(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn installs(&self, package: &Path) {
        let package = package.to_str().unwrap();
        self.succeeds(&[
            "dpkg",
            "--force-unsafe-io",
            "--no-triggers",
            "--install",
            package,
        ]);
    }

    pub fn read(&self, file: &str) -> String {
        self.succeeds(&["cat", file])
    }

    /// Writes a file as editors do: another one in its place.
    pub fn write(&self, file: &str, text: &str) {
        let write = "cp --preserve=all \"$1\" \"$1.new\"; printf %s \"$2\" > \"$1.new\"; mv \"$1.new\" \"$1\"";
        self.succeeds(&["sh", "-c", write, "sh", file, text]);
    }

    /// Files, pins and groups of the program that are there, by its name.
    pub fn left(&self) -> Vec<String> {
        let places = ["upper", "root/run", "root/sys/fs/bpf"];
        let mut find = Command::new("nsenter");
        find.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()))
            .arg("find")
            .args(places.map(|place| self.folder.path().join(place)))
            .args(["-path", "*underpass*", "-printf", "/%P\n"]);
        let found = find.output().unwrap();
        assert!(found.status.success(), "{found:?}");
        let found = String::from_utf8(found.stdout).unwrap();
        let files = found
            .lines()
            .filter(|path| !OF_OTHERS.iter().any(|of| path.starts_with(of)));
        let groups = self.succeeds(&["cat", "/etc/group", "/etc/gshadow"]);
        let groups = groups.lines().filter(|line| line.contains("underpass"));
        files.chain(groups).map(str::to_owned).collect()
    }
}

impl Drop for OtherHost<'_> {
    fn drop(&mut self) {
        // Its mounts go with it.
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
