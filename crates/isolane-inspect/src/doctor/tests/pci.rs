//! PCI devices.

use super::*;

const FUNCTION: &str = "/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0";

/// Checks, their files below the function, and good and bad contents.
const FILES: &[(&str, &str, &str, &str)] = &[
    ("pci.link", "current_link_speed", "16.0 GT/s PCIe\n", "8.0 GT/s PCIe\n"),
    ("pci.link", "current_link_width", "4\n", "2\n"),
    ("pci.link", "max_link_width", "4\n", "16\n"),
    ("pci.errors", "aer_dev_correctable", "RxErr 0\nTOTAL_ERR_COR 0\n", "RxErr 1\nTOTAL_ERR_COR 1\n"),
    ("pci.iommu", "iommu_group/type", "DMA-FQ\n", "DMA\n"),
];

/// Configuration space with PCI Express, and sizes of packets.
fn config(payload: u16, request: u16) -> Vec<u8> {
    let mut bytes = vec![0; 256];
    bytes[0x06] = 0x10;
    bytes[0x34] = 0x40;
    bytes[0x40] = 0x10;
    bytes[0x48..0x4a].copy_from_slice(&(payload << 5 | request << 12).to_le_bytes());
    bytes
}

/// An NVMe drive behind a port.
pub(super) fn tree() -> Tree {
    let tree = Tree::new(&[
        ("/sys/class/net/x", ""),
        ("/sys/block/x", ""),
        ("/sys/module/pcie_aspm/parameters/policy", "default [performance] powersave\n"),
        (&format!("{FUNCTION}/nvme/nvme0/nvme0n1/size"), "0\n"),
        (&format!("{FUNCTION}/max_link_speed"), "16.0 GT/s PCIe\n"),
    ]);
    fs::remove_file(tree.path("/sys/class/net/x")).unwrap();
    fs::remove_file(tree.path("/sys/block/x")).unwrap();
    for (_, file, good, _) in FILES {
        tree.write_bytes(&format!("{FUNCTION}/{file}"), good.as_bytes());
    }
    tree.write_bytes(&format!("{FUNCTION}/config"), &config(1, 2));
    tree.write_bytes("/sys/devices/pci0000:00/0000:00:01.0/config", &config(1, 2));
    tree.link("/sys/block/nvme0n1", "../devices/pci0000:00/0000:00:01.0/0000:01:00.0/nvme/nvme0/nvme0n1");
    tree
}

#[test]
fn checks_functions_of_cards() {
    for (id, file, _, bad) in FILES {
        assert_eq!(state(&tree(), id), State::Good, "{id}");
        let (tree, path) = (tree(), format!("{FUNCTION}/{file}"));
        tree.write_bytes(&path, bad.as_bytes());
        assert_eq!(state(&tree, id), State::Bad, "{id}: {file}");
        for malformed in [&b""[..], b"\xff\0", &[b'x'; 70 << 10]] {
            tree.write_bytes(&path, malformed);
            assert_ne!(state(&tree, id), State::Good, "{id}: {file}");
        }
        fs::remove_file(tree.path(&path)).unwrap();
        let expected = if *id == "pci.errors" { State::Absent } else { State::Unseen };
        assert_eq!(state(&tree, id), expected, "{id}: {file}");
        fs::create_dir(tree.path(&path)).unwrap();
        assert_eq!(state(&tree, id), State::Unseen, "{id}: {file}");
    }
}

#[test]
fn payload_is_that_of_the_port() {
    let tree = tree();
    assert_eq!(state(&tree, "pci.payload"), State::Good);
    for bad in [config(0, 2), config(1, 1)] {
        tree.write_bytes(&format!("{FUNCTION}/config"), &bad);
        assert_eq!(state(&tree, "pci.payload"), State::Bad);
    }
    // Users other than root see 64 bytes.
    tree.write_bytes(&format!("{FUNCTION}/config"), &config(1, 2)[..64]);
    assert_eq!(state(&tree, "pci.payload"), State::Unseen);
    fs::remove_file(tree.path(&format!("{FUNCTION}/config"))).unwrap();
    assert_eq!(state(&tree, "pci.payload"), State::Unseen);
}

#[test]
fn links_must_not_sleep() {
    let tree = tree();
    let path = "/sys/module/pcie_aspm/parameters/policy";
    assert_eq!(state(&tree, "pci.aspm"), State::Good);
    tree.write_bytes(path, b"[default] performance powersave\n");
    assert_eq!(state(&tree, "pci.aspm"), State::Bad);
    tree.write_bytes(path, b"default\n");
    assert_eq!(state(&tree, "pci.aspm"), State::Unseen);
    fs::remove_file(tree.path(path)).unwrap();
    assert_eq!(state(&tree, "pci.aspm"), State::Unseen);
    fs::create_dir(tree.path(path)).unwrap();
    assert_eq!(state(&tree, "pci.aspm"), State::Unseen);
    fs::remove_dir_all(tree.path("/sys/module/pcie_aspm")).unwrap();
    assert_eq!(state(&tree, "pci.aspm"), State::Absent);
}
