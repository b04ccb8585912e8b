//! Starting the node: its configuration, its command line, and what becomes of a start
//! that does not work out.

use std::{
    fs::{self, File},
    io::ErrorKind,
    net::{Ipv4Addr, TcpListener},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

use super::{
    cgroup, home, install,
    node::{self, Node},
    ready,
};
use crate::signals;

const CASSANDRA_YAML: &str = include_str!("../../cassandra/cassandra.yaml");
const LOGBACK_XML: &str = include_str!("../../cassandra/logback.xml");
const JAVA_OPTIONS: &str = include_str!("../../cassandra/java.options");
/// Cassandra's usual one; nobody else speaks to this node, so any other will do.
const STORAGE_PORT: u16 = 7000;

/// An error when somebody listens on this port of 127.0.0.1.
pub fn check_free(port: u16) -> Result<()> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
            "port {port} of 127.0.0.1 is in use by another program: stop it, or choose another \
             with `cargo xtask cassandra up --port`"
        ),
        Err(error) => bail!("cannot listen on port {port} of 127.0.0.1: {error}"),
    }
}

/// Starts the node and waits until it is ready. On failure, or when a signal tells us to
/// end, the process is ended again; the log's tail is shown when the log can tell why.
pub fn start(port: u16) -> Result<Node> {
    write_configuration(port)?;
    let log = fresh_log()?;
    signals::check()?;
    let child = command()?
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("cannot share the log")?)
        .stderr(log)
        .spawn()
        .context("cannot start Cassandra with setsid (package util-linux)")?;
    let node = node::remember(child.id(), port).inspect_err(|_| home::show_log_tail())?;
    if let Err(error) = cgroup::enter(node.pid) {
        eprintln!("Cassandra shares its starter's cgroup: {error:#}");
    }
    eprintln!(
        "starting Cassandra on 127.0.0.1:{port} (process {})",
        node.pid
    );
    let Err(error) = ready::wait(&node) else {
        return Ok(node);
    };
    if signals::received().is_none() {
        home::show_log_tail();
    }
    node::stop(&node)?;
    node::forget()?;
    Err(error)
}

/// Java in a session of its own, so that no terminal's end or Ctrl-C reaches it. setsid(1)
/// becomes the program that it runs: the process id stays.
fn command() -> Result<Command> {
    let java = install::find_java().context("no Java 17: run `cargo xtask setup`")?;
    let dir = home::dir();
    let lib = install::lib();
    let conf = dir.join("conf");
    let mut command = Command::new("setsid");
    command
        .arg(java)
        .current_dir(&dir)
        .args(JAVA_OPTIONS.lines().filter(|line| line.starts_with('-')))
        .arg(format!("-javaagent:{}", find_jamm(&lib)?))
        .arg(file_url("cassandra.config", &conf.join("cassandra.yaml")))
        .arg(file_url(
            "logback.configurationFile",
            &conf.join("logback.xml"),
        ))
        .arg(format!("-Dcassandra.storagedir={}", home::data().display()))
        .arg(format!("-Dcassandra.logdir={}", dir.display()))
        .arg("-cp")
        .arg(lib.join("*"))
        .arg("org.apache.cassandra.service.CassandraDaemon");
    Ok(command)
}

fn file_url(property: &str, path: &Path) -> String {
    format!("-D{property}=file://{}", path.display())
}

/// The agent that measures objects, without which Cassandra does not start.
fn find_jamm(lib: &Path) -> Result<String> {
    let files = fs::read_dir(lib).with_context(|| format!("cannot read {}", lib.display()))?;
    files
        .flatten()
        .map(|file| file.path())
        .find(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().starts_with("jamm-"))
        })
        .map(|path| path.display().to_string())
        .with_context(|| format!("no jamm jar: remove {} and try again", lib.display()))
}

fn write_configuration(port: u16) -> Result<()> {
    let yaml = CASSANDRA_YAML
        .replace("@NATIVE_PORT@", &port.to_string())
        .replace("@STORAGE_PORT@", &storage_port(port)?.to_string());
    let conf = home::dir().join("conf");
    fs::create_dir_all(&conf)
        .and_then(|()| fs::write(conf.join("cassandra.yaml"), yaml))
        .and_then(|()| fs::write(conf.join("logback.xml"), LOGBACK_XML))
        .with_context(|| format!("cannot write to {}", conf.display()))
}

/// 7000, or any free one. Another program may take it before Java binds it: then the start
/// fails, and the log says so.
fn storage_port(native_port: u16) -> Result<u16> {
    let listener = match TcpListener::bind((Ipv4Addr::LOCALHOST, STORAGE_PORT)) {
        Ok(listener) if native_port != STORAGE_PORT => listener,
        _ => TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?,
    };
    Ok(listener
        .local_addr()
        .context("a listener without address")?
        .port())
}

/// An empty log; the one before keeps `.1` at its end.
fn fresh_log() -> Result<File> {
    let log = home::log();
    if log.exists() {
        fs::rename(&log, log.with_extension("log.1")).context("cannot rotate the log")?;
    }
    File::create(&log).with_context(|| format!("cannot write {}", log.display()))
}
