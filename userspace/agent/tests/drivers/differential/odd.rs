//! OPTIONS, REGISTER, STARTUP, log-ins and USE at times at which no driver sends them: whatever Cassandra answers directly
//! is answered through the steps, on the same streams, and nothing hangs.

use std::time::Duration;

use super::peer::{AUTH_RESPONSE, AUTHENTICATE, Peer, QUERY, STARTUP, startup, token};
use super::{ALONE, STEPS, many};
use crate::cassandra::Cassandra;
use sandbox::{Cgroup, run_in};

const OPTIONS: u8 = 0x05;
const REGISTER: u8 = 0x0B;

/// A time that is long for an answer, and short where none comes.
const PATIENCE: Duration = Duration::from_secs(2);

/// How often Cassandra is asked directly: it is free to answer some requests that come at once in any order.
const TRIES: usize = 4;

/// The streams of what every conversation has, and those of what comes at an odd time.
const START: i16 = 1;
const LOG_IN: i16 = 2;
const LAST: i16 = 99;
const ODD: [i16; 2] = [7, 300];
const AROUND: [i16; 3] = [10, 11, 12];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    BeforeStartup,
    /// In one chunk with STARTUP.
    BehindStartup,
    BeforeLogIn,
    /// In one chunk, in v5 in one segment, with the log-in.
    BehindLogIn,
    LoggedIn,
    /// Among requests, all in one chunk.
    Among,
}

const MOMENTS: [Moment; 6] = [
    Moment::BeforeStartup,
    Moment::BehindStartup,
    Moment::BeforeLogIn,
    Moment::BehindLogIn,
    Moment::LoggedIn,
    Moment::Among,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    Options,
    Register,
    Startup,
    StartupLz4,
    LogIn,
    WrongLogIn,
    Use,
    Select,
}

const ALL: [Odd; 8] = [
    Odd::Options,
    Odd::Register,
    Odd::Startup,
    Odd::StartupLz4,
    Odd::LogIn,
    Odd::WrongLogIn,
    Odd::Use,
    Odd::Select,
];

/// A conversation: which requests come at which moment, and how often.
#[derive(Clone, Copy, Debug)]
struct Case {
    version: u8,
    moment: Moment,
    odd: Odd,
    times: usize,
}

fn cases() -> impl Iterator<Item = Case> {
    let versions = [4, 5].into_iter();
    let all = versions.flat_map(|version| MOMENTS.map(|moment| (version, moment)));
    let all = all.flat_map(|(version, moment)| ALL.map(|odd| (version, moment, odd)));
    let all = all.flat_map(|(version, moment, odd)| {
        [1, 2].map(|times| Case {
            version,
            moment,
            odd,
            times,
        })
    });
    all.filter(|case| {
        let begins = [Odd::Startup, Odd::StartupLz4].contains(&case.odd);
        match case.moment {
            // It would be the one that counts.
            Moment::BeforeStartup => !begins,
            // Nobody knows whether it is read as a frame or as a segment.
            Moment::BehindStartup => case.version == 4,
            _ => true,
        }
    })
}

/// Answers by their streams, and whether the connection is still there.
type Told = (Vec<(i16, u8, Option<i32>)>, bool);

impl Case {
    fn frames(self, cassandra: &Cassandra, peer: &Peer) -> Vec<u8> {
        let wrong = "wrong".to_owned();
        let (opcode, body) = match self.odd {
            Odd::Options => (OPTIONS, Vec::new()),
            Odd::Register => (REGISTER, b"\0\x01\0\x0dSTATUS_CHANGE".to_vec()),
            Odd::Startup => (STARTUP, startup(&[])),
            Odd::StartupLz4 => (STARTUP, startup(&[("COMPRESSION", "lz4")])),
            Odd::LogIn => (AUTH_RESPONSE, token(cassandra, &cassandra.password)),
            Odd::WrongLogIn => (AUTH_RESPONSE, token(cassandra, &wrong)),
            Odd::Use => (QUERY, peer.query("USE system_schema")),
            Odd::Select => (QUERY, peer.query("SELECT key FROM system.local")),
        };
        let frames = ODD.iter().take(self.times);
        frames
            .flat_map(|stream| peer.frame(*stream, opcode, &body))
            .collect()
    }

    /// Holds the conversation.
    fn told(self, cassandra: &Cassandra) -> Told {
        let mut peer = Peer::dial(cassandra, self.version);
        let odd = self.frames(cassandra, &peer);
        let mut told = Vec::new();
        let streams = &ODD[..self.times];
        let select = peer.query("SELECT key FROM system.local");
        let is = |moment| self.moment == moment;
        let with = |moment, bytes: Vec<u8>| match is(moment) {
            true => ([bytes, odd.clone()].concat(), streams),
            false => (bytes, &[][..]),
        };
        if is(Moment::BeforeStartup) {
            peer.sends(&odd, false);
            waits(&mut peer, streams, &mut told);
        }
        let start = peer.frame(START, STARTUP, &startup(&[]));
        let (start, also) = with(Moment::BehindStartup, start);
        peer.sends(&start, false);
        waits(&mut peer, &[START], &mut told);
        if told.iter().any(|(_, opcode, _)| *opcode == AUTHENTICATE) {
            peer.accepted();
        }
        waits(&mut peer, also, &mut told);
        if is(Moment::BeforeLogIn) {
            peer.sends(&odd, true);
            waits(&mut peer, streams, &mut told);
        }
        let token = token(cassandra, &cassandra.password);
        let (log_in, also) = with(
            Moment::BehindLogIn,
            peer.frame(LOG_IN, AUTH_RESPONSE, &token),
        );
        peer.sends(&log_in, true);
        waits(&mut peer, &[&[LOG_IN], also].concat(), &mut told);
        if is(Moment::LoggedIn) {
            peer.sends(&odd, true);
            waits(&mut peer, streams, &mut told);
        }
        if is(Moment::Among) {
            let [first, second, third] = AROUND.map(|s| peer.frame(s, QUERY, &select));
            peer.sends(&[first, odd, second, third].concat(), true);
            waits(&mut peer, &[&AROUND, streams].concat(), &mut told);
        }
        let last = peer.frame(LAST, QUERY, &select);
        peer.sends(&last, true);
        let lives = waits(&mut peer, &[LAST], &mut told);
        told.sort_unstable();
        (told, lives)
    }

    /// Whether a strict step may end the flow for it, as is documented.
    fn is_early(self) -> bool {
        self.moment == Moment::BehindStartup
    }
}

/// Waits for an answer on each of these streams.
fn waits(peer: &mut Peer, streams: &[i16], told: &mut Vec<(i16, u8, Option<i32>)>) -> bool {
    streams.iter().all(|stream| {
        while !told.iter().any(|(answered, ..)| answered == stream) {
            match peer.comes(PATIENCE) {
                Some(answer) => told.push(answer),
                None => return false,
            }
        }
        true
    })
}

#[test]
fn what_comes_at_an_odd_time_is_answered_as_without_the_agent() {
    let test = "differential::odd::what_comes_at_an_odd_time_is_answered_as_without_the_agent";
    let Some(cassandra) = Cassandra::provided(test) else {
        return;
    };
    let directly: Vec<(Case, Vec<Told>)> = cases()
        .map(|case| {
            let tries = (0..TRIES).map(|_| case.told(&cassandra));
            (case, tries.collect())
        })
        .collect();
    // Otherwise it would be nothing that is compared.
    let answers = directly.iter().flat_map(|(_, tries)| &tries[0].0);
    assert!(answers.count() > 3 * directly.len());
    let pipeline = |steps: &str| format!("pipeline = [\n{steps},\n]");
    // All at once; where log-ins are looked for; and, if time is given, each alone.
    let all = pipeline(&STEPS.join(",\n"));
    let mut rules = vec![format!("user = [{:?}]\n{all}", cassandra.user), all];
    if many().is_some() {
        rules.extend(STEPS.iter().chain(&ALONE).map(|step| pipeline(step)));
    }
    let mut differences = Vec::new();
    for rule in &rules {
        let cgroup = Cgroup::new().unwrap();
        let agent = cassandra.agent_with(&cgroup, "enrich", "closed", rule);
        let by_user = rule.starts_with("user");
        for (case, tries) in &directly {
            let through = run_in(None, Some(&cgroup), || case.told(&cassandra)).unwrap();
            // Before the log-in has ended, a rule with `user` refuses what the database would refuse.
            let is_refused = by_user && !matches!(case.moment, Moment::LoggedIn | Moment::Among);
            let may_end = case.is_early() || is_refused;
            // What waits for the log-in there, Cassandra may refuse as too early.
            let has_waited = by_user && case.moment == Moment::BehindLogIn && through.1;
            if !tries.contains(&through) && !has_waited && (!may_end || through.1) {
                differences.push(format!("{rule}\n{case:?}: {through:?}, not {tries:?}"));
            }
        }
        drop(agent);
    }
    println!(
        "{} conversations through {} rules",
        directly.len(),
        rules.len()
    );
    assert_eq!(differences, [""; 0]);
}
