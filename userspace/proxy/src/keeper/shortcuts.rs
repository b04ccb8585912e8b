//! Shortcuts whose agents are dead or do not run: sockets leave the sockmaps whose readers FIONREAD may not tell of what
//! waits.

use std::{io, time::Duration};

use dataplane::{readers::LOOK_EVERY, shortcut::ShortcutReaders};
use telemetry::Rarely;
use tokio::time::{self, Instant};

/// The most shortcuts that are looked after, one for each agent that has died and left sockets.
const MOST: usize = 16;

/// The pause after a look that has failed, as for want of descriptors: some readers wait for it.
const NOT_AGAIN_FOR: Duration = Duration::from_secs(1);

/// Lines about such looks.
static FAILED: Rarely = Rarely::failing();

/// A shortcut, and when to look at it.
struct Timed {
    next: Instant,
    readers: ShortcutReaders,
}

/// The shortcuts.
#[derive(Default)]
pub(super) struct Shortcuts {
    /// The one of the agent that lives.
    agents: Option<Timed>,
    /// The agent did not run at the last look.
    is_agent_away: bool,
    orphans: Vec<Timed>,
}

impl Shortcuts {
    /// Takes the shortcut of the agent that lives.
    pub(super) fn take(&mut self, readers: ShortcutReaders) {
        let next = Instant::now() + LOOK_EVERY;
        self.agents = Some(Timed { next, readers });
        self.is_agent_away = false;
    }

    /// Goes on with the shortcut of the agent, which has died, if it had one.
    pub(super) fn agent_died(&mut self) {
        let Some(mut left) = self.agents.take() else {
            return;
        };
        // Also at one that nobody is on: who has left it last may wait for a nudge.
        left.readers.take_over();
        if self.orphans.len() == MOST {
            look(&mut left.readers);
            if left.readers.is_idle() {
                return;
            }
            tracing::warn!(
                "nobody looks after readers on the shortcut: {MOST} agents before have left some"
            );
            return;
        }
        let next = Instant::now();
        self.orphans.push(Timed { next, ..left });
    }

    /// Whether nobody is on the shortcut of an agent that is dead, or has left it and waits for a nudge.
    pub(super) fn has_no_orphans(&self) -> bool {
        self.orphans.is_empty()
    }

    /// Waits until it is time to look.
    pub(super) async fn due(&self) {
        let all = self.orphans.iter().chain(&self.agents);
        match all.map(|timed| timed.next).min() {
            Some(next) => time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Looks at those whose time has come, and forgets those that every socket has left and been nudged.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        self.orphans.retain_mut(|orphan| {
            if orphan.next > now {
                return true;
            }
            let pause = look(&mut orphan.readers);
            orphan.next = Instant::now() + pause;
            !orphan.readers.is_idle()
        });
        if let Some(timed) = self.agents.as_mut().filter(|timed| timed.next <= now) {
            let was_away = self.is_agent_away;
            // It is kept whatever fails: when the agent dies somebody has to go on with it.
            let looked = look_beside(&mut timed.readers).unwrap_or_else(|error| {
                not_looked(&error);
                (was_away, NOT_AGAIN_FOR)
            });
            self.is_agent_away = looked.0;
            timed.next = Instant::now() + looked.1;
            if self.is_agent_away && !was_away {
                tracing::warn!(
                    "the agent does not run: its keeper looks after readers on the shortcut"
                );
            }
        }
    }
}

/// Looks in the place of an agent that is dead. Returns the pause until this is to be called again.
fn look(readers: &mut ShortcutReaders) -> Duration {
    readers.look(|_| ()).unwrap_or_else(|error| {
        not_looked(&error);
        NOT_AGAIN_FOR
    })
}

fn not_looked(error: &io::Error) {
    FAILED.say(|not_said_before| {
        tracing::warn!(
            %error,
            not_said_before,
            "the look after readers on the shortcut fails, and is tried again every second"
        );
    });
}

/// Looks in the place of an agent that lives, if it has not said so in time. Returns whether somebody is on its shortcut who
/// was looked at, and the pause until this is to be called again.
fn look_beside(readers: &mut ShortcutReaders) -> io::Result<(bool, Duration)> {
    let stays_open = readers.stays_open()?;
    if !stays_open.is_zero() {
        let open = stays_open.max(LOOK_EVERY);
        let nudge = readers.nudge_beside()?;
        return Ok((false, nudge.map_or(open, |nudge| nudge.min(open))));
    }
    let pause = readers.look_beside()?;
    Ok(match readers.is_idle() {
        true => (false, NOBODY_FOR),
        false => (true, pause),
    })
}

/// The pause while nobody is on the shortcut of an agent that does not say that it lives: it has closed it, perhaps. No longer
/// than an agent says that it lives: one that has run in between is seen.
const NOBODY_FOR: Duration = Duration::from_secs(5);
