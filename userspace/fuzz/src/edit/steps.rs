//! The pipelines through which the editor's input goes.

use cql::Opcode;
use cql_edit::transforms::TransformSettings;
use cql_edit::{
    Caller, CompletionSink, Error, Outcome, Pipeline, Refused, Request, Resolution, Response,
    Ticket, Transform,
};
use std::sync::{Arc, Mutex};

use crate::vault::protect;

/// A pipeline, and the properties that hold for it.
pub struct Steps {
    pub make: fn(&Arc<Later>) -> Pipeline,
    /// Something may not go on as it came.
    pub changes: bool,
    /// Equal bytes go on each time, however they are cut.
    pub repeats: bool,
}

pub const STEPS: [Steps; 5] = [
    Steps {
        make: |_| Arc::from([Arc::new(Looks) as Arc<dyn Transform>]),
        changes: false,
        repeats: true,
    },
    Steps {
        make: |_| settings(&ALTERS),
        changes: true,
        repeats: true,
    },
    Steps {
        make: |_| settings(&NAMES),
        changes: true,
        repeats: true,
    },
    // Whichever values are encrypted, each has a nonce of its own.
    Steps {
        make: |_| Arc::from([protect(&[("ks.t", &["v", "w"])])]),
        changes: true,
        repeats: true,
    },
    Steps {
        make: |later| Arc::from([Arc::new(Waits(later.clone())) as Arc<dyn Transform>]),
        changes: true,
        repeats: true,
    },
];

const ALTERS: [&str; 6] = [
    "transform = \"guard\"\nrefuse = [\"truncate\", \"ddl\"]\nmax_batch = 2\nmax_in = 2",
    "transform = \"throttle\"\nrate = 100\nburst = 10\nmode = \"overloaded\"",
    "transform = \"consistency\"\nat_least = \"LOCAL_QUORUM\"",
    "transform = \"paging\"\nat_most = 9",
    "transform = \"tracing\"\none_in = 3",
    "transform = \"tag\"\nservice = \"s\"",
];

const NAMES: [&str; 1] = [
    "transform = \"rewrite\"\naddresses = \"dialled\"\nmax_ttl = \"1h\"\n\
    default_ttl = \"1m\"\nkeyspaces = { ks = \"other\" }\ntables = { \"ks.t\" = \"other.u\" }",
];

fn settings(steps: &[&str]) -> Pipeline {
    let step = |text: &&str| {
        let settings: TransformSettings = toml::from_str(text).expect(text);
        settings.build().expect(text)
    };
    steps.iter().map(step).collect()
}

/// Is shown everything, and changes nothing.
#[derive(Debug)]
struct Looks;

impl Transform for Looks {
    fn name(&self) -> &'static str {
        "looks"
    }

    fn wants(&self, _: Opcode) -> bool {
        true
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let _ = request.statements().count();
        let _ = (request.question(), request.copied(), request.mergeable());
        request.await_response(7);
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        assert_eq!(number, 7);
        let _ = (response.error(), response.prepared_id(), response.proper());
        let _ = (response.bindings(), response.has_rows());
        false
    }
}

/// Has half of what it is shown wait, requests and responses.
#[derive(Debug)]
struct Waits(Arc<Later>);

/// The decisions on what is suspended.
#[derive(Debug, Default)]
pub struct Later {
    tickets: Mutex<Vec<(u64, Ticket)>>,
    letters: Mutex<Vec<(u64, Option<Resolution>)>>,
}

impl CompletionSink for Later {
    fn put(&self, number: u64, resolution: Option<Resolution>) {
        self.letters.lock().unwrap().push((number, resolution));
    }
}

impl Later {
    /// Decides of everything that waits, by what it was noted with, but keeps every sixth.
    pub fn said(&self) -> Vec<(u64, Option<Resolution>)> {
        let (keep, decide): (Vec<_>, Vec<_>) = std::mem::take(&mut *self.tickets.lock().unwrap())
            .into_iter()
            .partition(|(note, _)| note % 6 == 5);
        *self.tickets.lock().unwrap() = keep;
        for (note, ticket) in decide {
            match note % 6 {
                0 => ticket.resolve(Resolution::Pass),
                1 => ticket.resolve(Resolution::Answer(vec![0, 0, 0, 1])),
                2 => ticket.resolve(Resolution::Refuse(Refused {
                    reason: "so",
                    error: Error::Overloaded("later".into()),
                })),
                3 => ticket.resolve(Resolution::Instead(vec![0; 9])),
                _ => drop(ticket),
            }
        }
        std::mem::take(&mut *self.letters.lock().unwrap())
    }

    fn waits(&self, note: u64, ticket: Option<Ticket>) {
        if let Some(ticket) = ticket {
            self.tickets.lock().unwrap().push((note, ticket));
        }
    }
}

impl Transform for Waits {
    fn name(&self) -> &'static str {
        "waits"
    }

    fn wants(&self, _: Opcode) -> bool {
        true
    }

    fn request(&self, request: &mut Request<'_>, _: &Caller, _: u64) -> Outcome {
        let note = request.body_bytes() as u64;
        if note & 8 != 0 {
            request.await_response(note);
        }
        if note & 1 != 0 {
            let ticket = request.suspend();
            self.0.waits(note / 2, ticket);
        }
        Outcome::Pass
    }

    fn response(&self, response: &mut Response<'_>, _: &Caller, number: u64) -> bool {
        let ticket = response.suspend();
        self.0.waits(number / 16, ticket);
        false
    }
}
