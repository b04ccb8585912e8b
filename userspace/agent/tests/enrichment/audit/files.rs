//! The audit's file: rotated, moved away, and one that cannot be had.

use super::*;

#[test]
fn a_file_that_was_moved_away_is_opened_anew() {
    let (folder, file) = folder();
    host(|host| {
        let audit = policy(&file, ", kinds = [\"select\"]", "");
        host.policy(&audit);
        let mut c = begin(host, 4);
        asks(&mut c, 4, SELECT);
        wait_for(&file, 1);
        let moved = folder.path().join("moved");
        fs::rename(&file, &moved).unwrap();
        asks(&mut c, 4, SELECT);
        wait_for(&moved, 2);
        // As after `logrotate`: the file is the same.
        host.policy(&audit);
        asks(&mut c, 4, SELECT);
        wait_for(&file, 1);
        wait_for(&moved, 2);
        c.ends();
    });
}

#[test]
fn files_are_rotated_and_no_line_is_lost() {
    const REQUESTS: usize = 3_000;
    let (folder, file) = folder();
    host(|host| {
        let settings = ", kinds = [\"select\"], max_bytes = 262144, keep = 100, fsync = \"batch\"";
        host.policy(&policy(&file, settings, ""));
        let mut c = begin(host, 4);
        asks_much(&mut c, REQUESTS, SELECT);
        c.ends();
        let all = || {
            let files = fs::read_dir(folder.path()).unwrap();
            files
                .map(|file| lines(&file.unwrap().path()).len())
                .sum::<usize>()
        };
        eventually("every line is there", || all() == REQUESTS);
        let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
        assert!(files.len() > 3, "{files:?}");
        for file in files {
            assert!(file.unwrap().metadata().unwrap().len() <= 256 << 10);
        }
        assert_eq!(records(host, "written"), REQUESTS as u64);
    });
}

#[test]
fn a_file_that_cannot_be_opened_changes_nothing() {
    let (folder, file) = folder();
    let nowhere = folder.path().join("no/audit.log");
    let sandbox = Sandbox::new().unwrap();
    let start = |file: &Path| {
        let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
        let policy = policy(file, "", "").replace("PORT", "9042");
        let settings = "workers = 1";
        Agent::start(Path::new(BINARY), netns, cgroup, settings, &policy)
    };
    let expected = format!("rule r: audit: cannot write to {}", nowhere.display());
    // It does not start with one,
    let error = format!("{:#}", start(&nowhere).err().unwrap());
    assert!(error.contains(&expected), "{error}");
    // and one that runs goes on with what it has.
    let agent = start(&file).unwrap();
    let bad = policy(&nowhere, "", "").replace("PORT", "9042");
    agent.write_policy(&bad).unwrap();
    agent.signal(Signal::SIGHUP).unwrap();
    let line = agent.wait_for_log("the old policy stays in force").unwrap();
    assert!(line.contains(&expected), "{line}");
}

#[test]
fn a_file_that_fails_half_way_leaves_journals_as_they_were() {
    const REQUESTS: usize = 3_000;
    let (folder, file) = folder();
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "workers = 1", "").unwrap();
    let host = Host {
        sandbox: &sandbox,
        agent,
        listener,
        clients: None,
    };
    let settings = ", kinds = [\"select\"]";
    host.policy(&policy(&file, settings, ""));
    let mut c = begin(&host, 4);
    // The first journal is there already, and would be kept shorter; the second cannot be opened.
    let nowhere = folder.path().join("no/audit.log");
    let second = format!(", {{ transform = \"audit\", file = {nowhere:?} }}");
    let shorter = format!("{settings}, max_bytes = 262144, keep = 0");
    let port = host.listener.local_addr().unwrap().port().to_string();
    let bad = policy(&file, &shorter, &second).replace("PORT", &port);
    host.agent.write_policy(&bad).unwrap();
    host.agent.signal(Signal::SIGHUP).unwrap();
    host.agent
        .wait_for_log("the old policy stays in force")
        .unwrap();
    asks_much(&mut c, REQUESTS, SELECT);
    c.ends();
    wait_for(&file, REQUESTS);
    assert!(file.metadata().unwrap().len() > 262_144);
}
