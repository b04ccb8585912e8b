//! Steps beside the one that merges: what they are shown, and what they may do; and flows that leave their
//! pipeline, or whose client does not keep to the protocol.

use std::sync::{Arc, Mutex};

use cql::Opcode;
use cql_edit::{Caller, Error, Outcome, Refused, Request, Response, Transform};

use super::{
    BATCH, ERROR, EXECUTE, Merges, RefusesBatches, answers, execute, flow_of, id, read, sent, short,
};
use crate::support::edit::*;
use crate::support::{QUERY, ask, table};

/// The frames that a step was shown, in its order: an opcode of a request, or the number of a response and
/// its error's code.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    Asked(Opcode),
    Told(u64, Option<i32>),
}

use Shown::{Asked, Told};

/// A step's treatment of a batch's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    Nothing,
    Answers,
    Fails,
    Refuses,
}

/// Sees everything, and asks for each response, by how many requests came before.
#[derive(Debug)]
struct Sees {
    shown: Arc<Mutex<Vec<Shown>>>,
    does: Does,
    must_see: bool,
}

fn sees(does: Does, must_see: bool) -> (Arc<dyn Transform>, Arc<Mutex<Vec<Shown>>>) {
    let shown = Arc::<Mutex<Vec<Shown>>>::default();
    let step = Sees {
        shown: shown.clone(),
        does,
        must_see,
    };
    (Arc::new(step), shown)
}

fn all_of(shown: &Mutex<Vec<Shown>>) -> Vec<Shown> {
    std::mem::take(&mut *shown.lock().unwrap())
}

impl Transform for Sees {
    fn name(&self) -> &'static str {
        "sees"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        matches!(opcode, Opcode::Execute | Opcode::Query | Opcode::Batch)
    }

    fn must_see(&self) -> bool {
        self.must_see
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let mut shown = self.shown.lock().unwrap();
        let number = shown.len() as u64;
        shown.push(Asked(request.opcode()));
        if self.does == Does::Answers && request.opcode() == Opcode::Batch {
            return Outcome::Answer;
        }
        request.await_response(number);
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        let mut shown = self.shown.lock().unwrap();
        shown.push(Told(number, response.error()));
        let error = Error::Overloaded("no".to_owned());
        match self.does {
            Does::Nothing | Does::Answers => return false,
            Does::Fails => response.fail(&error),
            Does::Refuses => {
                let reason = "no";
                response.refuse(Refused { reason, error });
            }
        }
        true
    }
}

const UNPREPARED: i32 = 0x2500;
const OVERLOADED: i32 = 0x1001;
const WRITE_TIMEOUT: i32 = 0x1100;

fn void(kind: Kind, stream: i16) -> Vec<u8> {
    kind.sent(0x80, stream, 0x08, &1_u32.to_be_bytes())
}

fn code(body: &[u8]) -> i32 {
    i32::from_be_bytes(*body.first_chunk().unwrap())
}

/// Streams and the codes of their errors.
fn errors(kind: Kind, bytes: &[u8]) -> Vec<(i16, i32)> {
    let frames = read(kind, bytes).into_iter();
    let errors = frames.map(|(stream, opcode, body)| {
        assert_eq!(opcode, ERROR);
        (stream, code(&body))
    });
    errors.collect()
}

fn merges() -> Arc<dyn Transform> {
    Arc::new(Merges::default())
}

#[test]
fn what_waited_is_older_to_the_steps_behind_too() {
    for kind in KINDS {
        let (step, shown) = sees(Does::Nothing, false);
        let (mut edits, _) = flow_of(kind, vec![merges(), step]);
        let query = kind.sent(0, 9, QUERY, &ask(kind.version, &table(1)));
        let all = [execute(kind, 7), execute(kind, 8), query.clone()];
        let passed = edits.requests(&all.concat());
        let order: Vec<u8> = kind.read(&passed).iter().map(|frame| frame[4]).collect();
        assert_eq!(order, [BATCH, QUERY], "{kind:?}");
        // As it was sent.
        assert_eq!(kind.read(&passed).last(), kind.read(&query).last());
        let expected = [Asked(Opcode::Batch), Asked(Opcode::Query)];
        assert_eq!(all_of(&shown), expected, "{kind:?}");
    }
}

#[test]
fn a_step_before_sees_each_request_and_its_own_answer() {
    for kind in KINDS {
        let asked = vec![Asked(Opcode::Execute); 3];
        let (step, shown) = sees(Does::Nothing, false);
        let (mut edits, _) = flow_of(kind, vec![step, merges()]);
        sent(kind, &mut edits, &[7, 8, 9]);
        answers(&mut edits, &void(kind, 7));
        // Those that ride are told before the one that leads.
        let told = [1, 2, 0].map(|number| Told(number, None));
        assert_eq!(all_of(&shown), [&asked[..], &told].concat(), "{kind:?}");

        sent(kind, &mut edits, &[7, 8, 9]);
        let body = [&UNPREPARED.to_be_bytes()[..], &short(b"no"), &short(&id(8))];
        let told = answers(&mut edits, &kind.sent(0x80, 7, ERROR, &body.concat()));
        let again = [7, 8, 9].map(|stream| (stream, UNPREPARED));
        assert_eq!(errors(kind, &told), again);
        let told = [1, 2, 0].map(|number| Told(number, Some(UNPREPARED)));
        assert_eq!(all_of(&shown), [&asked[..], &told].concat(), "{kind:?}");
    }
}

#[test]
fn what_a_step_behind_makes_of_the_answer_is_everybodys() {
    for kind in KINDS {
        for does in [Does::Fails, Does::Refuses] {
            let (behind, shown) = sees(does, false);
            let (mut edits, _) = flow_of(kind, vec![merges(), behind]);
            sent(kind, &mut edits, &[7, 8, 9]);
            let told = answers(&mut edits, &void(kind, 7));
            let expected = [7, 8, 9].map(|stream| (stream, OVERLOADED));
            assert_eq!(errors(kind, &told), expected, "{kind:?} {does:?}");
            assert_eq!(all_of(&shown), [Asked(Opcode::Batch), Told(0, None)]);
            assert!(edits.editor.can_leave());
        }
        let (behind, _) = sees(Does::Answers, false);
        let (mut edits, _) = flow_of(kind, vec![merges(), behind]);
        assert!(sent(kind, &mut edits, &[7, 8, 9]).is_empty());
        let told = edits.editor.answers().unwrap();
        let void = |stream| (stream, 0x08, 1_u32.to_be_bytes().to_vec());
        assert_eq!(read(kind, &told), [void(7), void(8), void(9)], "{kind:?}");
    }
}

#[test]
fn a_refusal_is_said_of_each_that_it_is_about() {
    for kind in KINDS {
        let (mut edits, _) = flow_of(kind, vec![merges(), Arc::new(RefusesBatches)]);
        sent(kind, &mut edits, &[7, 8, 9]);
        assert_eq!(edits.noted.refused, 3, "{kind:?}");
    }
}

/// A step behind that does not know one of the statements.
#[derive(Debug)]
struct WantsAgain(i16);

impl Transform for WantsAgain {
    fn name(&self) -> &'static str {
        "wants_again"
    }

    fn wants(&self, opcode: Opcode) -> bool {
        opcode == Opcode::Batch
    }

    fn request(&self, _: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        Outcome::Refuse(Refused {
            reason: "unprepared",
            error: Error::Unprepared(id(self.0)),
        })
    }
}

#[test]
fn a_step_behind_that_knows_one_of_them_not_has_each_prepare_its_own() {
    for kind in KINDS {
        for unknown in [7, 8] {
            let (mut edits, _) = flow_of(kind, vec![merges(), Arc::new(WantsAgain(unknown))]);
            assert!(sent(kind, &mut edits, &[7, 8, 9]).is_empty());
            let told = edits.editor.answers().unwrap();
            let found = read(kind, &told);
            assert_eq!(found.len(), 3);
            for (stream, opcode, body) in found {
                assert_eq!((opcode, code(&body)), (ERROR, UNPREPARED));
                assert!(body.ends_with(&short(&id(stream))), "{kind:?}");
            }
        }
    }
}

#[test]
fn a_flow_leaves_its_pipeline_when_everybody_was_told() {
    for kind in KINDS {
        let (mut edits, _) = flow_of(kind, vec![merges()]);
        sent(kind, &mut edits, &[7, 8, 9, 10]);
        edits.editor.give_up(0, true, &mut edits.noted);
        // By itself.
        let late = edits.editor.late().unwrap();
        assert_eq!(kind.read(&late), kind.read(&execute(kind, 10)));
        assert!(!edits.editor.can_leave(), "a batch is out");
        let none: Vec<Arc<dyn Transform>> = Vec::new();
        edits.editor.becomes(none.into(), Caller::default());
        let alone = execute(kind, 11);
        assert_eq!(edits.requests(&alone), alone, "{kind:?}");
        assert!(!edits.editor.can_leave());
        let told = answers(&mut edits, &[void(kind, 11), void(kind, 7)].concat());
        let streams: Vec<i16> = read(kind, &told).iter().map(|frame| frame.0).collect();
        assert_eq!(streams, [7, 8, 9, 11], "{kind:?}");
        assert!(edits.editor.can_leave());
    }
}

#[test]
fn a_stream_that_waits_in_a_batch_is_not_used_again_where_somebody_must_see_its_response() {
    for kind in KINDS {
        let (step, _) = sees(Does::Nothing, true);
        let (mut edits, _) = flow_of(kind, vec![step, merges()]);
        sent(kind, &mut edits, &[7, 8, 9]);
        for stream in [7, 8, 9] {
            assert!(sent(kind, &mut edits, &[stream]).is_empty());
            let told = edits.editor.answers().unwrap();
            assert_eq!(errors(kind, &told), [(stream, 0x000A)], "{kind:?}");
        }
        // The batch is still out.
        let told = answers(&mut edits, &void(kind, 7));
        let streams: Vec<i16> = read(kind, &told).iter().map(|frame| frame.0).collect();
        assert_eq!(streams, [7, 8, 9], "{kind:?}");
    }
}

#[test]
fn a_stream_that_leads_and_is_used_again_leaves_nobody_waiting() {
    for kind in KINDS {
        let (mut edits, _) = flow_of(kind, vec![merges()]);
        sent(kind, &mut edits, &[7, 8, 9]);
        let query = kind.sent(0, 7, QUERY, &ask(kind.version, &table(1)));
        assert_eq!(edits.requests(&query), query);
        let told = edits.editor.answers().unwrap();
        let expected = [8, 9].map(|stream| (stream, WRITE_TIMEOUT));
        assert_eq!(errors(kind, &told), expected, "{kind:?}");
        // It leads none before both are answered.
        let opcodes = |bytes: &[u8]| -> Vec<u8> {
            let frames = kind.read(bytes);
            frames.iter().map(|frame| frame[4]).collect()
        };
        let passed = sent(kind, &mut edits, &[7]);
        assert_eq!(opcodes(&passed), [EXECUTE], "{kind:?}");
        for _ in 0..3 {
            edits.frees(7);
        }
        let passed = sent(kind, &mut edits, &[7, 8, 9]);
        assert_eq!(opcodes(&passed), [BATCH], "{kind:?}");
    }
}
