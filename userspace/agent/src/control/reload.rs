//! The files, read again: on SIGHUP, and when they have changed. Put into force whole or not at all.

use std::sync::{Arc, PoisonError};

use policy::{RuleName, Timestamp};
use telemetry::{NOT_RELOADED, RELOADED};
use tls::TlsRules;
use tokio::time::Instant;

use super::{Control, own::Failed};
use crate::config::{Config, ConfigError, InForce, Sources};

impl Control {
    pub(super) fn look_at_file(&mut self) {
        let failed = self.failed.as_ref();
        let is_due = failed.is_some_and(|failed| failed.again <= Instant::now());
        match self.read() {
            Ok(sources) if sources != self.sources && !self.waits_for_names(&sources) => {
                self.end_wait();
                self.reload();
            }
            Ok(sources) if is_due && sources == self.sources && !self.waits_for_names(&sources) => {
                self.end_wait();
                self.try_again();
            }
            // A file that is gone for a moment is being replaced.
            Err(error) if !error.is_absent() && !self.unreadable => {
                self.unreadable = true;
                self.reload();
            }
            _ => {}
        }
    }

    /// Reads the host's files, and adds the fleet's that are in force.
    fn read(&self) -> Result<Sources, ConfigError> {
        Ok(Sources::read(&self.file)?.with(&self.from_fleet.good))
    }

    /// Reads the file again because somebody asks for it. Journals are opened anew in any case. A file that says what is in
    /// force already is no change, unless it names keys or certificates, which may be others by now.
    pub(super) fn hang_up(&mut self) {
        // One that has changed, and waits, is put into force as if nobody had asked.
        if let Ok(sources) = self.read()
            && sources != self.sources
            && self.waits_for_names(&sources)
        {
            return;
        }
        let names_others =
            self.told.pipelines.borrow().has_keys() || !self.told.tls.borrow().is_empty();
        let is_new = self.stale || self.failed.is_some() || names_others;
        if is_new || !self.read().is_ok_and(|found| found == self.sources) {
            return self.reload();
        }
        match self.try_reload() {
            Ok(()) => {
                tracing::debug!(file = %self.file.display(), "the file has not changed");
                self.offer_again();
            }
            Err(error) => self.refuse(error),
        }
    }

    fn reload(&mut self) {
        match self.try_reload() {
            Ok(()) => {
                self.reloaded(Ok(()));
                self.offer_again();
            }
            Err(error) => self.refuse(error),
        }
    }

    /// Tries files again that were refused. The same refusal is no news.
    fn try_again(&mut self) {
        let told = self.failed.as_ref().map(|failed| failed.why.clone());
        match self.try_reload() {
            Ok(()) => {
                self.reloaded(Ok(()));
                self.offer_again();
            }
            Err(error) if told == Some(error.to_string()) => self.note(told.map(Failed::with)),
            Err(error) => self.refuse(error),
        }
    }

    fn refuse(&mut self, error: anyhow::Error) {
        self.reloaded(Err(error));
        self.follow_names();
        self.doubt_objects();
    }

    /// Notes whether the host's files are refused.
    pub(super) fn note(&mut self, failed: Option<Failed>) {
        let is_refused = failed.is_some();
        self.failed = failed;
        self.metrics.is_file_refused.set(i64::from(is_refused));
    }

    fn reloaded(&mut self, result: anyhow::Result<()>) {
        let error = result.as_ref().err();
        self.note(error.map(|error| Failed::with(error.to_string())));
        match result {
            Ok(()) => self.untold_reloads += 1,
            Err(error) => {
                tracing::error!("cannot reload the file, the old policy stays in force: {error}");
                let reloads = &self.metrics.reloads;
                reloads.with_label_values(&[NOT_RELOADED]).inc();
            }
        }
    }

    /// Tells and counts that files were read again and are in force.
    pub(super) fn tell_reloads(&mut self) {
        for _ in 0..std::mem::take(&mut self.untold_reloads) {
            tracing::info!(file = %self.file.display(), "policy reloaded");
            let reloads = &self.metrics.reloads;
            reloads.with_label_values(&[RELOADED]).inc();
        }
    }

    fn try_reload(&mut self) -> anyhow::Result<()> {
        let sources = self.read()?;
        self.try_sources(sources)
    }

    pub(super) fn try_sources(&mut self, sources: Sources) -> anyhow::Result<()> {
        let is_new = sources != self.sources || self.failed.is_some();
        let config = self.config.again(&sources);
        // Remembered even when it is bad, so that a mistake is reported once.
        self.sources = sources;
        self.unreadable = false;
        let config = config?;
        let tls = self.told.tls.borrow().clone();
        let tls = tls.reload(&config.tls)?;
        let before = self.triggers.clone();
        let ended = self.triggers.set(config.triggers.clone());
        let opened = config.pipelines.open(&self.shared.services);
        let opened = opened.and_then(|()| self.push_metrics(&config));
        if let Err(error) = opened.and_then(|()| self.put_with_edge(&config, tls)) {
            self.triggers = before;
            self.restore_edge();
            self.restore_journals();
            return Err(error);
        }
        self.let_go(&ended);
        self.show_triggers();
        let old = &self.config.warnings;
        for warning in config
            .warnings
            .iter()
            .filter(|one| is_new && !old.contains(one))
        {
            tracing::warn!("{warning}");
        }
        if is_new && lasting(&self.config) != lasting(&config) {
            tracing::warn!(
                "[agent], [host] name, [policy], [limits], [log] format, [containers] or [[incoming]] changed: restart the agent for it to take effect"
            );
        }
        if self.config.health != config.health {
            self.told.health.send_replace(config.health.clone());
        }
        if self.config.log_level != config.log_level {
            self.heard.log.change_level(&config.log_level);
        }
        self.config.log_level = config.log_level;
        self.config.health = config.health;
        self.config.metrics_push = config.metrics_push;
        self.config.warnings = config.warnings;
        self.config.clusters = config.clusters;
        self.config.policy = config.policy;
        self.follow_names();
        self.config.triggers = config.triggers;
        self.config.xdp = config.xdp;
        self.note(None);
        self.told.in_force.send_modify(|in_force| {
            *in_force = Arc::new(InForce {
                began: in_force.began.clone(),
                sources: self.sources.clone(),
                config: self.config.clone(),
            });
        });
        Ok(())
    }

    fn put_with_edge(&mut self, config: &Config, tls: TlsRules) -> anyhow::Result<()> {
        let policy = self.found(&config.policy, Timestamp::now());
        self.edge.apply(&config.xdp, &policy)?;
        // First: no flow meets a new rule without its pipeline, or its certificate.
        let pipelines = Arc::new(config.pipelines.clone());
        let old = self.told.pipelines.send_replace(pipelines);
        let stays = |name: &RuleName| config.policy.rules.iter().any(|rule| rule.name == *name);
        let tls = tls.replacing(&self.told.tls.borrow(), stays);
        let old_tls = self.told.tls.send_replace(Arc::new(tls));
        self.put(&config.policy).inspect_err(|_| {
            self.told.pipelines.send_replace(old);
            self.told.tls.send_replace(old_tls);
        })
    }

    /// Restores the edge as it was before a file that could not be put into force.
    fn restore_edge(&mut self) {
        let policy = self.told.policy.borrow().clone();
        if let Err(error) = self.edge.apply(&self.config.xdp, &policy) {
            tracing::error!("cannot restore the edge: {error:#}");
        }
        let mut dataplane = self
            .dataplane
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let taken = dataplane.as_mut().map(|d| self.take(d, &policy));
        if let Some(Err(error)) = taken {
            tracing::error!("cannot restore virtual addresses: {error:#}");
        }
    }

    /// Restores the journals likewise: some may have the settings of that file by now.
    fn restore_journals(&self) {
        let pipelines = self.told.pipelines.borrow().clone();
        if let Err(error) = pipelines.open_journals(&self.shared.services) {
            tracing::error!("cannot restore journals: {error:#}");
        }
        if let Err(error) = self.push_metrics(&self.config) {
            tracing::error!("cannot send metrics any more: {error:#}");
        }
    }

    /// Has metrics sent as a file says.
    fn push_metrics(&self, config: &Config) -> anyhow::Result<()> {
        let collectors = &self.shared.services.collectors;
        let pushed = collectors.push_metrics(config.metrics_push.as_ref());
        pushed.map_err(|why| anyhow::anyhow!("[otlp]: {why}"))
    }
}

/// The settings that an agent has for as long as it runs.
fn lasting(config: &Config) -> impl PartialEq + '_ {
    (
        (
            &config.admin_socket,
            config.admin,
            config.metrics,
            &config.admin_hosts,
        ),
        &config.control,
        &config.cgroup,
        &config.pins,
        (
            config.max_flows,
            config.user_share,
            config.cgroup_share,
            config.handshake_timeout,
            config.drain,
        ),
        config.max_forwarded,
        config.max_namespaces,
        (config.workers, config.busy_poll),
        (
            config.splice,
            config.tap_ring_bytes,
            config.tap_cpu,
            config.log_format,
        ),
        (&config.containers, &config.record_labels, &config.incoming),
        (&config.host.name, &config.source, &config.limits),
    )
}
