//! The control socket: who may open it, and whose it is.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use sandbox::Agent;
use serde_json::json;

use crate::common::{
    BINARY,
    operator::{self, Operator},
};

#[test]
fn only_root_may_and_only_one_agent_has_the_socket() {
    let sandbox = sandbox::Sandbox::new().unwrap();
    let netns = Some(&sandbox.netns);
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let socket = folder.path().join("a/b/control.sock");
    let settings = format!("control = {socket:?}");
    let start = || Agent::start(BINARY.as_ref(), netns, &sandbox.cgroup, &settings, "");
    let mut agent = start().unwrap();
    let file = std::fs::metadata(&socket).unwrap();
    assert_eq!((file.mode() & 0o777, file.uid()), (0o600, 0));
    for made in ["a", "a/b"] {
        let mode = std::fs::metadata(folder.path().join(made)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o700, "{made}");
    }
    // Somebody who could reach it, but for its mode.
    for made in ["a", "a/b"] {
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path().join(made), open).unwrap();
    }
    let program = sandbox::program::Reachable::of(BINARY).unwrap();
    let args = ["mark", "all", "deny", "--control", socket.to_str().unwrap()];
    let output = operator::output(&mut program.as_nobody(&args));
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.starts_with("underpass: only root may open ") && said.lines().count() == 1,
        "{said}"
    );

    // Another agent.
    let refused = start().unwrap_err();
    assert!(
        format!("{refused:#}").contains("another agent answers at"),
        "{refused:#}"
    );
    assert!(socket.exists());

    // A dead one's socket is replaced.
    agent.kill().unwrap();
    assert!(socket.exists());
    let operator = Operator::at(&socket, 0);
    assert!(operator.refused(&["marks"]).contains("no agent answers at"));
    agent.restart().unwrap();
    assert_eq!(operator.marks(), json!([]));
    assert!(agent.stop().unwrap().success());
    assert!(!socket.exists());
    assert!(operator.refused(&["marks"]).contains("no agent answers at"));

    // What is no socket is left alone.
    std::fs::write(&socket, "precious").unwrap();
    let refused = start().unwrap_err();
    assert!(
        format!("{refused:#}").contains("is no socket"),
        "{refused:#}"
    );
    assert_eq!(std::fs::read(&socket).unwrap(), b"precious");
}
