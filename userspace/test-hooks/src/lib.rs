//! Switches by which tests make an agent meet what a host seldom does: full maps, an absent path, a
//! keeper of another version.
//!
//! The agent reads [`VARIABLE`] once, at its start, into a [`TestHooks`]; everything else asks
//! [`get`]. The variable holds `key=value` pairs, separated by commas:
//! `UNDERPASS_TEST_HOOKS=entries=8,without=splice_sender+shortcut`.
//!
//! **Invariant**: a release build ignores the variable. Whoever controls the environment of an
//! agent that serves must not be able to weaken it. Hooks are compiled in only with debug assertions
//! or with the feature `test-hooks`.

use std::{fmt, path::PathBuf, sync::OnceLock, time::Duration};

/// The environment variable that sets hooks.
pub const VARIABLE: &str = "UNDERPASS_TEST_HOOKS";

/// Whether this build has hooks.
pub const ARE_COMPILED_IN: bool = cfg!(any(debug_assertions, feature = "test-hooks"));

/// The hooks of a process. By default all are off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestHooks {
    /// `entries`: entries of every map that has one for each flow or process, instead of tens of
    /// thousands.
    pub entries: Option<u32>,
    /// `connects`: entries of the map of connects under way, any number of which may begin at once
    /// in a test of the other maps.
    pub connects: Option<u32>,
    /// `ring_bytes`: size of the ring by which the agent is told of connects.
    pub ring_bytes: Option<u32>,
    /// `upper_layer_port`: sockets with this port of their own, once enrolled, pass for such as
    /// speak another protocol above TCP. So kTLS that is set up late can be tested on a kernel
    /// without it.
    pub upper_layer_port: Option<u32>,
    /// `host_pages`: pages that the host's TCP is taken to have left, instead of the kernel's own
    /// figure.
    pub host_pages: Option<u64>,
    /// `without`: paths that are taken for unavailable, as on a kernel that lacks them; separated
    /// by `+`.
    pub without: Vec<String>,
    /// `version`: version that a keeper and an agent must have in common, for tests of an upgrade.
    pub version: Option<String>,
    /// `recall_ms`: interval in milliseconds at which every spliced flow is taken back and handed
    /// over again, for soaks.
    pub recall_every: Option<Duration>,
    /// `keeper_log`: file for the keeper's log, where the agent's standard error cannot be passed
    /// on.
    pub keeper_log: Option<PathBuf>,
    /// `keeper_late_ms`: time in milliseconds that a keeper takes to begin.
    pub keeper_late: Option<Duration>,
    /// `shortcut_stays_ms`: time in milliseconds that flows stay on the shortcut when the agent says nothing.
    pub shortcut_stays: Option<Duration>,
    /// `any_journal`: journals may be pipes and devices, which stand for disks that are slow or full.
    pub any_journal: bool,
    /// `strict_calls`: a system call that the filter does not list kills the agent instead of failing, so that no test
    /// passes by a call that should be listed.
    pub strict_calls: bool,
    /// `dies_at`: step of a take-over at which this agent kills itself, as a crash would.
    pub dies_at: Option<String>,
    /// `told_at`: step of a take-over at which this agent tells itself to stop, as SIGTERM would.
    pub told_at: Option<String>,
    /// `hangs_at`: step of a take-over at which this agent stops until SIGCONT, as one that hangs.
    pub hangs_at: Option<String>,
    /// `upgrade_format`: format of the messages that an agent which takes over says that it speaks.
    pub upgrade_format: Option<u32>,
    /// `flow_format`: format of the flows that it says that it takes.
    pub flow_format: Option<u32>,
    /// `panics_at`: text at which the reader of a flow panics.
    pub panics_at: Option<String>,
    /// `tap_looks_panic`: so many times the reader of tapped flows panics when it has read all and looks after them.
    pub tap_looks_panic: u32,
    /// `try_again_ms`: time in milliseconds after which a file that was refused is tried again.
    pub try_again: Option<Duration>,
    /// `resolv_conf`: file that stands for `/etc/resolv.conf`.
    pub resolv_conf: Option<PathBuf>,
}

/// A value of [`VARIABLE`] that cannot be understood.
#[derive(Debug, PartialEq, Eq)]
pub struct Misspelt(String);

impl fmt::Display for Misspelt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VARIABLE}: `{}` is no test hook", self.0)
    }
}

impl std::error::Error for Misspelt {}

static INSTALLED: OnceLock<TestHooks> = OnceLock::new();
static NONE: TestHooks = TestHooks {
    entries: None,
    connects: None,
    ring_bytes: None,
    upper_layer_port: None,
    host_pages: None,
    without: Vec::new(),
    version: None,
    recall_every: None,
    keeper_log: None,
    keeper_late: None,
    shortcut_stays: None,
    any_journal: false,
    strict_calls: false,
    dies_at: None,
    told_at: None,
    hangs_at: None,
    upgrade_format: None,
    flow_format: None,
    panics_at: None,
    tap_looks_panic: 0,
    try_again: None,
    resolv_conf: None,
};

/// Takes the hooks from the environment, for [`get`]. Called once, by `main`, before there are other
/// threads. A build without hooks takes none.
///
/// # Errors
/// A pair in the variable is misspelt.
pub fn install() -> Result<(), Misspelt> {
    if ARE_COMPILED_IN && let Ok(text) = std::env::var(VARIABLE) {
        let hooks = TestHooks::parse(&text)?;
        // The first installation counts; there is no second.
        let _ = INSTALLED.set(hooks);
    }
    Ok(())
}

/// Sets the hooks of a test's own process; the first one to do so decides. A build without hooks takes none.
pub fn set(hooks: TestHooks) {
    if ARE_COMPILED_IN {
        let _ = INSTALLED.set(hooks);
    }
}

/// Returns the hooks of this process: none, unless [`install`] found some.
pub fn get() -> &'static TestHooks {
    INSTALLED.get().unwrap_or(&NONE)
}

impl TestHooks {
    /// Panics if a test has asked for it with text in these bytes.
    ///
    /// # Panics
    /// The text of `panics_at` is in them.
    pub fn may_panic(&self, bytes: &[u8]) {
        if ARE_COMPILED_IN && let Some(text) = &self.panics_at {
            let mut there = bytes.windows(text.len().max(1));
            assert!(
                !there.any(|at| at == text.as_bytes()),
                "a test has asked for it"
            );
        }
    }

    /// Reads `key=value` pairs.
    ///
    /// # Errors
    /// A pair is misspelt.
    pub fn parse(text: &str) -> Result<Self, Misspelt> {
        let mut hooks = Self::default();
        for pair in text.split(',').filter(|pair| !pair.is_empty()) {
            hooks.set(pair).ok_or_else(|| Misspelt(pair.to_owned()))?;
        }
        Ok(hooks)
    }

    fn set(&mut self, pair: &str) -> Option<()> {
        let (key, value) = pair.split_once('=')?;
        match key {
            "entries" => self.entries = Some(value.parse().ok()?),
            "connects" => self.connects = Some(value.parse().ok()?),
            "ring_bytes" => self.ring_bytes = Some(value.parse().ok()?),
            "upper_layer_port" => self.upper_layer_port = Some(value.parse().ok()?),
            "host_pages" => self.host_pages = Some(value.parse().ok()?),
            "without" => self.without = value.split('+').map(str::to_owned).collect(),
            "version" => self.version = Some(value.to_owned()),
            "recall_ms" => self.recall_every = Some(Duration::from_millis(value.parse().ok()?)),
            "keeper_log" => self.keeper_log = Some(value.into()),
            "keeper_late_ms" => self.keeper_late = Some(Duration::from_millis(value.parse().ok()?)),
            "shortcut_stays_ms" => {
                self.shortcut_stays = Some(Duration::from_millis(value.parse().ok()?));
            }
            "any_journal" => self.any_journal = value.parse().ok()?,
            "dies_at" => self.dies_at = Some(value.to_owned()),
            "told_at" => self.told_at = Some(value.to_owned()),
            "hangs_at" => self.hangs_at = Some(value.to_owned()),
            "upgrade_format" => self.upgrade_format = Some(value.parse().ok()?),
            "flow_format" => self.flow_format = Some(value.parse().ok()?),
            "panics_at" => self.panics_at = Some(value.to_owned()),
            "tap_looks_panic" => self.tap_looks_panic = value.parse().ok()?,
            "try_again_ms" => self.try_again = Some(Duration::from_millis(value.parse().ok()?)),
            "resolv_conf" => self.resolv_conf = Some(value.into()),
            "strict_calls" => self.strict_calls = value.parse().ok()?,
            _ => return None,
        }
        Some(())
    }

    /// Returns the reason why a path is off, if a test wants it so.
    pub fn off(&self, path: &str) -> Option<String> {
        let is_named = self.without.iter().any(|named| named == path);
        is_named.then(|| format!("{VARIABLE} names it"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_set_unless_it_is_named() {
        assert_eq!(TestHooks::parse(""), Ok(TestHooks::default()));
        assert_eq!(NONE, TestHooks::default());
        assert_eq!(NONE.off("shortcut"), None);
    }

    #[test]
    fn each_hook_has_a_key() {
        let text = "entries=1,connects=2,ring_bytes=3,upper_layer_port=4,host_pages=0,\
                    without=splice_sender+shortcut,version=other,recall_ms=10,keeper_log=/tmp/log,\
                    keeper_late_ms=20,shortcut_stays_ms=30,any_journal=true,strict_calls=true,\
                    dies_at=taken,told_at=gave,hangs_at=went,upgrade_format=5,flow_format=6,\
                    panics_at=TRUNCATE,tap_looks_panic=3,try_again_ms=40,resolv_conf=/tmp/resolv";
        let hooks = TestHooks::parse(text);
        assert_eq!(
            hooks,
            Ok(TestHooks {
                entries: Some(1),
                connects: Some(2),
                ring_bytes: Some(3),
                upper_layer_port: Some(4),
                host_pages: Some(0),
                without: vec!["splice_sender".into(), "shortcut".into()],
                version: Some("other".into()),
                recall_every: Some(Duration::from_millis(10)),
                keeper_log: Some("/tmp/log".into()),
                keeper_late: Some(Duration::from_millis(20)),
                shortcut_stays: Some(Duration::from_millis(30)),
                any_journal: true,
                strict_calls: true,
                dies_at: Some("taken".into()),
                told_at: Some("gave".into()),
                hangs_at: Some("went".into()),
                upgrade_format: Some(5),
                flow_format: Some(6),
                panics_at: Some("TRUNCATE".into()),
                tap_looks_panic: 3,
                try_again: Some(Duration::from_millis(40)),
                resolv_conf: Some("/tmp/resolv".into()),
            })
        );
        let off = hooks.map(|hooks| ["shortcut", "observe"].map(|path| hooks.off(path).is_some()));
        assert_eq!(off, Ok([true, false]));
    }

    #[test]
    fn misspelt_hooks_are_named() {
        for wrong in ["entries", "entries=many", "entrys=1", "=1"] {
            let error = TestHooks::parse(&format!("connects=1,{wrong}"));
            assert_eq!(error, Err(Misspelt(wrong.to_owned())));
        }
    }
}
