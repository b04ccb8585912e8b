//! What a flow does when a mark asks something of it: at once, on its own task.
//!
//! A flow that is decoded can stop being decoded anywhere, because a relay needs no frames. One
//! that is not decoded cannot begin: nobody knows where in a frame it is.

use dataplane::policy::Action;

use super::{close::MARKED, decode::Decoder};
use crate::{
    flows::Flow,
    orders::{Answer, Order},
};

const AT_CONNECT: &str = "whether a flow is observed is decided at connect()";
const NO_FRAMES: &str = "it is not decoded, and nobody knows where in a frame it is";
const ENDING: &str = "it is being closed";
const DECIDED: &str = "it was decided meanwhile";

/// Does what the letter in the flow's mailbox asks. Gives the reason for which it ends, if it does.
pub(super) fn obey(flow: &Flow, decoder: Option<&mut Decoder>) -> Option<&'static str> {
    let letter = flow.mailbox.take()?;
    let answer = answer(flow, decoder, &letter.order);
    let answer = match answer {
        Answer::CouldNot(why) if letter.order.reset => Answer::Reset(why),
        other => other,
    };
    let denied = answer == Answer::Changed && letter.order.action == Action::Deny;
    letter.answer(answer);
    (denied || matches!(answer, Answer::Reset(_))).then_some(MARKED)
}

fn answer(flow: &Flow, mut decoder: Option<&mut Decoder>, order: &Order) -> Answer {
    let is_ending = decoder.as_deref().is_some_and(Decoder::is_ending);
    let gate = decoder.as_deref_mut().and_then(Decoder::open_gate);
    match (order.action, &order.ask, gate) {
        (_, Some(policy), Some(gate)) => {
            gate.ask(policy.clone());
            Answer::Asked
        }
        (_, Some(_), None) => Answer::CouldNot(DECIDED),
        (Action::Observe, None, _) => Answer::CouldNot(AT_CONNECT),
        (Action::Deny, None, _) => {
            flow.is_by(&order.by, Action::Deny);
            Answer::Changed
        }
        (action, None, Some(gate)) => {
            flow.is_by(&order.by, action);
            gate.mark(action);
            decoder.map(Decoder::look_at_gate);
            Answer::Changed
        }
        (_, None, None) if is_ending => Answer::CouldNot(ENDING),
        (Action::Enrich, None, None) => match decoder {
            Some(decoder) if decoder.decodes() => Answer::Already,
            _ => Answer::CouldNot(NO_FRAMES),
        },
        (Action::Bypass, None, None) => match decoder {
            Some(decoder) if decoder.decodes() => {
                flow.is_by(&order.by, Action::Bypass);
                decoder.stop();
                Answer::Changed
            }
            _ => Answer::Already,
        },
    }
}
