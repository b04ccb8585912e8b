//! The application of a mark to running flows.

use std::{
    collections::{BTreeMap, HashMap},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use dataplane::{ClientAddr, OrigDst, Process, Untouched, host};
use flow::{
    Flow, Holds, Known,
    commands::{Answer, FlowCommand},
};
use policy::{Action, Policy, RuleName, Session};
use proxy::{ProxyContext, tap::Listed};
use serde::Serialize;
use telemetry::MARKED_RESULTS;
use tokio::{
    sync::oneshot,
    time::{self, Instant},
};

use super::{
    Mark,
    selector::{FlowNumber, Target},
};
use crate::{
    observed::{self, SharedDataplane},
    shortcuts,
};

/// A flow's task answers in microseconds, unless it waits for its database.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Flows that an answer names; of further ones it gives their number.
const LISTED: usize = 1_000;

const NOT_CARRIED: &str = "the agent does not carry it: it was decided at connect()";
const TAPPED: &str = "the agent does not carry it, and reads copies: with `path = \"inline\"` new connections can be changed";
const SILENT: &str = "it waits for its database";
const ENDED: &str = "it has ended meanwhile";

/// The outcome for one flow.
#[derive(Debug, Serialize)]
pub(super) struct FlowResult {
    flow: String,
    client: Option<String>,
    pid: u32,
    process: String,
    orig_dst: String,
    /// The action until now, of a flow that the agent carries. None: its session was to tell.
    was: Option<&'static str>,
    result: &'static str,
    why: Option<&'static str>,
}

/// The outcome for all flows.
#[derive(Debug, Serialize)]
pub(super) struct Applied {
    /// The number of flows by result.
    counts: BTreeMap<&'static str, usize>,
    /// The number of flows that may match, but whose session was not looked at; they are left
    /// alone.
    unknown: usize,
    flows: Vec<FlowResult>,
    /// The number of flows that are not listed.
    more: usize,
}

/// The flows that a mark matches.
#[derive(Default)]
struct Meant {
    /// The flows that the agent carries, each with whether its session has to tell.
    carried: Vec<(Arc<Flow>, bool)>,
    /// The flows that are left alone.
    untouched: Vec<LeftAlone>,
    unknown: usize,
}

/// A flow that is left alone, and of which the kernel keeps what it is.
struct LeftAlone {
    id: FlowNumber,
    flow: Untouched,
    rule: RuleName,
    /// The flow's action. None: its session has to be known for that.
    action: Option<Action>,
    /// The flow's session, if copies are read.
    session: Option<Session>,
}

impl LeftAlone {
    fn observed(flow: Untouched, listed: Option<Listed>) -> Self {
        let Some(listed) = listed else {
            return Self::of(flow, Action::Observe);
        };
        let read = listed.flow.as_deref();
        let session = Some(observed::session(read));
        let asked = read.filter(|_| listed.is_asked).map(Flow::decided);
        let (rule, action) = match asked {
            Some(asked) => (asked.rule, asked.action),
            None => {
                let action = (!flow.is_undecided).then_some(Action::Enrich);
                (flow.rule.clone(), action)
            }
        };
        Self {
            id: FlowNumber::Carried(listed.id),
            flow,
            rule,
            action,
            session,
        }
    }

    fn of(flow: Untouched, action: Action) -> Self {
        Self {
            id: FlowNumber::Untouched(flow.cookie.number()),
            rule: flow.rule.clone(),
            flow,
            action: Some(action),
            session: None,
        }
    }
}

/// Asks every flow that `mark` matches to become what it says, and counts the answers.
pub(super) async fn apply(
    shared: &Arc<ProxyContext>,
    dataplane: &SharedDataplane,
    mark: &Arc<Mark>,
    policy: &Arc<Policy>,
    reset: bool,
) -> Applied {
    let meant = {
        let (shared, dataplane, mark) = (shared.clone(), dataplane.clone(), mark.clone());
        tokio::task::spawn_blocking(move || meant(&shared, &dataplane, &mark)).await
    };
    let meant = meant.unwrap_or_else(|error| {
        tracing::error!(%error, "cannot read the flows that a mark selects");
        Meant::default()
    });
    let posted: Vec<_> = meant
        .carried
        .into_iter()
        .map(|(flow, ask)| {
            let command = FlowCommand {
                action: mark.action,
                by: mark.rule.clone(),
                reset,
                ask: ask.then(|| policy.clone()),
                closing: None,
            };
            let was = flow.decided().action.map(Action::as_str);
            let answered = flow.commands.post(command);
            (flow, was, answered)
        })
        .collect();
    let deadline = Instant::now() + ANSWER_LIMIT;
    let mut flows = Vec::new();
    for (flow, was, answered) in posted {
        let answer = answer(&flow, answered, deadline).await;
        let client = Some(flow.client);
        let id = FlowNumber::Carried(flow.id);
        let result = result(id, client, &flow.process, flow.orig_dst, answer);
        flows.push(FlowResult { was, ..result });
    }
    flows.extend(meant.untouched.iter().map(|left_alone| {
        let answer = match left_alone.action == Some(mark.action) {
            true => Answer::Already,
            false if left_alone.flow.is_tapped => Answer::CouldNot(TAPPED),
            false => Answer::CouldNot(NOT_CARRIED),
        };
        let flow = &left_alone.flow;
        let id = left_alone.id;
        result(id, flow.client, &flow.process, flow.orig_dst, answer)
    }));
    count(shared, mark, flows, meant.unknown)
}

fn count(
    shared: &ProxyContext,
    mark: &Mark,
    mut flows: Vec<FlowResult>,
    unknown: usize,
) -> Applied {
    let mut counts: BTreeMap<&str, usize> = MARKED_RESULTS.map(|result| (result, 0)).into();
    for flow in &flows {
        *counts.entry(flow.result).or_default() += 1;
        let counter = &shared.metrics.marks.flows;
        counter.with_label_values(&[flow.result]).inc();
    }
    mark.count(counts.get("changed").map_or(0, |n| *n as u64));
    // The results that are most worth reading come first.
    flows.sort_by_key(|flow| MARKED_RESULTS.iter().rev().position(|r| *r == flow.result));
    let more = flows.len().saturating_sub(LISTED);
    flows.truncate(LISTED);
    Applied {
        counts,
        unknown,
        flows,
        more,
    }
}

/// All flows that are left alone, and of which the kernel keeps what they are.
fn untouched(
    shared: &ProxyContext,
    dataplane: &SharedDataplane,
) -> impl Iterator<Item = LeftAlone> {
    let observed = observed::flows(dataplane, shared).into_iter();
    let shortcuts = shortcuts::flows(dataplane).into_iter();
    let shortcuts = shortcuts.map(|on| LeftAlone::of(on.flow, Action::Bypass));
    observed
        .map(|(flow, listed)| LeftAlone::observed(flow, listed))
        .chain(shortcuts)
}

/// The flow of this number that is left alone.
fn left_alone(
    shared: &ProxyContext,
    dataplane: &SharedDataplane,
    number: FlowNumber,
) -> Option<LeftAlone> {
    untouched(shared, dataplane).find(|left_alone| left_alone.id == number)
}

/// Whether a flow of this number is there.
pub(super) fn is_there(
    shared: &ProxyContext,
    dataplane: &SharedDataplane,
    number: FlowNumber,
) -> bool {
    let is_carried = matches!(number, FlowNumber::Carried(id) if shared.flows.has(id));
    is_carried || left_alone(shared, dataplane, number).is_some()
}

fn meant(shared: &ProxyContext, dataplane: &SharedDataplane, mark: &Mark) -> Meant {
    let mut meant = Meant::default();
    let mut cgroups = Cgroups::default();
    match &mark.target {
        Target::Flow(number) => {
            let carried = match number {
                FlowNumber::Carried(id) => shared.flows.get(*id),
                FlowNumber::Untouched(_) => None,
            };
            match carried {
                Some(flow) => meant.carried.push((flow, false)),
                None => meant
                    .untouched
                    .extend(left_alone(shared, dataplane, *number)),
            }
        }
        Target::Selector(selector) => {
            for flow in shared.flows.all() {
                match flow.is_meant_by(selector, || cgroups.of(&flow.process)) {
                    Holds::Yes => meant.carried.push((flow, false)),
                    Holds::Later => meant.carried.push((flow, true)),
                    Holds::Unknown => meant.unknown += 1,
                    Holds::No => {}
                }
            }
            // All: looking a cgroup up takes files, and the data plane would wait for them.
            for left_alone in untouched(shared, dataplane) {
                let flow = &left_alone.flow;
                let known = Known {
                    to: flow.orig_dst,
                    process: &flow.process,
                    rules: [&flow.rule, &left_alone.rule],
                    session: left_alone.session.as_ref(),
                    undecided: false,
                };
                match selector.holds(&known, || cgroups.of(&flow.process)) {
                    Holds::Yes => meant.untouched.push(left_alone),
                    Holds::Unknown => meant.unknown += 1,
                    Holds::No | Holds::Later => {}
                }
            }
        }
    }
    meant
}

/// Processes have many flows, and looking their cgroup up takes files.
#[derive(Default)]
struct Cgroups(HashMap<(u32, u64), Option<PathBuf>>);

impl Cgroups {
    fn of(&mut self, process: &Process) -> Option<PathBuf> {
        let (pid, id) = (process.pid, process.cgroup_id);
        let known = self.0.entry((pid, id));
        known.or_insert_with(|| host::cgroup_of(pid, id)).clone()
    }
}

async fn answer(flow: &Flow, mut answered: oneshot::Receiver<Answer>, until: Instant) -> Answer {
    if let Ok(answer) = time::timeout_at(until, &mut answered).await {
        return answer.unwrap_or(Answer::CouldNot(ENDED));
    }
    // A command that is taken back is not carried out later.
    if flow.commands.take().is_some() {
        return Answer::CouldNot(SILENT);
    }
    // The flow is reading it.
    answered.await.unwrap_or(Answer::CouldNot(ENDED))
}

fn result(
    flow: FlowNumber,
    client: Option<ClientAddr>,
    process: &Process,
    orig_dst: OrigDst,
    answer: Answer,
) -> FlowResult {
    let (result, why) = match answer {
        Answer::Changed => ("changed", None),
        Answer::Asked => ("asked", Some("its session will tell")),
        Answer::Already => ("already", None),
        Answer::CouldNot(why) => ("could_not", Some(why)),
        Answer::Reset(why) => ("reset", Some(why)),
    };
    FlowResult {
        flow: flow.to_string(),
        client: client.map(|client| client.to_string()),
        pid: process.pid,
        process: process.name.clone(),
        orig_dst: orig_dst.to_string(),
        was: None,
        result,
        why,
    }
}
