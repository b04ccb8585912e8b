//! The register of outside services that steps ask, each with a thread of its own. There is one for
//! each rule and settings, and it outlives a reload that leaves them as they are.

use std::{
    io,
    sync::{Arc, OnceLock, Weak},
    thread,
};

use dataplane::backends::Probe;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// The probe with which all services of a kind connect. Set when the agent attaches to the host,
/// and so before there is a flow.
pub(super) type Dials = Arc<OnceLock<Probe>>;

/// The open services of a kind. A service ends with the last rule or flow that has it.
#[derive(Debug)]
pub(super) struct Register<T> {
    open: Mutex<Vec<Weak<T>>>,
    dials: Dials,
}

impl<T> Register<T> {
    /// Makes the register; no service is open yet.
    pub(super) fn new() -> Self {
        Self {
            open: Mutex::default(),
            dials: Dials::default(),
        }
    }

    /// Gives the services the probe with which they connect from now on.
    pub(super) fn dial_by(&self, probe: Probe) {
        // An agent has one probe for its whole life.
        let _ = self.dials.set(probe);
    }

    /// Returns the open service that `is_same` accepts, or starts one.
    ///
    /// # Errors
    /// The service cannot be started.
    pub(super) fn one(
        &self,
        is_same: impl Fn(&T) -> bool,
        start: impl FnOnce(Dials) -> io::Result<T>,
    ) -> io::Result<Arc<T>> {
        let mut open = self.open.lock();
        open.retain(|one| one.strong_count() > 0);
        let mut all = open.iter().filter_map(Weak::upgrade);
        if let Some(same) = all.find(|one| is_same(one)) {
            return Ok(same);
        }
        let one = Arc::new(start(self.dials.clone())?);
        open.push(Arc::downgrade(&one));
        Ok(one)
    }
}

/// Opens a step's needs once. It is called again when the policy file that was to replace this one
/// could not be put into force.
///
/// # Errors
/// Names what cannot be opened, and the reason.
pub(super) fn once<T>(
    opened: &OnceLock<T>,
    open: impl FnOnce() -> Result<T, String>,
) -> Result<(), String> {
    if opened.get().is_none() {
        let _ = opened.set(open()?);
    }
    Ok(())
}

/// Explains to an operator why a thread cannot be had.
pub(super) fn no_thread(error: io::Error) -> String {
    format!("cannot start a thread for it: {error}")
}

/// Starts a thread with this name and a runtime, for the jobs that are sent to it. It ends with
/// `run`, which sees the channel end when nobody can send any more. The channel has no bound: its
/// senders have one.
///
/// # Errors
/// There can be no more threads, or descriptors.
pub(super) fn start<J: Send + 'static, F: Future<Output = ()>>(
    name: &str,
    run: impl FnOnce(UnboundedReceiver<J>) -> F + Send + 'static,
) -> io::Result<UnboundedSender<J>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()?;
    let (sender, taken) = mpsc::unbounded_channel();
    thread::Builder::new()
        .name(name.to_owned())
        .spawn(move || runtime.block_on(run(taken)))?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_alike_is_one_for_as_long_as_somebody_has_it() {
        let register = Register::new();
        let open = |of: u8| register.one(|one: &(u8, u8)| one.0 == of, |_| Ok((of, 0)));
        let first = open(1).unwrap();
        assert!(Arc::ptr_eq(&first, &open(1).unwrap()));
        let other = open(2).unwrap();
        assert!(!Arc::ptr_eq(&first, &other));
        drop(first);
        // Services that are gone are forgotten, and not found again.
        let started = register.one(|one| one.0 == 1, |_| Ok((1, 9))).unwrap();
        assert_eq!((started.1, register.open.lock().len()), (9, 2));
        let failed = register.one(|one| one.0 == 3, |_| Err(io::ErrorKind::Other.into()));
        assert!(failed.is_err() && register.open.lock().len() == 2);
    }

    #[test]
    fn a_step_opens_once_unless_it_could_not() {
        let opened = OnceLock::new();
        assert_eq!(once(&opened, || Err("no".to_owned())), Err("no".to_owned()));
        once(&opened, || Ok(1)).unwrap();
        once(&opened, || panic!("it is open")).unwrap();
        assert_eq!(opened.get(), Some(&1));
    }

    #[test]
    fn a_thread_takes_what_it_is_sent_and_ends_with_its_senders() {
        let (tells, told) = std::sync::mpsc::channel();
        let sender = start("test", |mut taken: UnboundedReceiver<u8>| async move {
            while let Some(one) = taken.recv().await {
                tells.send(one).unwrap();
            }
        });
        let sender = sender.unwrap();
        sender.send(7).unwrap();
        drop(sender);
        assert_eq!(told.iter().collect::<Vec<_>>(), [7]);
    }
}
