//! Another node like the one that `cargo xtask test` provides, at an address in a network namespace.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
};

use sandbox::Sandbox;

const CONFIG: &str = "-Dcassandra.config=file://";
const STORAGE: &str = "-Dcassandra.storagedir=";
const LOGS: &str = "-Dcassandra.logdir=";

/// Dropped, it is ended; its data are in the folder that it was given.
pub struct Twin(Child);

impl Twin {
    /// Started as the process `provided` was, and not ready yet.
    pub fn start(provided: &str, host: &Sandbox, at: SocketAddr, folder: &Path) -> Self {
        let line = fs::read_to_string(format!("/proc/{provided}/cmdline")).unwrap();
        let mut words = line.split_terminator('\0');
        let mut command = Command::new(words.next().unwrap());
        for word in words {
            if let Some(config) = word.strip_prefix(CONFIG) {
                let own = folder.join("cassandra.yaml");
                fs::write(&own, configuration(Path::new(config), at)).unwrap();
                command.arg(format!("{CONFIG}{}", own.display()));
            } else if word.starts_with(STORAGE) {
                command.arg(format!("{STORAGE}{}", folder.join("data").display()));
            } else if word.starts_with(LOGS) {
                command.arg(format!("{LOGS}{}", folder.display()));
            } else {
                command.arg(word);
            }
        }
        let log = fs::File::create(folder.join("log")).unwrap();
        command
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Self(host.server(|| command.spawn()).unwrap().unwrap())
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Configuration of the twin: another's, but for the address at which CQL is spoken.
fn configuration(of: &Path, at: SocketAddr) -> String {
    let ports = |line: &&str| {
        !line.starts_with("rpc_address:") && !line.starts_with("native_transport_port:")
    };
    let text = fs::read_to_string(of).unwrap();
    let rest: Vec<&str> = text.lines().filter(ports).collect();
    let own = format!(
        "rpc_address: {}\nnative_transport_port: {}\n",
        at.ip(),
        at.port()
    );
    rest.join("\n") + "\n" + &own
}
