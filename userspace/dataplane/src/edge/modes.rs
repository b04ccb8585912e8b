//! Interfaces that forward to each other run the program alike: a driver takes frames that another one's
//! program sends it only if it runs programs itself, and drops them in silence otherwise.

use super::{EdgeError, Forward, Guarded, Interface, Mode, WantedMode};

/// The interfaces as the file has them; but where an interface that forwards has a mode, those that
/// leave theirs to the agent get the same.
///
/// # Errors
/// Two that forward are to have different ones.
pub fn alike(interfaces: &[Interface]) -> Result<Vec<Interface>, EdgeError> {
    let find = |mode| forwarding(interfaces).find(|interface| interface.mode == mode);
    let (native, generic) = (find(WantedMode::Native), find(WantedMode::Generic));
    if let (Some(native), Some(generic)) = (native, generic) {
        return Err(EdgeError::Unlike {
            native: native.name.clone(),
            generic: generic.name.clone(),
        });
    }
    let chosen = native.or(generic).map_or(WantedMode::Auto, |one| one.mode);
    Ok(chosen_for_all(interfaces, chosen))
}

/// The interfaces with this mode for all that forward, unless they have one of their own.
pub(super) fn chosen_for_all(interfaces: &[Interface], chosen: WantedMode) -> Vec<Interface> {
    let each = interfaces.iter().cloned();
    each.map(|interface| match (interface.forward, interface.mode) {
        (Forward::Off, _) | (_, WantedMode::Native | WantedMode::Generic) => interface,
        (_, WantedMode::Auto) => Interface {
            mode: chosen,
            ..interface
        },
    })
    .collect()
}

/// An interface that forwards in the stack beside others that do not. `guarded`: in the order of
/// `interfaces`.
pub(super) fn odd_one(interfaces: &[Interface], guarded: &[(u32, Guarded)]) -> Option<String> {
    let modes = interfaces.iter().zip(guarded);
    let forwarding = modes.filter(|(interface, _)| interface.forward != Forward::Off);
    let (generic, native): (Vec<_>, Vec<_>) = forwarding
        .map(|(_, (_, guarded))| guarded)
        .partition(|guarded| guarded.mode == Mode::Generic);
    let odd = generic.first().filter(|_| !native.is_empty())?;
    Some(odd.interface.clone())
}

fn forwarding(interfaces: &[Interface]) -> impl Iterator<Item = &Interface> {
    let each = interfaces.iter();
    each.filter(|interface| interface.forward != Forward::Off)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(wanted: [(Forward, WantedMode); 3]) -> Result<Vec<WantedMode>, String> {
        let interfaces = wanted.map(|(forward, mode)| Interface {
            name: format!("{mode:?}"),
            mode,
            forward,
            syn_rate: None,
        });
        let alike = alike(&interfaces).map_err(|error| error.to_string())?;
        Ok(alike.iter().map(|interface| interface.mode).collect())
    }

    #[test]
    fn who_forwards_is_like_the_others_that_do() {
        use Forward::{Off, Snat};
        use WantedMode::{Auto, Generic, Native};
        let all = |third| modes([(Snat, Auto), (Off, Auto), third]).unwrap();
        assert_eq!(all((Snat, Auto)), [Auto, Auto, Auto]);
        assert_eq!(all((Snat, Generic)), [Generic, Auto, Generic]);
        assert_eq!(all((Snat, Native)), [Native, Auto, Native]);
        assert_eq!(all((Off, Generic)), [Auto, Auto, Generic]);
        let both = modes([(Snat, Native), (Snat, Auto), (Snat, Generic)]);
        assert!(both.unwrap_err().starts_with("Native is to be guarded"));
    }
}
