//! The log of a run: faults, troubles that flows had, and which of these no fault explains.

use std::{
    collections::BTreeMap,
    sync::Mutex,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use super::{faults::Fault, routes::Needs};

/// Findings that are kept.
const MOST_FINDINGS: usize = 10_000;

/// Troubles that are kept; one more is a finding. In an hour there are some 70,000: a client that is refused tries again.
const MOST_TROUBLES: usize = 1_000_000;

/// A fault, and the time in which it explains troubles.
#[derive(Clone, Debug)]
pub struct Window {
    pub fault: Fault,
    pub from: Duration,
    /// With the time that recovery may take.
    pub to: Duration,
    /// Whether the kernel carried all spliced flows when it began, and the keeper held them.
    pub kernel_carries: bool,
}

/// Kind of a trouble.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TroubleKind {
    /// A connection ended that should not have.
    Cut,
    /// A connection could not be made, or its first messages did not come.
    Refused,
    /// Somebody waited.
    Waited,
}

/// A trouble that a flow had.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The name of its route or way.
    pub route: &'static str,
    pub needs: Needs,
    pub kind: TroubleKind,
    pub from: Duration,
    pub to: Duration,
    pub text: String,
}

/// See the module. Times are since its beginning.
pub struct Log {
    /// The longest wait without a fault that explains it.
    pub limit: Duration,
    begun: Instant,
    unix: Duration,
    windows: Mutex<Vec<Window>>,
    troubles: Mutex<Vec<Trouble>>,
    findings: Mutex<Vec<String>>,
}

impl Log {
    pub fn new(limit: Duration) -> Self {
        Self {
            limit,
            begun: Instant::now(),
            unix: SystemTime::now().duration_since(UNIX_EPOCH).unwrap(),
            windows: Mutex::default(),
            troubles: Mutex::default(),
            findings: Mutex::default(),
        }
    }

    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// A time that is told in milliseconds since 1970.
    pub fn at(&self, unix_ms: u64) -> Duration {
        Duration::from_millis(unix_ms).saturating_sub(self.unix)
    }

    /// Notes that a fault has been at work since then. `kernel_carries`: see [`Window`].
    pub fn note_fault(&self, fault: Fault, from: Duration, kernel_carries: bool) {
        let to = self.now() + fault.recovery();
        let window = Window {
            fault,
            from,
            to,
            kernel_carries,
        };
        self.windows.lock().unwrap().push(window);
    }

    pub fn windows(&self) -> Vec<Window> {
        self.windows.lock().unwrap().clone()
    }

    /// Notes a trouble of a route that has gone on since then.
    pub fn trouble(
        &self,
        (route, needs): (&'static str, Needs),
        kind: TroubleKind,
        from: Duration,
        text: String,
    ) {
        let to = self.now();
        self.note(Trouble {
            route,
            needs,
            kind,
            from,
            to,
            text,
        });
    }

    /// Notes a trouble.
    pub fn note(&self, trouble: Trouble) {
        let mut troubles = self.troubles.lock().unwrap();
        if troubles.len() <= MOST_TROUBLES {
            troubles.push(trouble);
        }
    }

    /// Notes what no fault explains, and prints it at once.
    pub fn finding(&self, text: String) {
        eprintln!("soak: FOUND at {:.1} s: {text}", self.now().as_secs_f64());
        let mut findings = self.findings.lock().unwrap();
        if findings.len() < MOST_FINDINGS {
            findings.push(text);
        }
    }

    /// Returns all findings, those troubles among them that no fault explains; and how many troubles faults explain, by route and
    /// kind.
    pub fn judge(&self) -> (Vec<String>, BTreeMap<(&'static str, TroubleKind), usize>) {
        let mut found = self.findings.lock().unwrap().clone();
        let (windows, mut explained) = (self.windows(), BTreeMap::new());
        let troubles = self.troubles.lock().unwrap();
        for trouble in troubles.iter() {
            match trouble.is_explained(&windows, self.limit) {
                true => *explained.entry((trouble.route, trouble.kind)).or_default() += 1,
                false => found.push(trouble.describe()),
            }
        }
        if troubles.len() > MOST_TROUBLES {
            found.push(format!("there were more than {MOST_TROUBLES} troubles"));
        }
        (found, explained)
    }
}

impl Trouble {
    /// Whether faults explain it: of a wait, all but this much of its time.
    fn is_explained(&self, windows: &[Window], limit: Duration) -> bool {
        let mut explains: Vec<(Duration, Duration)> = windows
            .iter()
            .filter(|window| self.is_due_to(window))
            .map(|window| (window.from.max(self.from), window.to.min(self.to)))
            .filter(|(from, to)| from <= to)
            .collect();
        explains.sort_unstable();
        if self.kind != TroubleKind::Waited {
            return !explains.is_empty();
        }
        let (mut unexplained, mut at) = (Duration::ZERO, self.from);
        for (from, to) in explains {
            unexplained += from.saturating_sub(at);
            at = at.max(to);
        }
        unexplained + self.to.saturating_sub(at) <= limit
    }

    fn is_due_to(&self, window: &Window) -> bool {
        match window.fault {
            Fault::Machine => self.kind == TroubleKind::Waited,
            fault => self.needs.are_disturbed_by(fault, window.kernel_carries),
        }
    }

    fn describe(&self) -> String {
        let [from, to] = [self.from, self.to].map(|at| at.as_secs_f64());
        let (route, kind, text) = (self.route, self.kind, &self.text);
        format!("{route}: {kind:?} from {from:.1} s to {to:.1} s: {text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn window(fault: Fault, from: u32, to: u32) -> Window {
        Window {
            fault,
            from: from * SECOND,
            to: to * SECOND,
            kernel_carries: false,
        }
    }

    fn trouble(needs: Needs, kind: TroubleKind, from: u32, to: u32) -> Trouble {
        Trouble {
            route: "r",
            needs,
            kind,
            from: from * SECOND,
            to: to * SECOND,
            text: String::new(),
        }
    }

    #[test]
    fn a_fault_explains_what_it_disturbs_while_it_is_at_work() {
        let windows = [window(Fault::Kill, 10, 12), window(Fault::Disk, 20, 30)];
        let is_explained = |needs, kind, from, to| {
            let trouble = trouble(needs, kind, from, to);
            trouble.is_explained(&windows, SECOND)
        };
        use TroubleKind::{Cut, Waited};
        assert!(is_explained(Needs::Agent, Cut, 11, 11));
        assert!(is_explained(Needs::Agent, Cut, 9, 10));
        assert!(!is_explained(Needs::Agent, Cut, 13, 14));
        assert!(!is_explained(Needs::Nobody, Cut, 11, 11));
        assert!(!is_explained(Needs::Agent, Cut, 25, 26));
        // All but a second of it.
        assert!(is_explained(Needs::Agent, Waited, 10, 13));
        assert!(!is_explained(Needs::Agent, Waited, 10, 14));
        assert!(!is_explained(Needs::Journal, Waited, 19, 31));
        assert!(is_explained(Needs::Journal, Waited, 19, 30));
    }
}
