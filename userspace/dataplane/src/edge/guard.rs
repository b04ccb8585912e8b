//! Programs onto interfaces, beside no other's, and off again; those that forward to each other alike.

use std::{fs, path::Path};

use aya::programs::{
    XdpMode,
    links::{FdLink, LinkError},
    xdp::XdpLink,
};
use nix::net::if_::if_nametoindex;

use super::{
    Edge, EdgeError, Forward, Interface, Mode, OnInterface, WantedMode, interface, modes, pins,
    program, tables,
};
use crate::{attach::reasons, sys::PodOf};

/// An interface that is guarded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarded {
    /// Name of the interface.
    pub interface: String,
    /// The mode in which the program runs.
    pub mode: Mode,
    /// Whether the program replaced another agent's, without a gap.
    pub taken_over: bool,
    /// Why it does not run in the driver.
    pub not_native: Option<String>,
}

impl Edge {
    /// Guards these interfaces, and no others any more. To be called after [`Self::install`].
    ///
    /// # Errors
    /// One of them cannot be guarded: it has another's program, or none can be attached. Those
    /// before it are guarded then.
    pub fn guard(&mut self, interfaces: &[Interface]) -> Result<Vec<Guarded>, EdgeError> {
        if interfaces.iter().any(|i| i.forward != Forward::Off) {
            self.tables.set_forwards(&mut self.maps)?;
        }
        let interfaces = modes::alike(interfaces)?;
        let mut guarded = self.guard_each(&interfaces)?;
        if let Some(odd) = modes::odd_one(&interfaces, &guarded) {
            let interfaces = modes::chosen_for_all(&interfaces, WantedMode::Generic);
            let before = std::mem::replace(&mut guarded, self.guard_each(&interfaces)?);
            for ((_, now), (_, before)) in guarded.iter_mut().zip(before) {
                if before.mode != now.mode {
                    now.not_native = Some(format!("{odd} cannot, and they forward to each other"));
                } else {
                    *now = before;
                }
            }
        }
        let ours = |ifindex: u32| guarded.iter().any(|(one, _)| *one == ifindex);
        for (ifindex, path) in self.pins.links()? {
            if !ours(ifindex) || path != self.pins.link(ifindex) {
                let link = pins::open_link(&path);
                fs::remove_file(&path).map_err(crate::pins::at(&path))?;
                drop(link);
            }
            if !ours(ifindex) {
                // It may have had no entry.
                let _ = self.maps.interfaces.remove(&ifindex);
            }
        }
        if self.pins.retire_others()? {
            tracing::warn!(
                "the edge of another version, or with another `max_forwarded`, was replaced: \
                 connections that it forwarded do not go on"
            );
        }
        self.guarded = guarded;
        Ok(self.guarded.iter().map(|(_, one)| one.clone()).collect())
    }

    fn guard_each(&mut self, interfaces: &[Interface]) -> Result<Vec<(u32, Guarded)>, EdgeError> {
        let mut guarded = Vec::new();
        for interface in interfaces {
            let ifindex = if_nametoindex(interface.name.as_str())
                .map_err(|_| EdgeError::NoInterface(interface.name.clone()))?;
            guarded.push((ifindex, self.guard_one(ifindex, interface)?));
        }
        Ok(guarded)
    }

    fn guard_one(&mut self, ifindex: u32, interface: &Interface) -> Result<Guarded, EdgeError> {
        let there = programs_on(ifindex, &interface.name)?;
        let links = self.pins.links()?;
        let mut of_it = links.into_iter().filter(|(at, _)| *at == ifindex);
        let ours = of_it.find_map(|(_, path)| {
            let link = pins::open_link(&path)?;
            let program = link.info().ok()?.program_id();
            // A link whose interface is gone is still there, and says nothing of a new one.
            let on = there.iter().find(|on| on.program == program)?;
            Some((path, link, on.mode))
        });
        let guarded = match ours {
            Some((path, link, mode)) if fits(interface.mode, mode) => {
                self.write_interface(ifindex, interface, mode)?;
                self.take_over(ifindex, interface, &path, link)?;
                Guarded {
                    interface: interface.name.clone(),
                    mode,
                    taken_over: true,
                    not_native: None,
                }
            }
            Some((_, link, _)) => {
                for (_, path) in self.pins.links()?.iter().filter(|(at, _)| *at == ifindex) {
                    fs::remove_file(path).map_err(crate::pins::at(path))?;
                }
                drop(link);
                self.attach(ifindex, interface)?
            }
            None => match there.first() {
                Some(foreign) => {
                    return Err(EdgeError::Foreign {
                        interface: interface.name.clone(),
                        program: foreign.program,
                        mode: foreign.mode,
                    });
                }
                None => self.attach(ifindex, interface)?,
            },
        };
        Ok(guarded)
    }

    /// The link's program is replaced by ours at once, and its pin never goes.
    fn take_over(
        &mut self,
        ifindex: u32,
        interface: &Interface,
        path: &Path,
        link: FdLink,
    ) -> Result<(), EdgeError> {
        let failed = |reason: String| EdgeError::Attach {
            interface: interface.name.clone(),
            mode: "the old",
            reason,
        };
        let link = XdpLink::try_from(link).map_err(|e: LinkError| failed(reasons(&e)))?;
        let program = program(&mut self.ebpf)?;
        let id = program.attach_to_link(link);
        let id = id.map_err(|e| failed(reasons(&e)))?;
        // The pin holds it.
        let link = program.take_link(id).map_err(|e| failed(reasons(&e)))?;
        let own = self.pins.link(ifindex);
        if path != own {
            pin(link, &own).map_err(failed)?;
        }
        Ok(())
    }

    fn attach(&mut self, ifindex: u32, interface: &Interface) -> Result<Guarded, EdgeError> {
        let tried: &[Mode] = match interface.mode {
            WantedMode::Auto => &[Mode::Native, Mode::Generic],
            WantedMode::Native => &[Mode::Native],
            WantedMode::Generic => &[Mode::Generic],
        };
        let mut not_native = None;
        let mut last = None;
        for mode in tried {
            self.write_interface(ifindex, interface, *mode)?;
            match self.attach_as(ifindex, *mode) {
                Ok(()) => {
                    return Ok(Guarded {
                        interface: interface.name.clone(),
                        mode: *mode,
                        taken_over: false,
                        not_native,
                    });
                }
                Err(reason) => {
                    not_native.get_or_insert(reason.clone());
                    last = Some((mode, reason));
                }
            }
        }
        let _ = self.maps.interfaces.remove(&ifindex);
        let (mode, reason) = last.map_or(("no", String::new()), |(m, r)| (m.as_str(), r));
        Err(EdgeError::Attach {
            interface: interface.name.clone(),
            mode,
            reason,
        })
    }

    fn attach_as(&mut self, ifindex: u32, mode: Mode) -> Result<(), String> {
        let own = self.pins.link(ifindex);
        // A link whose interface is gone.
        let _ = fs::remove_file(&own);
        let xdp_mode = match mode {
            Mode::Native | Mode::Offloaded => XdpMode::Driver,
            Mode::Generic => XdpMode::Skb,
        };
        let program = program(&mut self.ebpf).map_err(|e| e.to_string())?;
        let id = program.attach_to_if_index(ifindex, xdp_mode);
        let id = id.map_err(|e| reasons(&e))?;
        let link = program.take_link(id).map_err(|e| reasons(&e))?;
        pin(link, &own)
    }

    fn write_interface(
        &mut self,
        ifindex: u32,
        interface: &Interface,
        mode: Mode,
    ) -> Result<(), EdgeError> {
        let value = PodOf(interface.to_abi(mode));
        let inserted = self.maps.interfaces.insert(ifindex, value, 0);
        inserted.map_err(tables::of("interfaces"))
    }
}

pub(super) fn programs_on(ifindex: u32, name: &str) -> Result<Vec<OnInterface>, EdgeError> {
    interface::programs_on(ifindex).map_err(|source| EdgeError::Programs {
        interface: name.to_owned(),
        source,
    })
}

fn fits(wanted: WantedMode, mode: Mode) -> bool {
    match wanted {
        WantedMode::Auto => true,
        WantedMode::Native => mode != Mode::Generic,
        WantedMode::Generic => mode == Mode::Generic,
    }
}

/// A link that is none, from a kernel before 5.9, dies here, and with it the attachment.
fn pin(link: XdpLink, at: &Path) -> Result<(), String> {
    let link = FdLink::try_from(link).map_err(|e: LinkError| reasons(&e))?;
    link.pin(at).map(drop).map_err(|e| reasons(&e))
}
