//! Shortcuts whose agents are dead: their sockets leave the sockmaps, so that FIONREAD tells all again.

use dataplane::{readers::LOOK_EVERY, shortcut::ShortcutReaders};
use tokio::time::{self, Instant};

/// The most shortcuts that are looked after, one for each agent that has died and left sockets.
const MOST: usize = 16;

/// The shortcuts, and when to look at each.
#[derive(Default)]
pub(super) struct Orphans(Vec<(Instant, ShortcutReaders)>);

impl Orphans {
    /// Takes the shortcut of an agent that has died, if it had one.
    pub(super) fn add(&mut self, shortcut: Option<ShortcutReaders>) {
        let Some(shortcut) = shortcut.filter(|s| !s.is_empty()) else {
            return;
        };
        if self.0.len() == MOST {
            tracing::warn!(
                "nobody looks after readers on the shortcut: {MOST} agents before have left some"
            );
            return;
        }
        self.0.push((Instant::now() + LOOK_EVERY, shortcut));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until it is time to look.
    pub(super) async fn due(&self) {
        match self.0.iter().map(|(next, _)| *next).min() {
            Some(next) => time::sleep_until(next).await,
            None => std::future::pending().await,
        }
    }

    /// Looks at those whose time has come, and forgets those that every socket has left.
    pub(super) fn look(&mut self) {
        let now = Instant::now();
        self.0.retain_mut(|(next, shortcut)| {
            if *next > now {
                return true;
            }
            match shortcut.look(|_| ()) {
                Ok(pause) => {
                    *next = Instant::now() + pause;
                    !shortcut.is_empty()
                }
                Err(error) => {
                    tracing::warn!(%error, "nobody looks after readers on the shortcut any more");
                    false
                }
            }
        });
    }
}
