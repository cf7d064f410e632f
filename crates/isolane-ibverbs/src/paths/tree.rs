//! The tree of files that programs read.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;

use crate::device::{Device, devices};
use crate::ffi::report;

/// The directory, and the process that has made it.
struct Tree {
    root: PathBuf,
    process: u32,
}

static TREE: OnceLock<Option<Tree>> = OnceLock::new();

/// Returns the directory of the tree. `None` if it cannot be written.
pub(super) fn root() -> Option<&'static Path> {
    let tree = TREE.get_or_init(|| match write() {
        Ok(root) => {
            // SAFETY: the function can be called at any time.
            unsafe { libc::atexit(remove) };
            Some(Tree { root, process: process::id() })
        }
        Err(error) => {
            report(&format!("cannot write the files of the devices: {error}"));
            None
        }
    });
    tree.as_ref().map(|tree| tree.root.as_path())
}

/// Removes the tree, unless this process is a child of the one that has made it.
extern "C" fn remove() {
    if let Some(Some(tree)) = TREE.get()
        && tree.process == process::id()
    {
        let _ = fs::remove_dir_all(&tree.root);
    }
}

fn write() -> io::Result<PathBuf> {
    let mut template =
        std::env::temp_dir().join("isolane-verbs-XXXXXX").into_os_string().into_encoded_bytes();
    template.push(0);
    // SAFETY: a string that ends with the characters to replace; the directory is private.
    let made = unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) };
    if made.is_null() {
        return Err(io::Error::last_os_error());
    }
    template.pop();
    // SAFETY: the bytes are from a path; the changed ones are letters and digits.
    let root = PathBuf::from(unsafe { std::ffi::OsString::from_encoded_bytes_unchecked(template) });
    for dir in ["sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband"] {
        fs::create_dir_all(root.join(dir))?;
    }
    devices().iter().try_for_each(|device| write_device(&root, device))?;
    Ok(root)
}

fn write_device(root: &Path, device: &Device) -> io::Result<()> {
    let (name, verbs) = (isolane_verbs::device_name(device.index), format!("uverbs{}", device.index));
    let groups = |bytes: &[u8]| -> String {
        let groups: Vec<String> =
            bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
        groups.join(":")
    };
    let guid = groups(&device.guid().to_ne_bytes());
    // As in sysfs, the entry of the class is a link into the directory of the device.
    let parent = root.join("sys/devices").join(&name);
    let dir = parent.join("infiniband").join(&name);
    let class = root.join("sys/class");
    for made in ["ports/1/gids", "ports/1/pkeys", "ports/1/gid_attrs/types", "ports/1/gid_attrs/ndevs"] {
        fs::create_dir_all(dir.join(made))?;
    }
    fs::create_dir_all(parent.join("net").join(&device.name))?;
    fs::create_dir_all(class.join("infiniband_verbs").join(&verbs))?;
    symlink(&dir, class.join("infiniband").join(&name))?;
    symlink("../..", dir.join("device"))?;
    symlink(&parent, class.join("infiniband_verbs").join(&verbs).join("device"))?;
    let files = [
        ("node_type", "1: CA".to_owned()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", name.clone()),
        ("fw_ver", env!("CARGO_PKG_VERSION").into()),
        ("ports/1/state", "4: ACTIVE".into()),
        ("ports/1/phys_state", "5: LinkUp".into()),
        ("ports/1/link_layer", "Ethernet".into()),
        ("ports/1/rate", "100 Gb/sec (4X EDR)".into()),
        ("ports/1/lid", "0x0".into()),
        ("ports/1/sm_lid", "0x0".into()),
        ("ports/1/pkeys/0", "0xffff".into()),
        ("ports/1/gids/0", groups(&device.gid())),
        ("ports/1/gid_attrs/types/0", "RoCE v2".into()),
        ("ports/1/gid_attrs/ndevs/0", device.name.clone()),
    ];
    for (file, text) in files {
        fs::write(dir.join(file), text + "\n")?;
    }
    fs::write(parent.join("numa_node"), "-1\n")?;
    let verbs_dir = class.join("infiniband_verbs").join(&verbs);
    fs::write(verbs_dir.join("ibdev"), name + "\n")?;
    fs::write(verbs_dir.join("abi_version"), "1\n")?;
    fs::write(root.join("dev/infiniband").join(verbs), "")
}
