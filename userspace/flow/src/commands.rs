//! The commands of marks to one running flow, on their way to the flow's own task, and the answers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::Waker,
};

use parking_lot::{Mutex, MutexGuard};
use policy::{Action, Policy, RuleName};
use tokio::sync::oneshot;

use crate::CloseReason;

/// A command to a flow.
#[derive(Clone, Debug)]
pub struct FlowCommand {
    /// The action that the flow is to get.
    pub action: Action,
    /// The mark that gives the command.
    pub by: RuleName,
    /// Whether the flow is to be closed if it cannot get that action.
    pub reset: bool,
    /// The policy that is to decide the flow, where the flow's session has to tell whether the mark
    /// matches. It begins with the mark.
    pub ask: Option<Arc<Policy>>,
    /// The reason for which the flow is to be closed. If set, that is the whole command.
    pub closing: Option<CloseReason>,
}

impl FlowCommand {
    /// Makes the command to close a flow, whose action stays as it is until then.
    pub fn close(reason: CloseReason) -> Self {
        Self {
            action: Action::Deny,
            by: RuleName::of_default(),
            reset: true,
            ask: None,
            closing: Some(reason),
        }
    }
}

/// The outcome of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The flow has the action that it was to get.
    Changed,
    /// The flow's session will tell whether the mark matches.
    Asked,
    /// The flow had that action before.
    Already,
    /// The flow cannot get that action, for this reason.
    CouldNot(&'static str),
    /// The flow cannot get that action, for this reason, and is closed.
    Reset(&'static str),
}

/// A command, and the way to answer it.
#[derive(Debug)]
pub struct PostedCommand {
    /// The command.
    pub command: FlowCommand,
    answer: oneshot::Sender<Answer>,
}

impl PostedCommand {
    /// Answers the command. Nobody may be waiting for the answer any more.
    pub fn answer(self, answer: Answer) {
        let _ = self.answer.send(answer);
    }
}

/// A slot for one command to a flow: a later command replaces an unread one.
#[derive(Debug, Default)]
pub struct CommandSlot {
    /// Whether there is a command. The flow's task looks at it whenever it runs, so it costs one
    /// load.
    full: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    waiting: Option<PostedCommand>,
    reader: Option<Waker>,
    closed: bool,
}

impl CommandSlot {
    /// Leaves a command. The answer never comes when the flow ends, or another command comes first.
    pub fn post(&self, command: FlowCommand) -> oneshot::Receiver<Answer> {
        let (answer, answered) = oneshot::channel();
        let mut inner = self.lock();
        if inner.closed {
            return answered;
        }
        inner.waiting = Some(PostedCommand { command, answer });
        self.full.store(true, Relaxed);
        drop(inner);
        self.wake();
        answered
    }

    /// Wakes the reader.
    pub fn wake(&self) {
        let reader = self.lock().reader.clone();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// Notes the task that reads. A task keeps its waker for its whole life.
    pub fn read_by(&self, reader: &Waker) {
        self.lock().reader = Some(reader.clone());
    }

    /// Whether there is a command. The reader is woken when one comes.
    pub fn is_full(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Takes the command out.
    pub fn take(&self) -> Option<PostedCommand> {
        let mut inner = self.lock();
        self.full.store(false, Relaxed);
        inner.waiting.take()
    }

    /// Takes the command out, unless it asks for this action.
    pub fn take_unless(&self, action: Action) -> Option<PostedCommand> {
        let mut inner = self.lock();
        let taken = inner.waiting.take_if(|c| c.command.action != action);
        self.full.store(inner.waiting.is_some(), Relaxed);
        taken
    }

    /// Closes the slot, because the flow has ended: nothing is read any more.
    pub fn close(&self) {
        let mut inner = self.lock();
        *inner = Inner {
            closed: true,
            ..Inner::default()
        };
    }

    /// Whether the flow has ended.
    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> FlowCommand {
        FlowCommand {
            action: Action::Bypass,
            by: RuleName::new("mark-1"),
            reset: false,
            ask: None,
            closing: None,
        }
    }

    #[test]
    fn a_command_is_read_once_and_answered() {
        let slot = CommandSlot::default();
        assert!(!slot.is_full());
        let mut answered = slot.post(command());
        assert!(slot.is_full());
        slot.take().unwrap().answer(Answer::Changed);
        assert!(!slot.is_full() && slot.take().is_none());
        assert_eq!(answered.try_recv(), Ok(Answer::Changed));
    }

    #[test]
    fn a_command_that_somebody_else_has_to_read_stays() {
        let slot = CommandSlot::default();
        let mut answered = slot.post(command());
        assert!(slot.take_unless(Action::Bypass).is_none() && slot.is_full());
        let command = slot.take_unless(Action::Enrich).unwrap();
        command.answer(Answer::Already);
        assert!(!slot.is_full() && slot.take_unless(Action::Enrich).is_none());
        assert_eq!(answered.try_recv(), Ok(Answer::Already));
    }

    #[test]
    fn commands_that_nobody_reads_are_not_waited_for() {
        let slot = CommandSlot::default();
        let mut first = slot.post(command());
        let mut second = slot.post(command());
        assert!(first.try_recv().is_err() && slot.is_full());
        slot.close();
        assert_eq!(second.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let mut third = slot.post(command());
        assert_eq!(third.try_recv(), Err(oneshot::error::TryRecvError::Closed));
    }
}
