//! The audit's file when the disk fills up, and when the agent is killed.

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use super::*;

/// The size of the disk, and what somebody else has of it at first.
const DISK: &str = "size=8m,mode=0700";
const TAKEN: usize = 7 << 20;

/// Requests whose lines need three times the room that is left, in lines of 4 KiB.
const MANY: usize = 800;

/// Kills of the agent.
const KILLS: usize = 10;

/// Runs `body` on a thread with mounts of its own, which go with it: nobody else sees them.
pub(super) fn with_mounts_of_its_own(body: impl FnOnce() + Send) {
    let apart = || {
        let nothing = None::<&str>;
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        let apart = MsFlags::MS_REC | MsFlags::MS_PRIVATE;
        mount(nothing, "/", nothing, apart, nothing).unwrap();
        body();
    };
    std::thread::scope(|scope| scope.spawn(apart).join().unwrap());
}

/// Runs `body` with a folder on a disk of a few MiB.
fn on_a_small_disk(body: impl FnOnce(&Path) + Send) {
    with_mounts_of_its_own(|| {
        let folder = tempfile::tempdir().unwrap();
        mount(
            Some("disk"),
            folder.path(),
            Some("tmpfs"),
            MsFlags::empty(),
            Some(DISK),
        )
        .unwrap();
        body(folder.path());
        umount2(folder.path(), MntFlags::MNT_DETACH).unwrap();
    });
}

/// The lines, all of which are whole, as of a file that nobody writes to.
fn all_whole(file: &Path) -> usize {
    let text = fs::read_to_string(file).unwrap();
    assert!(text.is_empty() || text.ends_with('\n'), "a line is cut off");
    lines(file).len()
}

#[test]
fn a_disk_that_fills_up_has_whole_lines_and_gets_the_others_when_there_is_room() {
    on_a_small_disk(|disk| {
        let (file, others) = (disk.join("audit.log"), disk.join("others"));
        fs::write(&others, vec![0; TAKEN]).unwrap();
        host(|host| {
            let settings = ", kinds = [\"select\"], statement = true, fsync = \"batch\"";
            host.policy(&policy(&file, settings, ""));
            let mut c = begin(host, 4);
            let select = format!("SELECT v FROM t WHERE id = '{}'", "x".repeat(4_000));
            asks_much(&mut c, MANY, &select);
            let failures = "underpass_journal_failures_total{journal=\"audit\",what=\"write\"}";
            eventually("the disk is full", || {
                host.agent.metric(failures).unwrap_or_default() > 1.0
            });
            let before = records(host, "written") as usize;
            assert!(before < MANY, "there was room for all");
            // Each failed attempt is taken back, at once.
            eventually("whole lines are there", || {
                let text = fs::read_to_string(&file).unwrap();
                text.ends_with('\n') && lines(&file).len() == before
            });
            fs::remove_file(&others).unwrap();
            eventually("the others are written", || {
                records(host, "written") as usize == MANY
            });
            assert_eq!(records(host, "lost") + records(host, "full"), 0);
            c.ends();
        });
        assert_eq!(all_whole(&file), MANY);
    });
}

#[test]
fn what_was_counted_as_written_survives_a_kill_and_a_torn_line_is_ended() {
    let (_folder, file) = folder();
    let sandbox = Sandbox::new().unwrap();
    let listener = sandbox.server(|| TcpListener::bind("127.0.0.1:0"));
    let listener = listener.unwrap().unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let settings = ", kinds = [\"select\"], fsync = \"batch\"";
    let policy = policy(&file, settings, "").replace("PORT", &port);
    let (netns, cgroup) = (Some(&sandbox.netns), &sandbox.cgroup);
    let agent = Agent::start(Path::new(BINARY), netns, cgroup, "workers = 1", &policy).unwrap();
    let mut host = Host {
        sandbox: &sandbox,
        agent,
        listener,
        clients: None,
    };
    let torn = b"{\"time\":\"20";
    for kill in 0..KILLS {
        let before = fs::read(&file).unwrap();
        let mut c = begin(&host, 4);
        // Killed while it writes, at another moment each time.
        asks_much(&mut c, 100 * (kill + 1), SELECT);
        let written = records(&host, "written") as usize;
        host.agent.kill().unwrap();
        let after = fs::read(&file).unwrap();
        assert!(after.starts_with(&before), "what was there has changed");
        let news = after.get(before.len()..).unwrap();
        let news = news.iter().filter(|byte| **byte == b'\n').count();
        let ended = usize::from(kill > 0);
        assert!(
            news >= written + ended,
            "{written} were counted, {news} are there"
        );
        // As a host's crash leaves it.
        let mut end = fs::OpenOptions::new().append(true).open(&file).unwrap();
        end.write_all(torn).unwrap();
        host.agent.restart().unwrap();
        let failures = "underpass_journal_failures_total{journal=\"audit\",what=\"torn\"}";
        assert_eq!(host.agent.metric(failures).unwrap(), 1.0);
    }
    let mut c = begin(&host, 4);
    asks(&mut c, 4, SELECT);
    eventually("it is written", || records(&host, "written") == 1);
    let text = fs::read_to_string(&file).unwrap();
    let (mut whole, mut cut) = (0, 0);
    for line in text.lines() {
        match serde_json::from_str::<Value>(line) {
            Ok(_) => whole += 1,
            Err(_) => cut += 1,
        }
    }
    assert!(text.ends_with('\n') && whole > 0);
    assert_eq!(cut, KILLS, "lines that were cut off, each by itself");
}
