//! The meter's hooks: attached while a rule observes, because every packet of the cgroup pays
//! for them.

use std::fs::File;

use aya::{
    Ebpf,
    programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, cgroup_skb::CgroupSkbLinkId},
};

use crate::{
    attach::{AttachError, program, refused},
    load,
};

const HOOKS: [(&str, CgroupSkbAttachType); 2] = [
    ("meter_requests", CgroupSkbAttachType::Egress),
    ("meter_answers", CgroupSkbAttachType::Ingress),
];

/// Those that are attached.
#[derive(Default)]
pub(crate) struct MeterHooks(Vec<(&'static str, CgroupSkbLinkId)>);

impl MeterHooks {
    pub(crate) fn are_attached(&self) -> bool {
        !self.0.is_empty()
    }

    /// Attaches them, unless they are. Called before a policy that observes is in force: a flow
    /// whose SYN is not seen is not read.
    pub(crate) fn attach(&mut self, ebpf: &mut Ebpf, cgroup: &File) -> Result<(), AttachError> {
        if !self.0.is_empty() {
            return Ok(());
        }
        let attached = HOOKS
            .into_iter()
            .try_for_each(|(name, kind)| self.attach_one(ebpf, cgroup, name, kind));
        if attached.is_err() {
            // Half a meter would pass for a whole one.
            self.detach(ebpf)?;
        }
        attached
    }

    fn attach_one(
        &mut self,
        ebpf: &mut Ebpf,
        cgroup: &File,
        name: &'static str,
        kind: CgroupSkbAttachType,
    ) -> Result<(), AttachError> {
        let hook: &mut CgroupSkb = program(ebpf, name)?;
        if hook.fd().is_err() {
            load::insist(|| hook.load()).map_err(refused(name))?;
        }
        let link = hook.attach(cgroup, kind, CgroupAttachMode::Single);
        self.0.push((name, link.map_err(refused(name))?));
        Ok(())
    }

    /// Takes them away, if they are there.
    pub(crate) fn detach(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        for (name, link) in self.0.drain(..) {
            let hook: &mut CgroupSkb = program(ebpf, name)?;
            hook.detach(link).map_err(refused(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
