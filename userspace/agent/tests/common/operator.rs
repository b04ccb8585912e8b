//! An operator at the control socket.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use serde_json::Value;

use crate::common::{BINARY, wire::Host};

/// See the module.
pub struct Operator {
    control: PathBuf,
    port: String,
}

impl Operator {
    /// The operator of this host's agent. `PORT` in a command stands for the database's.
    pub fn of(host: &Host<'_>) -> Self {
        let port = host.listener.local_addr().unwrap().port();
        Self::at(&host.agent.control(), port)
    }

    pub fn at(control: &Path, port: u16) -> Self {
        Self {
            control: control.to_owned(),
            port: port.to_string(),
        }
    }

    pub fn fill(&self, text: &str) -> String {
        text.replace("PORT", &self.port)
    }

    /// Standard output, standard error, exit code.
    pub fn run(&self, args: &[&str]) -> (String, String, Option<i32>) {
        let mut command = Command::new(BINARY);
        command.args(args.iter().map(|arg| self.fill(arg)));
        command.arg("--control").arg(&self.control);
        let output = output(&mut command);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (
            text(output.stdout),
            text(output.stderr),
            output.status.code(),
        )
    }

    /// The one line that says why not.
    pub fn refused(&self, args: &[&str]) -> String {
        let (_, said, code) = self.run(args);
        assert_eq!(code, Some(1), "{args:?}: {said}");
        let line = said
            .strip_prefix("underpass: ")
            .unwrap_or_else(|| panic!("{said}"));
        assert_eq!(line.lines().count(), 1, "{said}");
        line.to_owned()
    }

    fn json(&self, args: &[&str]) -> Value {
        let (said, complained, code) = self.run(args);
        assert_eq!(code, Some(0), "{args:?}: {complained}");
        serde_json::from_str(&said).unwrap()
    }

    pub fn mark(&self, args: &[&str]) -> Value {
        self.json(&[&["mark", "--json"], args].concat())
    }

    pub fn marks(&self) -> Value {
        self.json(&["marks", "--json"])
    }

    pub fn unmark(&self, number: u64) {
        let (_, said, code) = self.run(&["unmark", &number.to_string()]);
        assert_eq!(code, Some(0), "{said}");
    }

    /// Says this, byte for byte.
    pub fn say(&self, request: &str) -> String {
        let mut stream = UnixStream::connect(&self.control).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        match stream.read_to_string(&mut answer) {
            // What was too long was not read.
            Err(e) if e.kind() == ErrorKind::ConnectionReset => {}
            read => drop(read.unwrap()),
        }
        answer
    }
}

/// Output of a command, which is run once no other test's fork holds its file open any more.
pub fn output(command: &mut Command) -> Output {
    loop {
        match command.output() {
            Err(e) if e.kind() == ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(10));
            }
            output => return output.unwrap(),
        }
    }
}
