//! Hot-plug slots behind an Intel VMD: `/sys/bus/pci/slots/SLOT/attention`.
//!
//! Other slots give the numbers of this file other meanings. The PCI domains of VMDs begin at 10000 (hexadecimal).

use super::{Control, Interface, Light, LightFile, Place, Slot};
use crate::system::{ReadError, Root, if_missing};

const SLOTS: &str = "/sys/bus/pci/slots";

const OFF: &str = "15";
const LOCATE: &str = "7";
const FAULT: &str = "13";

pub(super) fn slots(root: &Root) -> Result<Vec<Slot>, ReadError> {
    let mut slots = Vec::new();
    for slot in root.list(SLOTS).or_else(if_missing)? {
        let path = format!("{SLOTS}/{slot}/attention");
        let address = root.word(&format!("{SLOTS}/{slot}/address"));
        let Some(address) = address.ok().filter(|address| is_behind_vmd(address)) else { continue };
        if !root.exists(&path) {
            continue;
        }
        let file = |light, on| LightFile { light, path: path.clone(), on, off: OFF };
        slots.push(Slot {
            interface: Interface::Vmd,
            name: slot,
            place: Place::Pci(address),
            control: Control::Files(vec![file(Light::Locate, LOCATE), file(Light::Fault, FAULT)]),
        });
    }
    Ok(slots)
}

fn is_behind_vmd(address: &str) -> bool {
    let domain = address.split(':').next().unwrap_or_default();
    u32::from_str_radix(domain, 16).is_ok_and(|domain| domain >= 0x1_0000)
}
