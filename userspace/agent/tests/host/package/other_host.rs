//! A host with a file system of its own: this one's, with changes that are nowhere but in memory. Either nothing runs there
//! but what the test starts, or systemd does.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use sandbox::Sandbox;

use crate::common::PATIENCE;

/// Mounts that only this shell and its children see: in `$1/root`. `/run` and the folder of pins are new and empty; what has
/// changed is beneath `/mnt/upper`.
const MOUNT: &str = r#"
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root="$1/root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount --bind "$1" "$root/mnt"
mount -t tmpfs -o mode=755 none "$root/run"
"#;

/// The rest for a host where nothing runs.
const REST: &str = r#"
for shared in proc sys dev tmp; do mount --rbind "/$shared" "$root/$shared"; done
mount -t bpf -o mode=700 none "$root/sys/fs/bpf"
echo mounted
exec cat
"#;

/// The rest for a host of systemd's, as containers have it: no devices, a kernel that it cannot change, and a cgroup that it
/// takes for the root. Units that would look after this machine are left out.
///
/// **Invariant**: nothing of this machine's files can be written from there. systemd empties `/tmp` when it boots.
const BOOT: &str = r#"
mount -t tmpfs -o mode=1777 none "$root/tmp"
mkdir "$root/run/packages"
mount --bind "$2" "$root/run/packages"
mount -o remount,ro,bind "$root/run/packages"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 none "$root/sys/fs/cgroup"
mount -t bpf -o mode=700 none "$root/sys/fs/bpf"
mount -o remount,ro,bind "$root/sys"
mount -t tmpfs -o mode=755 none "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
touch "$root/dev/console"
mount --bind /dev/null "$root/dev/console"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t devpts -o newinstance,ptmxmode=0666 none "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
rm -f "$root/usr/sbin/policy-rc.d"
: > "$root/etc/fstab"
mkdir -p "$root/run/systemd/system"
for unit in systemd-sysctl.service systemd-modules-load.service systemd-remount-fs.service systemd-udevd.service \
    systemd-udev-trigger.service systemd-sysusers.service systemd-tmpfiles-setup-dev.service systemd-random-seed.service \
    systemd-journal-flush.service systemd-update-utmp.service systemd-tmpfiles-clean.timer \
    dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-fs-fuse-connections.mount \
    systemd-tmpfiles-setup.service systemd-binfmt.service proc-sys-fs-binfmt_misc.automount modprobe@.service \
    kmod-static-nodes.service networking.service apparmor.service timers.target; do
    ln -s /dev/null "$root/run/systemd/system/$unit"
done
mkdir "$root/run/old"
cd "$root"
pivot_root . run/old
umount --lazy /run/old
exec env --ignore-environment container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target
"#;

/// A holder in a cgroup, `$1`, of what the other words start: until the end of its own input, which is the test's.
const HOLD: &str = r#"
echo $$ > "$1/cgroup.procs"
shift
"$@" < /dev/null > /dev/null &
echo $!
cat > /dev/null
kill -KILL $!
wait
"#;

/// A boot takes two seconds; this is for a machine under load.
const BOOT_LIMIT: Duration = Duration::from_secs(60);

/// Files of dpkg, man, systemd and its journal, which remember what they have shown.
const OF_OTHERS: [&str; 4] = [
    "/var/lib/dpkg/",
    "/var/log/dpkg.log",
    "/var/cache/man/",
    "/systemd/propagate/",
];

/// See the module. The network is the sandbox's.
pub struct OtherHost<'s> {
    pub sandbox: &'s Sandbox,
    /// Holds the mounts and all processes, until it or the test ends.
    holder: Child,
    /// The words that bring a command there.
    enter: Vec<String>,
    /// The cgroup of all that systemd runs.
    cgroup: Option<PathBuf>,
    /// Where the mounts are, for the time of the holder.
    _folder: tempfile::TempDir,
}

impl<'s> OtherHost<'s> {
    /// A host where nothing runs.
    pub fn new(sandbox: &'s Sandbox) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut holder = Command::new("unshare");
        holder.args(["--mount", "--propagation", "private", "sh", "-c"]);
        holder.arg(MOUNT.to_owned() + REST).arg("sh");
        holder
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        let mut line = String::new();
        let stdout = holder.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        assert_eq!(line, "mounted\n");
        let mounts = format!("--mount=/proc/{}/ns/mnt", holder.id());
        let root = folder.path().join("root").display().to_string();
        Self {
            sandbox,
            holder,
            enter: ["nsenter".into(), mounts, "chroot".into(), root].into(),
            cgroup: None,
            _folder: folder,
        }
    }

    /// A host where systemd runs, which sees the files of a folder in `/run/packages`.
    pub fn booted(sandbox: &'s Sandbox, packages: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let name = format!("underpass-booted-{}", std::process::id());
        let cgroup = sandbox.cgroup.path().with_file_name(name);
        fs::create_dir(&cgroup).unwrap();
        let mut holder = Command::new("sh");
        holder.args(["-c", HOLD, "sh"]).arg(&cgroup);
        holder.args([
            "unshare",
            "--cgroup",
            "--mount",
            "--propagation",
            "private",
            "--uts",
            "--ipc",
        ]);
        holder.args(["--pid", "--fork", "--kill-child=SIGKILL", "sh", "-c"]);
        holder
            .arg(MOUNT.to_owned() + BOOT)
            .arg("sh")
            .arg(folder.path())
            .arg(packages);
        holder.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = sandbox.server(|| holder.spawn()).unwrap().unwrap();
        let mut parent = String::new();
        let stdout = holder.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut parent).unwrap();
        let mut host = Self {
            sandbox,
            holder,
            enter: Vec::new(),
            cgroup: Some(cgroup),
            _folder: folder,
        };
        let deadline = Instant::now() + BOOT_LIMIT;
        while !host.find_up(parent.trim()) {
            assert!(Instant::now() < deadline, "systemd does not get ready");
            thread::sleep(Duration::from_millis(50));
        }
        host
    }

    /// Looks for systemd, the only child of this process, and asks it.
    fn find_up(&mut self, parent: &str) -> bool {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let children = children.unwrap_or_default();
        let Some(init) = children.split_whitespace().next() else {
            return false;
        };
        let target = format!("--target={init}");
        let all = [
            "nsenter", &target, "--mount", "--pid", "--uts", "--ipc", "--cgroup", "--wd=/",
        ];
        self.enter = all.map(str::to_owned).into();
        let said = self.run(&["systemctl", "is-system-running"]);
        ["running\n", "degraded\n"]
            .iter()
            .any(|up| said.stdout == up.as_bytes())
    }

    /// A command that runs there, once it is started in the sandbox's network.
    pub fn command(&self, words: &[&str]) -> Command {
        let (first, rest) = self.enter.split_first().unwrap();
        let mut command = Command::new(first);
        command.args(rest).args(words).stdin(Stdio::null());
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

    /// Installs, removes or purges: what dpkg says.
    pub fn dpkg(&self, action: &str, what: &str) -> String {
        self.succeeds(&["dpkg", "--force-unsafe-io", "--no-triggers", action, what])
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
        let find = [
            "find",
            "/mnt/upper",
            "/run",
            "/sys/fs/bpf",
            "-xdev",
            "-path",
            "*underpass*",
            "-printf",
            "/%P\n",
        ];
        let found = self.succeeds(&find);
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
        // It waits for the end of its input, and takes mounts and processes along.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
        let Some(cgroup) = &self.cgroup else {
            return;
        };
        // The kernel takes a moment to bury processes.
        let deadline = Instant::now() + PATIENCE;
        while cgroup.exists() && Instant::now() < deadline {
            let mut find = Command::new("find");
            find.arg(cgroup)
                .args(["-depth", "-type", "d", "-exec", "rmdir", "{}", ";"]);
            let _ = find.stderr(Stdio::null()).status();
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A path as dpkg takes it.
pub fn shown(path: &Path) -> &str {
    path.to_str().unwrap()
}
