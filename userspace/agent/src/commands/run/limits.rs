//! The limits that this host sets to what the file asks for.

use dataplane::{DESCRIPTORS_PER_NAMESPACE, host};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use proxy::{STRAGGLERS, keeper};

use crate::backends;

/// Descriptors for everything that is not one of `max_flows`: listeners, maps, programs, logs,
/// the admin interface, checks of backends, flows that arrive while the hook is being told, and those that are on their
/// way to the keeper.
const OTHER_DESCRIPTORS: u64 =
    256 + (backends::MAX_CHECKED + 2 * (STRAGGLERS + keeper::WAITING)) as u64;

/// Bounds the number of namespaces: none where callers could not be found.
pub(super) fn max_namespaces(wanted: usize) -> usize {
    if wanted > 0 && !host::sees_every_process() {
        tracing::warn!(
            "other network namespaces are not served: the agent does not see their processes; run it in the host's PID namespace"
        );
        return 0;
    }
    wanted
}

/// Raises the limit of descriptors to two for each flow. Returns how many flows there may be: fewer than asked for where the
/// host does not give that many descriptors.
pub(super) fn allow_flows(wanted_flows: usize, namespaces: usize) -> anyhow::Result<usize> {
    let others = OTHER_DESCRIPTORS + (namespaces * DESCRIPTORS_PER_NAMESPACE) as u64;
    let wanted = wanted_flows as u64 * 2 + others;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let raised = setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok();
    if raised {
        return Ok(wanted_flows);
    }
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    let fit = (hard.saturating_sub(others) / 2) as usize;
    if fit < wanted_flows {
        tracing::warn!(
            "max_flows is {fit} instead of {wanted_flows}: only {hard} descriptors are allowed \
             (raise LimitNOFILE)"
        );
    }
    Ok(fit.clamp(1, wanted_flows))
}

#[cfg(test)]
mod tests {
    use dataplane::MAX_NAMESPACES;

    use super::*;
    use crate::config::MAX_FLOWS;

    #[test]
    fn the_unit_gives_the_descriptors_of_the_most_flows() {
        let unit = include_str!("../../../../../packaging/underpass.service");
        let line = unit
            .lines()
            .find_map(|line| line.strip_prefix("LimitNOFILE="));
        let given: u64 = line.unwrap().parse().unwrap();
        let namespaces = (MAX_NAMESPACES * DESCRIPTORS_PER_NAMESPACE) as u64;
        assert!(given >= 2 * MAX_FLOWS as u64 + namespaces + OTHER_DESCRIPTORS);
    }
}
