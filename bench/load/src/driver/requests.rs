//! The requests of one thread: which operation comes next, with which key, to which target.

use anyhow::Context;

use crate::{
    keys::{Place, Source, random::Random},
    order::Seed,
    plan::{self, Mix},
    raw::protocol::{At, Draw},
    values::Values,
    workload::Job,
};

/// A thread's operations.
pub struct Requests {
    mix: Mix,
    /// For each operation, whether its keys are new.
    new_keys: Vec<bool>,
    /// The sources of keys, one for each target.
    sources: Vec<Source>,
    /// The target whose turn it is.
    turn: usize,
    random: Random,
    values: Values,
}

impl Requests {
    /// Makes the requests of each thread of a job.
    ///
    /// # Errors
    /// The job does not fit the targets.
    pub fn of_threads(job: &Job, targets: usize, seed: Seed) -> anyhow::Result<Vec<Self>> {
        let groups = plan::groups(job)?;
        let [group] = &*groups else {
            anyhow::bail!("a driver chooses connections itself: operations cannot have their own");
        };
        let values = Values::new(job, seed.value);
        let in_flight = (job.connections * job.depth).div_ceil(job.threads);
        let of_thread = |thread: usize| {
            let place = Place {
                line: thread,
                lines: job.threads,
            };
            let source = |_| Source::new(&job.keys, place, in_flight, seed.number);
            Self {
                mix: group.mix.clone(),
                new_keys: job.operations.iter().map(|o| o.new_key).collect(),
                sources: (0..targets).map(source).collect(),
                turn: thread,
                random: Random::new(seed.value, thread as u64),
                values: values.for_thread(seed, thread as u64),
            }
        };
        Ok((0..job.threads).map(of_thread).collect())
    }

    /// The next operation: its target, its place, and where its values come from.
    ///
    /// # Errors
    /// None in practice: jobs are checked.
    pub fn next(&mut self) -> anyhow::Result<(usize, At, Draw<'_>)> {
        let target = self.turn % self.sources.len().max(1);
        self.turn += 1;
        let operation = self.mix.pick(&mut self.random);
        let new_key = *self.new_keys.get(operation).context("no operation")?;
        let source = self.sources.get_mut(target).context("no target")?;
        let key = if new_key {
            source.another()
        } else {
            source
                .existing(&mut self.random)
                .context("no key is left")?
        };
        let at = At {
            slot: 0,
            operation,
            step: 0,
            key,
            new_key,
        };
        let draw = Draw {
            source,
            random: &mut self.random,
            values: &mut self.values,
        };
        Ok((target, at, draw))
    }
}
