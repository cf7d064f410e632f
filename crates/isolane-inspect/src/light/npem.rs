//! LEDs of native PCIe enclosure management: `/sys/class/leds/ADDRESS:enclosure:locate`, on the function of the drive or on
//! a port above.

use super::{Control, Interface, Light, LightFile, Place, Slot};
use crate::system::{ReadError, Root, if_missing};

const LEDS: &str = "/sys/class/leds";

pub(super) fn slots(root: &Root) -> Result<Vec<Slot>, ReadError> {
    let mut slots: Vec<Slot> = Vec::new();
    for led in root.list(LEDS).or_else(if_missing)? {
        let Some((address, indication)) = led.split_once(":enclosure:") else { continue };
        let light = match indication {
            "locate" => Light::Locate,
            "fail" => Light::Fault,
            _ => continue,
        };
        let file = LightFile::switch(light, format!("{LEDS}/{led}/brightness"));
        match slots.iter_mut().find(|slot| slot.name == address) {
            Some(Slot { control: Control::Files(files), .. }) => files.push(file),
            _ => slots.push(Slot {
                interface: Interface::Npem,
                name: address.to_owned(),
                place: Place::Pci(address.to_owned()),
                control: Control::Files(vec![file]),
            }),
        }
    }
    Ok(slots)
}
