//! Slots of SCSI enclosures: `/sys/class/enclosure/ENCLOSURE/SLOT/{locate,fault}`.

use super::{Control, Interface, Light, LightFile, Place, Slot};
use crate::system::{ReadError, Root, if_missing};

const ENCLOSURES: &str = "/sys/class/enclosure";

pub(super) fn slots(root: &Root) -> Result<Vec<Slot>, ReadError> {
    let mut slots = Vec::new();
    for enclosure in root.list(ENCLOSURES).or_else(if_missing)? {
        for slot in root.list(&format!("{ENCLOSURES}/{enclosure}")).or_else(if_missing)? {
            let dir = format!("{ENCLOSURES}/{enclosure}/{slot}");
            let file = |light: Light| {
                let path = format!("{dir}/{}", light.name());
                root.exists(&path).then(|| LightFile::switch(light, path))
            };
            let files: Vec<LightFile> = [Light::Locate, Light::Fault].into_iter().filter_map(file).collect();
            // The directory also has links and files of the enclosure itself.
            if files.is_empty() {
                continue;
            }
            slots.push(Slot {
                interface: Interface::Ses,
                name: format!("{enclosure}/{slot}"),
                place: Place::Device(root.resolve(&format!("{dir}/device")).ok()),
                control: Control::Files(files),
            });
        }
    }
    Ok(slots)
}
