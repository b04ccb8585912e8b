//! A real API server of Kubernetes with its etcd, for one test. Nothing else of a cluster runs: what a test puts there stays as it is.

use std::{
    env,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use rcgen::{DnType, ExtendedKeyUsagePurpose, KeyPair};
use sandbox::{Etcd, Netns, run_in};

use crate::common::certs::Authority;

/// A loaded machine takes half a minute.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Where the API server listens, in a network of its own.
pub const SERVER: &str = "https://127.0.0.1:6443";

pub struct Cluster<'n> {
    netns: &'n Netns,
    etcd: Etcd<'n>,
    folder: tempfile::TempDir,
    programs: PathBuf,
    server: Option<Child>,
}

impl<'n> Cluster<'n> {
    /// Starts in a network. None: the programs are not here.
    pub fn start(netns: &'n Netns) -> Option<Self> {
        let programs = PathBuf::from(env::var_os("UNDERPASS_KUBERNETES")?);
        let etcd = Etcd::start_at(Some(netns), &[0]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        write("ca.crt", &authority.pem());
        let server = authority.signs(&["127.0.0.1"]);
        write("server.crt", &server.cert);
        write("server.key", &server.key);
        let admin = authority.signs_as(&["admin"], |params| {
            params.distinguished_name.push(DnType::CommonName, "admin");
            params
                .distinguished_name
                .push(DnType::OrganizationName, "system:masters");
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        });
        write("admin.crt", &admin.cert);
        write("admin.key", &admin.key);
        let accounts = KeyPair::generate().unwrap();
        write("accounts.key", &accounts.serialize_pem());
        write("accounts.pub", &accounts.public_key_pem());
        let at = |name: &str| folder.path().join(name);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": SERVER, "certificate-authority": at("ca.crt")}}],
            "users": [{"name": "admin", "user": {"client-certificate": at("admin.crt"), "client-key": at("admin.key")}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "admin"}}],
            "current-context": "c",
        });
        write("kubeconfig", &kubeconfig.to_string());
        // Helm says so of one that others can read.
        fs::set_permissions(at("kubeconfig"), Permissions::from_mode(0o600)).unwrap();
        let mut cluster = Self {
            netns,
            etcd,
            folder,
            programs,
            server: None,
        };
        cluster.begin();
        Some(cluster)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts the API server, and waits until it is ready.
    pub fn begin(&mut self) {
        let log = fs::File::options()
            .create(true)
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let flag = |name: &str, file: &str| format!("--{name}={}", self.path(file).display());
        let mut command = Command::new(self.programs.join("kube-apiserver"));
        command
            .arg(format!(
                "--etcd-servers={}",
                self.etcd.endpoints().join(",")
            ))
            .arg(flag("client-ca-file", "ca.crt"))
            .arg(flag("tls-cert-file", "server.crt"))
            .arg(flag("tls-private-key-file", "server.key"))
            .arg(flag("service-account-key-file", "accounts.pub"))
            .arg(flag("service-account-signing-key-file", "accounts.key"))
            .args([
                "--service-account-issuer=https://kubernetes.default.svc",
                "--authorization-mode=RBAC",
                "--bind-address=127.0.0.1",
                "--secure-port=6443",
                // A network with nothing but a loopback has no such address.
                "--advertise-address=10.99.0.1",
                "--service-cluster-ip-range=10.0.0.0/24",
                // Nobody makes the service accounts that it would ask for.
                "--disable-admission-plugins=ServiceAccount",
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let spawned = run_in(Some(self.netns), None, move || command.spawn()).unwrap();
        self.server = Some(spawned.unwrap());
        let begun = Instant::now();
        while !self
            .kubectl(&["get", "--raw", "/readyz"], None)
            .status
            .success()
        {
            let ended = self
                .server
                .as_mut()
                .and_then(|server| server.try_wait().unwrap());
            assert!(
                ended.is_none() && begun.elapsed() < START_LIMIT,
                "no API server: {}",
                fs::read_to_string(self.path("log")).unwrap()
            );
            thread::sleep(Duration::from_millis(200));
        }
    }

    pub fn end(&mut self) {
        if let Some(mut server) = self.server.take() {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }

    /// Runs `kubectl` as an administrator.
    pub fn kubectl(&self, args: &[&str], input: Option<&str>) -> Output {
        let mut command = Command::new(self.programs.join("kubectl"));
        command
            .args(args)
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("HOME", self.folder.path());
        if let Some(input) = input {
            let file = self.path("input.yaml");
            fs::write(&file, input).unwrap();
            command.arg("--filename").arg(file);
        }
        run_in(Some(self.netns), None, move || command.output())
            .unwrap()
            .unwrap()
    }

    /// Runs an administrator's command in a folder, with `kubectl` and `helm`, and returns what it says.
    pub fn shell(&self, folder: &Path, line: &str) -> String {
        let path = env::var("PATH").unwrap_or_default();
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("exec 2>&1; {line}")])
            .current_dir(folder)
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env("KUBECONFIG", self.path("kubeconfig"))
            .env("HOME", self.folder.path());
        let said = run_in(Some(self.netns), None, move || command.output());
        String::from_utf8(said.unwrap().unwrap().stdout).unwrap()
    }

    /// Runs `kubectl`, which succeeds, and returns what it says.
    pub fn does(&self, args: &[&str]) -> String {
        let said = self.kubectl(args, None);
        assert!(said.status.success(), "{args:?}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    }

    /// Applies manifests, which are accepted.
    pub fn applies(&self, manifests: &str) -> String {
        let said = self.kubectl(&["apply", "--server-side"], Some(manifests));
        assert!(said.status.success(), "{manifests}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    }

    /// Applies the definitions of Prometheus Operator's kinds, waits until they are in force, and says how many there are.
    pub fn applies_operators(&self) -> usize {
        let files = fs::read_dir(self.programs.join("operator")).unwrap();
        let files = files.map(|file| file.unwrap().path());
        let definitions = files.filter(|file| file.extension().is_some_and(|end| end == "yaml"));
        let applied = definitions.map(|file| self.applies(&fs::read_to_string(file).unwrap()));
        let applied = applied.count();
        self.does(&[
            "wait",
            "--for=condition=Established",
            "crd",
            "--all",
            "--timeout=60s",
        ]);
        applied
    }

    /// Applies manifests that are refused, and returns why.
    pub fn refuses(&self, manifests: &str) -> String {
        let said = self.kubectl(&["apply"], Some(manifests));
        assert!(!said.status.success(), "{manifests}: {said:?}");
        String::from_utf8(said.stderr).unwrap()
    }

    /// The chart, rendered.
    pub fn chart(&self, chart: &Path, args: &[&str]) -> String {
        let said = Command::new(self.programs.join("helm"))
            .args([
                "template",
                "u",
                "--namespace",
                "underpass",
                "--kube-version",
                "1.34",
                "--include-crds",
            ])
            .arg(chart)
            .args(args)
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        String::from_utf8(said.stdout).unwrap()
    }
}

impl Drop for Cluster<'_> {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
