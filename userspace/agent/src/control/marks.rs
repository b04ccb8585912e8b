//! The marks of operators: set, listed, and ended when their time is over.

use tokio::time::Instant;

use super::Control;
use crate::marks::{Asked, FlowNumber, Set, Wanted};

impl Control {
    /// Puts the marks of an agent into force from which this one takes over.
    ///
    /// # Errors
    /// One of them cannot be.
    pub fn carry_on(&mut self, marks: &[Wanted]) -> anyhow::Result<()> {
        for wanted in marks {
            let set = self.set(wanted);
            set.map_err(|why| anyhow::anyhow!("the mark {}: {why}", wanted.target))?;
        }
        Ok(())
    }

    pub(super) fn answer(&mut self, asked: Asked) {
        self.end_marks();
        // The one that asked may have gone.
        match asked {
            Asked::Set(wanted, answer) => drop(answer.send(self.set(&wanted))),
            Asked::List(answer) => drop(answer.send(self.marks.views())),
            Asked::End(id, answer) => {
                let mark = self.marks.remove(id);
                if let Some(mark) = &mark {
                    tracing::info!(mark = id, selector = %mark.target, "mark removed");
                    self.ended(mark.target.holds_later());
                }
                drop(answer.send(mark));
            }
        }
    }

    fn set(&mut self, wanted: &Wanted) -> Result<Set, String> {
        let mark = self.marks.add(wanted)?;
        if !mark.target.holds_later() {
            // The processes that it matches are to be looked at again, as when the policy changes.
            self.forget_remembered();
        } else if let Err(error) = self.put(&self.config.policy.clone()) {
            self.marks.remove(mark.id);
            return Err(format!("{error:#}"));
        }
        self.metrics.marks.active.set(self.marks.len() as i64);
        tracing::info!(
            mark = mark.id,
            selector = %mark.target,
            action = mark.action.as_str(),
            lasts = ?wanted.lasts,
            reset = wanted.reset,
            "marked"
        );
        Ok(Set {
            mark,
            policy: self.told.policy.borrow().clone(),
        })
    }

    /// Ends marks whose time is over, and those of flows that have gone.
    pub(super) fn end_marks(&mut self) {
        let is_gone = |number| match number {
            FlowNumber::Carried(id) => !self.shared.flows.has(id),
            // The agent cannot change it: there is nothing to remember.
            FlowNumber::Untouched(_) => true,
        };
        let ended = self.marks.end(Instant::now(), is_gone);
        for mark in &ended {
            tracing::info!(mark = mark.id, selector = %mark.target, "mark ended");
        }
        self.ended(ended.iter().any(|mark| mark.target.holds_later()));
    }

    /// Marks have ended; `later`: connections met one of them.
    fn ended(&mut self, later: bool) {
        self.metrics.marks.active.set(self.marks.len() as i64);
        self.stale |= later;
        if self.stale
            && let Err(error) = self.put(&self.config.policy.clone())
        {
            tracing::error!("cannot take a mark or a container out of force: {error:#}");
        }
    }
}
