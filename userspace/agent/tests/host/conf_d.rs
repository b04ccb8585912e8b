//! Further files of a policy, in `conf.d` beside the main one, as an operator puts them there.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::Command,
};

use nix::sys::signal::Signal;
use sandbox::{Agent, Sandbox};

use crate::common::{operator::output, *};

/// The words of a command, on both outputs. `FILE` stands for a policy file.
fn says(args: &[&str], file: &Path) -> String {
    let mut command = Command::new(BINARY);
    for arg in args {
        match *arg {
            "FILE" => command.arg(file),
            arg => command.arg(arg),
        };
    }
    let output = output(&mut command);
    [output.stdout, output.stderr]
        .map(|said| String::from_utf8(said).unwrap())
        .concat()
}

/// `underpass check` of the agent's file.
fn check(agent: &Agent<'_>) -> String {
    says(&["check", "--file-only", "FILE"], &agent.file())
}

/// The policy in force.
fn in_force(agent: &Agent<'_>, more: &[&str]) -> String {
    let socket = agent.admin_socket();
    let args = [&["config", "--admin", "FILE"], more].concat();
    says(&args, &socket)
}

#[test]
fn files_are_read_checked_and_reloaded_like_the_main_one() {
    let sandbox = Sandbox::new().unwrap();
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let main = rule("observe", &to(&[9]));
    let mut agent =
        Agent::start(Path::new(BINARY), netns, cgroup, "max_flows = 100", &main).unwrap();
    let folder = agent.file().with_file_name("conf.d");
    fs::create_dir(&folder).unwrap();
    let shop = folder.join("shop.toml");
    let text = main.replace("\"r\"", "\"shop\"").replace(":9", ":10");
    let reloads = |agent: &Agent<'_>, result: &str| {
        let name = format!("underpass_reloads_total{{result=\"{result}\"}}");
        agent.metric(&name).unwrap()
    };
    fs::write(&shop, &text).unwrap();
    eventually("it is read", || reloads(&agent, "ok") == 1.0);
    assert!(check(&agent).ends_with(": ok, 2 rules\n"));

    // A mistake anywhere leaves the policy as it is.
    fs::write(folder.join("twice.toml"), &text).unwrap();
    let both = format!("{}/twice.toml:2:8", folder.display());
    agent.wait_for_log(&both).unwrap();
    assert!(check(&agent).contains(&format!("(the other is at {}:2:8)", shop.display())));
    fs::remove_file(folder.join("twice.toml")).unwrap();
    eventually("it is right again", || reloads(&agent, "ok") == 2.0);

    // Who can change a file, or put one there, decides for everybody.
    for path in [&shop, &folder] {
        let before = fs::metadata(path).unwrap().permissions();
        fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        let said = format!("others can write to {}", path.display());
        agent.signal(Signal::SIGHUP).unwrap();
        agent.wait_for_log(&said).unwrap();
        assert!(check(&agent).contains(&said));
        fs::set_permissions(path, before).unwrap();
    }
    agent.signal(Signal::SIGHUP).unwrap();
    eventually("it is trusted again", || reloads(&agent, "ok") == 3.0);

    // The next agent starts with all of them; a file that goes is a change.
    agent.stop().unwrap();
    agent.restart().unwrap();
    assert!(agent.log().contains(" rules=2 "), "{}", agent.log());
    let whole = in_force(&agent, &[]);
    for line in [
        "max_flows = 100\n",
        "[default]\naction = \"bypass\"\nfail = \"open\"\n",
        "[[rule]]\nname = \"r\"\naction = \"observe\"\nfail = \"open\"\n",
        "[[rule]]\nname = \"shop\"\n",
    ] {
        assert!(whole.contains(line), "{line}: {whole}");
    }
    assert_eq!(says(&["config", "-c", "FILE"], &agent.file()), whole);
    let json: serde_json::Value = serde_json::from_str(&in_force(&agent, &["--json"])).unwrap();
    assert_eq!(json["rule"][1]["name"], "shop");
    let alone = tempfile::tempdir().unwrap();
    let file = alone.path().join("whole.toml");
    fs::write(&file, &whole).unwrap();
    let checked = says(&["check", "--file-only", "FILE"], &file);
    assert!(checked.ends_with(": ok, 2 rules\n"), "{checked}");
    // It says where the agent is, too.
    let live = says(&["check", "--live", "--file-only", "FILE"], &file);
    assert!(
        live.contains("shop") && !live.contains("no agent"),
        "{live}"
    );

    // Of a change that needs a restart the policy in force says nothing.
    let settings = fs::read_to_string(agent.file()).unwrap();
    let more = settings.replace("max_flows = 100", "max_flows = 99");
    fs::write(agent.file(), more).unwrap();
    eventually("it is read", || reloads(&agent, "ok") == 1.0);
    assert_eq!(in_force(&agent, &[]), whole);
    fs::remove_file(&shop).unwrap();
    eventually("its rule is gone", || reloads(&agent, "ok") == 2.0);
    assert!(!in_force(&agent, &[]).contains("shop"));
    agent.stop().unwrap();
    let nobody = says(&["check", "--live", "--file-only", "FILE"], &file);
    let named = format!(" (named by agent.admin_socket in {})", file.display());
    assert!(
        nobody.contains("no agent answers at ") && nobody.contains(&named),
        "{nobody}"
    );
}
