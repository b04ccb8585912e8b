//! OPTIONS, REGISTER, STARTUP, log-ins and USE at times at which no driver sends them: whatever Cassandra answers directly
//! is answered through the steps, on the same streams, and nothing hangs.

use std::time::Duration;

use super::peer::{AUTH_RESPONSE, AUTHENTICATE, Peer, QUERY, STARTUP, startup, token};
use super::{Keys, STEPS, alone, by_themselves};
use crate::cassandra::Cassandra;
use sandbox::{Cgroup, run_in};

const OPTIONS: u8 = 0x05;
const REGISTER: u8 = 0x0B;

/// A time that is long for an answer, and short where none comes.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often Cassandra is asked directly: it is free to answer some requests that come at once in any order.
const TRIES: usize = 2;

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

/// The end of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Everything was answered.
    Answered,
    /// The connection has ended before.
    Closed,
    /// Something was not answered.
    Silent,
}

/// Answers by their streams, and how it ended.
type Answers = Vec<(i16, u8, Option<i32>)>;
type Told = (Answers, End);

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
        let mut told = Vec::new();
        let end = self.turns(cassandra, &mut peer, &mut told);
        told.sort_unstable();
        (told, end.err().unwrap_or(End::Answered))
    }

    fn turns(self, cassandra: &Cassandra, peer: &mut Peer, told: &mut Answers) -> Result<(), End> {
        let odd = self.frames(cassandra, peer);
        let streams = &ODD[..self.times];
        let select = peer.query("SELECT key FROM system.local");
        let is = |moment| self.moment == moment;
        let with = |moment, bytes: Vec<u8>| match is(moment) {
            true => ([bytes, odd.clone()].concat(), streams),
            false => (bytes, &[][..]),
        };
        if is(Moment::BeforeStartup) {
            peer.sends(&odd, false);
            waits(peer, streams, told)?;
        }
        let start = peer.frame(START, STARTUP, &startup(&[]));
        let (start, also) = with(Moment::BehindStartup, start);
        peer.sends(&start, false);
        waits(peer, &[START], told)?;
        if told.iter().any(|(_, opcode, _)| *opcode == AUTHENTICATE) {
            peer.accepted();
        }
        waits(peer, also, told)?;
        if is(Moment::BeforeLogIn) {
            peer.sends(&odd, true);
            waits(peer, streams, told)?;
        }
        let token = token(cassandra, &cassandra.password);
        let log_in = peer.frame(LOG_IN, AUTH_RESPONSE, &token);
        let (log_in, also) = with(Moment::BehindLogIn, log_in);
        peer.sends(&log_in, true);
        waits(peer, &[&[LOG_IN], also].concat(), told)?;
        if is(Moment::LoggedIn) {
            peer.sends(&odd, true);
            waits(peer, streams, told)?;
        }
        if is(Moment::Among) {
            let [first, second, third] = AROUND.map(|s| peer.frame(s, QUERY, &select));
            peer.sends(&[first, odd, second, third].concat(), true);
            waits(peer, &[&AROUND, streams].concat(), told)?;
        }
        peer.sends(&peer.frame(LAST, QUERY, &select), true);
        waits(peer, &[LAST], told)
    }

    /// Whether what comes may be read before the log-in is over, or not at all: that is as Cassandra's threads have it.
    fn may_wait(self) -> bool {
        matches!(self.moment, Moment::BehindStartup | Moment::BehindLogIn)
    }
}

/// A rule, and whether it names the user.
struct Rule {
    text: String,
    is_by_user: bool,
}

impl Rule {
    fn new(steps: &str, user: Option<&str>) -> Self {
        let by_user = user.map(|user| format!("user = [{user:?}]\n"));
        Self {
            is_by_user: user.is_some(),
            text: format!("{}pipeline = [\n{steps},\n]", by_user.unwrap_or_default()),
        }
    }

    /// Whether it may go like that through the rule, where it went like this directly.
    fn allows(&self, case: Case, through: &Told, tries: &[Told]) -> bool {
        // A rule with `user` refuses what the database would refuse before the log-in has ended. A strict step ends the
        // flow of a client that does not wait for the answer to its STARTUP.
        let is_before = !matches!(case.moment, Moment::LoggedIn | Moment::Among);
        let is_early = case.moment == Moment::BehindStartup;
        let may_end = self.is_by_user && is_before || is_early;
        tries.contains(through)
            || through.1 == End::Closed && may_end
            || through.1 == End::Answered && case.may_wait()
    }
}

/// Waits for an answer on each of these streams.
fn waits(peer: &mut Peer, streams: &[i16], told: &mut Answers) -> Result<(), End> {
    for stream in streams {
        while !told.iter().any(|(answered, ..)| answered == stream) {
            match peer.comes(PATIENCE) {
                Ok(Some(answer)) => told.push(answer),
                Ok(None) => return Err(End::Closed),
                Err(_) => return Err(End::Silent),
            }
        }
    }
    Ok(())
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
    let whole = |(_, tries): &&(Case, Vec<Told>)| tries[0].1 == End::Answered;
    assert!(directly.iter().filter(whole).count() > directly.len() / 3);
    // All at once; where log-ins are looked for; and, if time is given, each alone.
    let (all, keys) = (STEPS.join(",\n"), Keys::new());
    let mut rules = vec![
        Rule::new(&all, None),
        Rule::new(&all, Some(&cassandra.user)),
    ];
    if alone().is_some() {
        let steps = by_themselves(&keys);
        rules.extend(steps.iter().map(|step| Rule::new(step, None)));
    }
    let mut differences = Vec::new();
    for rule in &rules {
        let cgroup = Cgroup::new().unwrap();
        let agent = cassandra.agent_with(&cgroup, "enrich", "closed", &rule.text);
        for (case, tries) in &directly {
            let told = || run_in(None, Some(&cgroup), || case.told(&cassandra)).unwrap();
            let mut through = told();
            if through.1 == End::Silent && !rule.allows(*case, &through, tries) {
                // A node that is busy with log-ins is silent for a while, too.
                through = told();
            }
            if !rule.allows(*case, &through, tries) {
                let rule = &rule.text;
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
