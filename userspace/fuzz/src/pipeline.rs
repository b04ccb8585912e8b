//! Requests through a pipeline to a database, beside the same requests to another one that nothing stands before.
//!
//! For any input: a client gets the same answers from both, but for what the steps' own pages say; a request that is refused is one
//! that a step refuses, and one that a step refuses reaches no database. Steps that ask somebody outside are among them:
//!
//! - `cache`: an answer is one that the database gave, or would have given, between the request and its answer, whenever Redis replies, and
//!   also where its connection is lost.
//! - `coalesce`: each write is answered as it would be alone. At the end the rows are the same.
//! - `protect`: what was hidden comes back, and the database has seen none of it: neither in what has reached it, nor in its rows.
//! - `mirror`: answers are the database's own, or, where a write is to be in both, say that one of two has it: the mirror is away.
//! - `fold`: several clients, whose flows share connections, have each the answers of a direct connection: `fold.rs`.

mod answers;
mod behind;
mod effects;
mod flows;
mod fold;
mod redis;
mod requests;
mod rows;
mod statements;
mod steps;

use cql_edit::protect::PREFIX;

use self::{
    answers::{Answer, Answers},
    behind::{Behind, Database, Done},
    requests::{Choices, Ids, Request, Statements},
    steps::{PIPELINES, Steps},
};
use super::script::{Compression, segment, startup};

/// Requests of an input.
const MAX_REQUESTS: usize = 24;

/// Requests that are on their way at once.
const MAX_UNDER_WAY: usize = 4;

/// The last requests of which one may come again.
const LOOKS_BACK: u8 = 4;

/// The code of a write timeout.
const WRITE_TIMEOUT: i32 = 0x1100;

/// Bits of an input's choice for steps that ask somebody outside: a request comes again that came before; Redis's replies stay on their way, or
/// what was handed over to a shared connection; the connection is lost; what waits for others goes on.
const REPEATS: u8 = 0x01;
const HOLDS: u8 = 0x02;
const LOSES: u8 = 0x1C;
const FALLS_DUE: u8 = 0x20;

/// A request that is on its way.
#[derive(Clone)]
struct Waiting {
    request: Request,
    /// The request as the other database gets it.
    plainly: Vec<u8>,
    /// The answers of the other database: when it was asked, and of a read after each later request, which it may be answered behind.
    expected: Vec<Answer>,
}

/// A client behind a pipeline, and one without.
pub fn pipeline(data: &[u8]) {
    if let Some(([first, second], rest)) = data.split_first_chunk() {
        let steps = &PIPELINES[usize::from(*second) % PIPELINES.len()];
        drive(steps, 3 + first % 3, rest);
    }
}

fn drive(steps: &Steps, version: u8, input: &[u8]) -> Done {
    if steps.folds() {
        return fold::drive(steps, version, input);
    }
    let mut choices = Choices(input);
    let mut behind = Behind::new(steps, version);
    let mut plain = Plain::new(version);
    let opening = startup(version, Compression::None);
    behind.send(&opening);
    behind.receive();
    plain.answers.take(&plain.database.answer(&opening));
    assert_eq!(behind.answers.pop(), plain.answers.pop());

    let (mut ids, mut plain_ids) = (Ids::default(), Ids::default());
    let mut statements = Statements::default();
    let mut made: Vec<Request> = Vec::new();
    let mut under_way: Vec<Option<Waiting>> = vec![None; MAX_UNDER_WAY];
    for _ in 0..MAX_REQUESTS {
        let Some(how) = choices.next_byte() else {
            break;
        };
        let outside = match steps.ask() {
            true => choices.next_byte().unwrap_or(0),
            false => 0,
        };
        behind.now_ns += u64::from(how >> 4) * 50_000_000;
        let Some(stream) = under_way.iter().position(Option::is_none) else {
            break;
        };
        let request = match outside & REPEATS != 0 && !made.is_empty() {
            true => {
                let back = usize::from(choices.of(LOOKS_BACK)) % made.len();
                made[made.len() - 1 - back].clone()
            }
            false => statements.request(&mut choices, [&ids, &plain_ids], steps),
        };
        made.push(request.clone());
        if outside & LOSES == LOSES {
            behind.lose_redis();
        }
        let [bytes, plainly] = request.frames(version, stream as i16, steps);
        let has_passed = behind.send(&sent(version, &bytes));
        // Writes of several partitions may overtake each other: a read that waits behind one could see what no read does without steps.
        if outside & HOLDS == 0 || steps.merges() {
            behind.hear_all();
        }
        if outside & FALLS_DUE != 0 && steps.merges() {
            behind.fall_due();
        }
        let may_refuse = steps.refuses(&request);
        let given = behind.answers.of(stream as i16);
        // What the database says is still on its way.
        match given {
            Some(given) if given.is_error() || !steps.caches() => {
                assert!(
                    !has_passed,
                    "{steps:?} refuses {request:?}, which has passed"
                );
                assert!(
                    may_refuse != Some(false),
                    "{steps:?} refuses {request:?}: {given:?}"
                );
            }
            given => {
                assert!(may_refuse != Some(true), "{steps:?} lets {request:?} pass");
                let plainly = sent(version, &plainly);
                let waiting = Waiting {
                    expected: vec![plain.answer(stream, &plainly)],
                    request,
                    plainly,
                };
                if steps.caches() {
                    plain.answer_again(&mut under_way);
                }
                match given {
                    Some(given) => assert_expected(&given, &waiting, steps),
                    None => under_way[stream] = Some(waiting),
                }
            }
        }
        if how & 0x03 == 0 || under_way.iter().all(Option::is_some) {
            settle(
                &mut behind,
                &mut plain,
                &mut under_way,
                steps,
                [&mut ids, &mut plain_ids],
            );
        }
    }
    settle(
        &mut behind,
        &mut plain,
        &mut under_way,
        steps,
        [&mut ids, &mut plain_ids],
    );
    if steps.ask() {
        compare_rows(&mut behind, &mut plain.database, steps);
    }
    behind.done
}

/// A database behind no steps, and its client.
struct Plain {
    database: Database,
    answers: Answers,
}

impl Plain {
    fn new(version: u8) -> Self {
        Self {
            database: Database::new(&steps::plain_schema()),
            answers: Answers::new(version),
        }
    }

    fn answer(&mut self, stream: usize, request: &[u8]) -> Answer {
        self.answers.take(&self.database.answer(request));
        let answer = self.answers.of(stream as i16);
        answer.expect("an answer at once")
    }

    /// Answers reads again that are on their way.
    fn answer_again(&mut self, under_way: &mut [Option<Waiting>]) {
        for (stream, waiting) in under_way.iter_mut().enumerate() {
            if let Some(waiting) = waiting
                && waiting.request.reads
            {
                let answer = self.answer(stream, &waiting.plainly);
                waiting.expected.push(answer);
            }
        }
    }
}

/// All answers come, and each is what the other database has answered.
fn settle(
    behind: &mut Behind,
    plain: &mut Plain,
    under_way: &mut [Option<Waiting>],
    steps: &Steps,
    [ids, plain_ids]: [&mut Ids; 2],
) {
    behind.finish();
    for (stream, waiting) in under_way.iter_mut().enumerate() {
        let Some(waiting) = waiting.take() else {
            continue;
        };
        let request = &waiting.request;
        let Some(given) = behind.answers.of(stream as i16) else {
            panic!("{steps:?}: no answer to {request:?}");
        };
        assert_expected(&given, &waiting, steps);
        behind.done.half_done += usize::from(given.error() == Some(WRITE_TIMEOUT));
        ids.note(request, &given);
        plain_ids.note(request, &waiting.expected[0]);
    }
    assert_eq!(behind.answers.pop(), None);
    assert_eq!(plain.answers.pop(), None);
}

fn assert_expected(given: &Answer, waiting: &Waiting, steps: &Steps) {
    let Waiting {
        request, expected, ..
    } = waiting;
    let is_expected = |expected| is_alike(given, expected, request, steps);
    assert!(
        expected.iter().any(is_expected),
        "{steps:?}\n{request:?}\ngiven {given:?}\nexpected one of {expected:?}"
    );
}

fn is_alike(given: &Answer, expected: &Answer, request: &Request, steps: &Steps) -> bool {
    if steps.is_strict() && !expected.is_error() && request.writes != Some(false) {
        match (given.error() == Some(WRITE_TIMEOUT), request.writes) {
            (true, _) => return true,
            (false, Some(_)) => return false,
            (false, None) => {}
        }
    }
    if (given.opcode, given.flags) != (expected.opcode, expected.flags) {
        return false;
    }
    match given.is_error() {
        // Texts of errors may say the database's own names.
        true => given.error() == expected.error(),
        false => given.without_ids() == expected.without_ids(),
    }
}

/// The rows of both databases are the same, but for what is encrypted, and that is.
fn compare_rows(behind: &mut Behind, plain: &mut Database, steps: &Steps) {
    for table in ["ks.t", "ks.u"] {
        let columns = match steps.hides() {
            true => "a",
            false => "*",
        };
        let text = format!("SELECT {columns} FROM {table}");
        assert_eq!(behind.database.ask(&text), plain.ask(&text), "{steps:?}");
        if steps.hides() {
            let stored = behind.database.ask(&format!("SELECT v FROM {table}"));
            for value in rows::only_column(&stored) {
                assert!(value.starts_with(PREFIX.as_bytes()), "{value:?}");
                behind.done.sealed += 1;
            }
        }
    }
}

/// A frame as it is sent in this version.
fn sent(version: u8, frame: &[u8]) -> Vec<u8> {
    match version {
        5 => segment(true, frame),
        _ => frame.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inputs for each pipeline, and the bytes of each: more than its requests take.
    const INPUTS: usize = 80;
    const INPUT_BYTES: usize = 1024;

    /// Inputs until its steps have done their work, at most: without, they show nothing of it.
    const MOST_INPUTS: usize = 4_000;

    fn has_worked(steps: &Steps, done: &Done) -> bool {
        let worked = [
            done.answered,
            done.merged,
            done.sealed,
            done.half_done,
            done.shared,
        ];
        let expected = [
            steps.caches(),
            steps.merges(),
            steps.hides(),
            steps.is_strict(),
            steps.folds(),
        ];
        worked.map(|times| times > 0) == expected
    }

    #[test]
    fn what_must_hold_holds_for_inputs_at_random() {
        let mut random = fastrand::Rng::with_seed(17);
        for steps in &PIPELINES {
            let mut done = Done::default();
            let mut inputs = 0;
            while inputs < INPUTS || !has_worked(steps, &done) {
                assert!(inputs < MOST_INPUTS, "{steps:?}: {done:?}");
                let bytes: Vec<u8> = (0..INPUT_BYTES).map(|_| random.u8(..)).collect();
                eprintln!("{steps:?}: {inputs}");
                let by_one = drive(steps, 3 + (inputs % 3) as u8, &bytes);
                done.answered += by_one.answered;
                done.merged += by_one.merged;
                done.sealed += by_one.sealed;
                done.half_done += by_one.half_done;
                done.shared += by_one.shared;
                inputs += 1;
            }
        }
    }
}
