//! The meter's hooks: attached while a rule observes, because every packet of the cgroup pays
//! for them. On a kernel that does not take them (`bpf_loop` is of 5.17) flows are left alone
//! unobserved.

use std::fs::File;

use aya::{
    Ebpf,
    programs::{CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, cgroup_skb::CgroupSkbLinkId},
};

use crate::{
    attach::{AttachError, program, reasons, refused},
    load,
    probe_result::ProbeResult,
};

const HOOKS: [(&str, CgroupSkbAttachType); 2] = [
    ("meter_requests", CgroupSkbAttachType::Egress),
    ("meter_answers", CgroupSkbAttachType::Ingress),
];

const PATH: &str = "observe";

/// Has this kernel verify them; nothing is attached. Needs root.
pub(crate) fn try_out() -> ProbeResult {
    ProbeResult::of(PATH, || {
        let mut ebpf = load::load().map_err(|e| reasons(&e))?;
        let mut hooks = HOOKS.into_iter();
        hooks.try_for_each(|(name, _)| {
            let loaded = load_one(&mut ebpf, name).map(drop);
            loaded.map_err(|e| e.to_string())
        })
    })
}

fn load_one<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut CgroupSkb, AttachError> {
    let hook: &mut CgroupSkb = program(ebpf, name)?;
    if hook.fd().is_err() {
        load::retry_load(|| hook.load()).map_err(refused(name))?;
    }
    Ok(hook)
}

/// The meter's hooks that are attached.
#[derive(Default)]
pub(crate) struct MeterHooks {
    attached: Vec<(&'static str, CgroupSkbLinkId)>,
    /// The result of probing, to be told once.
    tried: Option<ProbeResult>,
}

impl MeterHooks {
    pub(crate) fn are_attached(&self) -> bool {
        !self.attached.is_empty()
    }

    /// Called before a policy that observes is in force: a flow whose SYN is not seen is not read.
    /// Where they cannot be had, it is the caller's to say so to the kernel.
    pub(crate) fn open(&mut self, ebpf: &mut Ebpf, cgroup: &File) {
        if self.are_attached() {
            return;
        }
        let tried = ProbeResult::of(PATH, || {
            self.attach(ebpf, cgroup).map_err(|e| e.to_string())
        });
        self.tried = Some(tried);
    }

    /// The result of probing, if it is new since the last call.
    pub(crate) fn tell(&mut self) -> Option<ProbeResult> {
        self.tried.take()
    }

    fn attach(&mut self, ebpf: &mut Ebpf, cgroup: &File) -> Result<(), AttachError> {
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
        let hook = load_one(ebpf, name)?;
        let link = hook.attach(cgroup, kind, CgroupAttachMode::Single);
        self.attached.push((name, link.map_err(refused(name))?));
        Ok(())
    }

    /// Takes them away, if they are there.
    pub(crate) fn detach(&mut self, ebpf: &mut Ebpf) -> Result<(), AttachError> {
        for (name, link) in self.attached.drain(..) {
            let hook: &mut CgroupSkb = program(ebpf, name)?;
            hook.detach(link).map_err(refused(name))?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "meter_tests.rs"]
mod tests;
