//! `underpass explain` and `check --live`, as an operator runs them.

use super::*;
use crate::common::operator::Operator;

/// A rule that nothing here meets, one that reads, and one behind it that decides nothing.
fn rules(path: &str, steps: &str) -> String {
    format!(
        "[[rule]]\nname = \"other\"\nto = [\":1\"]\nprocess = [\"nobody\"]\naction = \"bypass\"\n\
         [[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\nfail = \"open\"\npath = \"{path}\"\n\
         pipeline = [{steps}]\n\
         [[rule]]\nname = \"late\"\nto = [\":PORT\"]\naction = \"observe\"\n"
    )
}

/// The output of a command that asks at the admin socket, and its exit code.
fn asks(host: &Host<'_>, args: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(common::BINARY);
    command
        .args(args)
        .arg("--admin")
        .arg(host.agent.admin_socket());
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

/// The line of a rule, with single spaces.
fn line(text: &str, rule: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut lines = lines.filter(|words| words.first() == Some(&rule));
    lines
        .next()
        .unwrap_or_else(|| panic!("{rule}: {text}"))
        .join(" ")
}

#[test]
fn a_flow_is_explained_by_each_rule_and_its_path() {
    host(|host| {
        host.policy(&rules("tap", "{ transform = \"stats\" }"));
        let c = begin(host, 4);
        let flow = host.flow(&c);
        let (id, pid) = (flow["id"].to_string(), flow["pid"].to_string());
        let (text, code) = asks(host, &["explain", &id]);
        assert_eq!(code, Some(0), "{text}");
        let from = flow["client"].as_str().unwrap();
        assert!(text.starts_with(&format!("flow {id}: ")), "{text}");
        assert!(
            text.contains(&format!("[{pid}], uid 0, from {from} to ")),
            "{text}"
        );
        assert!(text.contains("rule r: enrich, on path tap"), "{text}");
        assert!(text.contains("so copies do"), "{text}");
        assert_eq!(
            line(&text, "other"),
            "other bypass does not hold: `to`, `process`"
        );
        assert_eq!(line(&text, "r"), "r enrich decides");
        assert_eq!(
            line(&text, "late"),
            "late observe not reached: an earlier rule decides"
        );
        assert!(
            text.contains("faster: nothing, it is the application's own connection"),
            "{text}"
        );
        assert!(
            text.contains(&format!("`underpass mark {id} bypass --for 10m`")),
            "{text}"
        );
        let (json, _) = asks(host, &["explain", "--json", "--pid", &pid]);
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            json[0]["rules"][0]["keys"],
            json!(["to", "process"]),
            "{json}"
        );
        let (text, code) = asks(host, &["explain", "4711"]);
        assert!(text.contains("there is no flow 4711"), "{text}");
        assert_eq!(code, Some(1));
        c.ends();

        host.policy(&rules(
            "auto",
            "{ transform = \"guard\", refuse = [\"truncate\"] }",
        ));
        let c = begin(host, 4);
        let (text, _) = asks(host, &["explain", &host.flow(&c)["id"].to_string()]);
        assert!(
            text.contains("inline, because `guard` may change"),
            "{text}"
        );
        assert!(
            text.contains("faster: copies (path tap), where no step"),
            "{text}"
        );
        c.ends();
    });
}

#[test]
fn a_new_connection_is_explained_with_marks_and_with_what_the_session_decides() {
    host(|host| {
        host.policy(
            "[[rule]]\nname = \"etl\"\nto = [\":PORT\"]\nuser = [\"etl\"]\naction = \"bypass\"\nfail = \"open\"\n\
             [[rule]]\nname = \"r\"\nto = [\":PORT\"]\naction = \"enrich\"\nfail = \"open\"\n\
             pipeline = [{ transform = \"stats\" }]\n",
        );
        let pid = std::process::id().to_string();
        let to = host.listener.local_addr().unwrap().to_string();
        let new = ["explain", "--pid", &pid, "--to", &to];
        let (text, code) = asks(host, &new);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.starts_with("a new connection of "), "{text}");
        assert_eq!(
            line(&text, "etl"),
            "etl bypass decides if `user` holds, which is not known yet"
        );
        assert_eq!(line(&text, "r"), "r enrich decides");
        let operator = Operator::of(host);
        operator.mark(&["uid=0,to=:PORT", "observe"]);
        let (text, _) = asks(host, &new);
        assert!(text.contains("(a mark)  observe  decides"), "{text}");
        assert!(
            text.contains("`underpass marks` lists the mark that decides"),
            "{text}"
        );
        let (text, code) = asks(host, &["explain", "--to", &to]);
        assert!(text.contains("there is no such flow"), "{text}");
        assert_eq!(code, Some(1));
    });
}

#[test]
fn a_files_rules_are_listed_with_what_they_have_met() {
    host(|host| {
        host.policy(&rules("tap", "{ transform = \"stats\" }"));
        let c = begin(host, 4);
        let file = host.agent.file();
        let check = ["check", file.to_str().unwrap(), "--file-only", "--live"];
        let (text, code) = asks(host, &check);
        assert_eq!(code, Some(0), "{text}");
        assert_eq!(line(&text, "r"), "r enrich 1 0 0 0 1");
        assert_eq!(
            line(&text, "other"),
            "other bypass 0 0 0 0 0 never met since the agent began"
        );
        assert_eq!(
            line(&text, "late"),
            "late observe 0 0 0 0 0 hidden by r: it decides nothing"
        );
        let json = Command::new(common::BINARY)
            .args(check)
            .args(["--json", "--admin"])
            .arg(host.agent.admin_socket())
            .output()
            .unwrap();
        let json: Value = serde_json::from_slice(&json.stdout).unwrap();
        assert_eq!(json["live"][1]["connections"], 1, "{json}");
        c.ends();
    });
}
