//! The commands of marks to a running flow, which the flow's own task carries out at once.
//!
//! A flow that is decoded can stop being decoded anywhere, because a relay needs no frames. A flow
//! that is not decoded starts to be decoded at its next frames, where it is known where those are.

use flow::{
    CloseReason, Flow,
    commands::{Answer, FlowCommand, PostedCommand},
};
use policy::Action;

use super::{decode::Decoder, relay::Relay};

const AT_CONNECT: &str = "whether a flow is observed is decided at connect()";
const CARRIED: &str = "the kernel carries it";
const ENDING: &str = "it is being closed";
const DECIDED: &str = "it was decided meanwhile";

/// Carries out a command. Returns the close reason if the command ends the flow. Without a
/// relay, the kernel has the flow.
pub(super) fn apply_command(
    flow: &Flow,
    posted: PostedCommand,
    relay: Option<&mut Relay>,
) -> Option<CloseReason> {
    if let Some(reason) = posted.command.closing {
        posted.answer(Answer::Changed);
        return Some(reason);
    }
    let answer = answer(flow, relay, &posted.command);
    let answer = match answer {
        Answer::CouldNot(why) if posted.command.reset => Answer::Reset(why),
        other => other,
    };
    let denied = answer == Answer::Changed && posted.command.action == Action::Deny;
    posted.answer(answer);
    (denied || matches!(answer, Answer::Reset(_))).then_some(CloseReason::Marked)
}

fn answer(flow: &Flow, mut relay: Option<&mut Relay>, command: &FlowCommand) -> Answer {
    let mut decoder = relay.as_deref_mut().and_then(Relay::decoder);
    let is_ending = decoder.as_deref().is_some_and(Decoder::is_ending);
    let gate = decoder.as_deref_mut().and_then(Decoder::open_gate);
    match (command.action, &command.ask, gate) {
        (_, Some(policy), Some(gate)) => {
            gate.ask(policy.clone());
            Answer::Asked
        }
        (_, Some(_), None) => Answer::CouldNot(DECIDED),
        (Action::Observe, None, _) => Answer::CouldNot(AT_CONNECT),
        (Action::Deny, None, _) => {
            flow.set_action(&command.by, Action::Deny);
            Answer::Changed
        }
        (action, None, Some(gate)) => {
            flow.set_action(&command.by, action);
            gate.mark(action);
            decoder.map(Decoder::apply_mark);
            Answer::Changed
        }
        (_, None, None) if is_ending => Answer::CouldNot(ENDING),
        (Action::Enrich, None, None) => match decoder {
            Some(decoder) if decoder.decodes() => Answer::Already,
            _ => enrich(relay, command),
        },
        (Action::Bypass, None, None) => match decoder {
            Some(decoder) if decoder.decodes() => {
                flow.set_action(&command.by, Action::Bypass);
                decoder.stop();
                Answer::Changed
            }
            _ => Answer::Already,
        },
    }
}

fn enrich(relay: Option<&mut Relay>, command: &FlowCommand) -> Answer {
    match relay.map(|relay| relay.enrich(&command.by)) {
        Some(Ok(())) => Answer::Changed,
        Some(Err(why)) => Answer::CouldNot(why.as_str()),
        None => Answer::CouldNot(CARRIED),
    }
}
