//! When there is no room: on the disk, or in the ring before a writer that is slow.

use std::{thread, time::Duration};

use super::*;
use crate::common::wire::host_with_any_journal;

/// More than a ring and a pipe take, with texts of 4 KiB.
const MANY: usize = 6_000;

/// For a line of 4 KiB.
fn long_select() -> String {
    format!(
        "SELECT v FROM shop.orders WHERE id = '{}'",
        "x".repeat(4_000)
    )
}

#[test]
fn a_full_disk_is_counted_and_nobody_waits() {
    host_with_any_journal(|host| {
        host.policy(&policy(
            Path::new("/dev/full"),
            ", kinds = [\"select\"], full = \"drop\"",
            "",
        ));
        let mut c = begin(host, 4);
        for _ in 0..3 {
            asks(&mut c, 4, SELECT);
        }
        eventually("they are counted", || records(host, "lost") == 3);
        assert!(host.metric("journal_failures", "journal=\"audit\",what=\"write\"") > 0);
        c.ends();
    });
}

/// A pipe in place of a file: nobody takes out what is written.
fn pipe() -> (TempDir, PathBuf, fs::File) {
    let (folder, file) = folder();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let both = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(nix::libc::O_NONBLOCK)
        .open(&file)
        .unwrap();
    (folder, file, both)
}

#[test]
fn what_does_not_fit_is_dropped_and_counted() {
    let (_folder, file, mut reader) = pipe();
    host_with_any_journal(|host| {
        host.policy(&policy(
            &file,
            ", kinds = [\"select\"], statement = true, full = \"drop\"",
            "",
        ));
        let mut c = begin(host, 4);
        asks_much(&mut c, MANY, &long_select());
        c.ends();
        assert!(records(host, "full") > 0, "nothing was dropped");
        drain(&mut reader, || {
            records(host, "full") + records(host, "written") == MANY as u64
        });
        assert_eq!(records(host, "lost"), 0);
    });
}

#[test]
fn a_flow_is_held_and_nothing_is_lost() {
    let one_by_one = |c: &mut Conversation| {
        let select = long_select();
        (0..MANY).for_each(|_| asks(c, 4, &select));
    };
    nothing_is_lost(one_by_one, |is_finished| {
        assert!(!is_finished, "it is not held");
    });
}

/// Nothing more comes from the client by which the flow could notice that there is room again.
#[test]
fn what_the_last_answers_have_to_say_waits_for_room() {
    nothing_is_lost(|c| asks_much(c, MANY, &long_select()), |_| ());
}

/// With the settings that hold unless others are chosen, if so much is asked. `held` is told, when the flow is held, whether it was asked by then.
fn nothing_is_lost(ask: impl FnOnce(&mut Conversation) + Send, held: impl FnOnce(bool)) {
    let (_folder, file, mut reader) = pipe();
    host_with_any_journal(|host| {
        host.policy(&policy(
            &file,
            ", kinds = [\"select\"], statement = true",
            "",
        ));
        let mut c = begin(host, 4);
        let is_held = || {
            let holds = "underpass_journal_holds_total{journal=\"audit\"}";
            host.agent.metric(holds).unwrap_or_default() > 0.0
        };
        thread::scope(|scope| {
            let c = &mut c;
            let asking = scope.spawn(move || ask(c));
            // A ring takes thousands of records, which take seconds; each is asked for in time, or `ask` panics.
            while !asking.is_finished() && !is_held() {
                thread::sleep(Duration::from_millis(50));
            }
            eventually("the flow is held", is_held);
            held(asking.is_finished());
            let read = drain(&mut reader, || {
                asking.is_finished() && records(host, "written") == MANY as u64
            });
            assert_eq!(read.lines().count(), MANY);
        });
        assert_eq!(records(host, "full"), 0);
        c.ends();
    });
}

/// Everything that comes until then.
fn drain(from: &mut fs::File, mut until: impl FnMut() -> bool) -> String {
    let mut all = Vec::new();
    let mut takes_more = |all: &mut Vec<u8>| {
        let before = all.len();
        let _ = from.read_to_end(all);
        all.len() > before
    };
    // A pipe holds little of what waits: as long as more comes, it is not asked for.
    eventually("everything is written", || {
        while takes_more(&mut all) {
            thread::sleep(Duration::from_millis(1));
        }
        until()
    });
    takes_more(&mut all);
    String::from_utf8(all).unwrap()
}
