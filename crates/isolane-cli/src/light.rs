//! `isolane light`: the lights of the slot of a drive.

use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use isolane_inspect::light::{self, Drive, Light, LightError, Slot, Writer};
use isolane_inspect::source::{Parts, Source};
use isolane_inspect::system::Root;
use isolane_inspect::{text, topology};

use crate::choice::{Choice, one_of};
use crate::failure::{Context, Failure, IoContext};
use crate::output;
use crate::signals;
use crate::units::parse_time_above_zero;

/// Switch on a light at the slot of a drive, to find it
///
/// The light goes off after the time of --for, or when the command ends: Ctrl-C, SIGTERM,
/// or SIGHUP. After SIGKILL it stays on until `isolane light NAME off`.
///
///   isolane light nvme5n1 locate         drive of this machine, also as /dev/disk/by-id/…
///   isolane light disk5 locate           drive of a volume of a running program
///   isolane light list                   all slots with lights
///
/// The interfaces are, in this order, LEDs of NPEM (Linux 6.12), SCSI enclosures (SES),
/// slots behind an Intel VMD, and the program ledctl. A light takes up to 1 s with NPEM,
/// and 90 s with SES. Two changes of one slot are at least 5 s apart. Most of this needs
/// root.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Name of a volume or a block device; `list` alone lists all slots
    #[arg(value_name = "VOLUME|DEVICE")]
    name: String,
    /// Light to switch on, or off for both
    #[arg(value_parser = one_of(&ACTIONS), value_name = "ACTION")]
    action: Option<Action>,
    /// Time until the light goes off
    #[arg(long = "for", value_name = "TIME", default_value = "10m", value_parser = parse_time_above_zero)]
    duration: Duration,
    /// Control socket of the program with the volume (default: the only one that is found)
    #[arg(long, value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Use /proc, /sys, and ledctl below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    root: PathBuf,
}

/// Change of the lights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    On(Light),
    Off,
}

const ACTIONS: [Choice<Action>; 3] = [
    ("locate", "Light that shows where the drive is", Action::On(Light::Locate)),
    ("fault", "Light that marks a failed drive", Action::On(Light::Fault)),
    ("off", "Switch off both lights", Action::Off),
];

/// Runs the subcommand.
pub fn run(args: &Args) -> Result<(), Failure> {
    let root = Root::open(&args.root).io_context(format!("cannot use {}", args.root.display()))?;
    let Some(action) = args.action else {
        if args.name == "list" {
            return list(root);
        }
        return Err(Failure::new(&args.name, "no action; write locate, fault, or off"));
    };
    let drive = find_drive(args, &root)?;
    let slot = light::find(&root, &drive).map_err(Failure::from_error)?;
    if action != Action::On(Light::Locate) {
        warn_of_ledmon(&root);
    }
    let writer = Writer::start(root).context("cannot start the thread for lights")?;
    let lamp = Lamp { name: text::shown_name(&args.name, 80), slot, writer };
    match action {
        Action::On(light) => lamp.hold(light, args.duration),
        Action::Off => lamp.off(),
    }
    .map_err(Failure::from_error)
}

/// The lights of a slot.
struct Lamp {
    name: String,
    slot: Slot,
    writer: Writer,
}

impl Lamp {
    /// Switches a light on, and off after a time or a signal.
    fn hold(&self, light: Light, duration: Duration) -> Result<(), Box<dyn std::error::Error>> {
        let signal = signal()?;
        self.writer.set(&self.slot, light, true).wait()?;
        let shown = text::duration(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
        self.print(&format!("{} light on for {shown}, or until this command ends", light.name()))?;
        // A signal or the end of the time.
        let _ = signal.recv_timeout(duration);
        signals::exit_on_next_signal()?;
        self.writer.set(&self.slot, light, false).wait()?;
        self.print(&format!("{} light off", light.name()))?;
        Ok(())
    }

    /// Switches off the lights that are on. `ledctl` cannot read them, and switches off both by one call.
    fn off(&self) -> Result<(), Box<dyn std::error::Error>> {
        let lit = self.writer.read(&self.slot).wait()?.unwrap_or(vec![Light::Fault]);
        let pending: Vec<_> = lit.iter().map(|light| self.writer.set(&self.slot, *light, false)).collect();
        pending.into_iter().try_for_each(light::Pending::wait)?;
        self.print("lights off")?;
        Ok(())
    }

    fn print(&self, what: &str) -> Result<(), Failure> {
        output::write_stdout(format!("{} ({}): {what}\n", self.name, self.slot).as_bytes())
    }
}

/// Receives the first signal that ends the command.
fn signal() -> Result<Receiver<i32>, Failure> {
    let (sender, receiver) = mpsc::channel();
    // The receiver is gone if the command ends on its own.
    signals::at_signal(move |number| _ = sender.send(number))?;
    Ok(receiver)
}

/// Returns the drive of a block device, or of a volume of a running program.
fn find_drive(args: &Args, root: &Root) -> Result<Drive, Failure> {
    let unknown = match Drive::of_device(root, &args.name) {
        Err(error @ LightError::NoDevice(_)) => error,
        found => return found.map_err(Failure::from_error),
    };
    if args.name.starts_with('/') {
        return Err(Failure::from_error(unknown));
    }
    let Ok(source) = Source::choose(args.socket.as_deref(), None) else {
        let hint = "for a volume, name the control socket of its program with --socket";
        return Err(Failure::from_error(unknown).with_hint(hint));
    };
    let snapshot = source.read(Parts::Now).map_err(Failure::from_error)?;
    let volume = topology::find(&snapshot, &args.name).ok_or_else(|| {
        Failure::from_error(unknown).with_hint("the program has no such volume (`isolane top`)")
    })?;
    Drive::of_volume(root, &snapshot, volume).map_err(Failure::from_error)
}

fn warn_of_ledmon(root: &Root) {
    // Without the processes of other users, the warning is left out.
    if let Ok(Some(pid)) = light::ledmon(root) {
        log::warn!(
            "ledmon (PID {pid}) sets all lights but locate by the state of RAID arrays every few seconds, and can \
             override this change; stop it: systemctl stop ledmon"
        );
    }
}

/// Lists all slots. A slot that does not respond is listed so.
fn list(root: Root) -> Result<(), Failure> {
    let slots = light::slots(&root).map_err(Failure::from_error)?;
    let drives = Drive::all(&root).map_err(Failure::from_error)?;
    let ledctl = light::ledctl_path(&root);
    let writer = Writer::start(root).context("cannot start the thread for lights")?;
    let pending: Vec<_> = slots.iter().map(|slot| writer.read(slot)).collect();
    let mut text = String::new();
    for (slot, pending) in slots.iter().zip(pending) {
        let held = drives.iter().filter(|drive| light::choose(&slots, drive) == Some(slot));
        let held = held.map(|drive| text::shown_name(&drive.name, 40)).collect::<Vec<_>>().join(", ");
        let held = if held.is_empty() { String::from("no drive") } else { held };
        let state = match pending.wait() {
            Ok(lit) => names(&lit.unwrap_or_default()).unwrap_or_else(|| String::from("off")),
            Err(error) => error.to_string(),
        };
        let lights = names(&slot.lights()).unwrap_or_default();
        text += &format!("{held:<16} {slot}: has {lights}; on: {state}\n");
    }
    if slots.is_empty() {
        text += "no slot with lights: no NPEM (Linux 6.12), no SCSI enclosure (SES), and no VMD\n";
    }
    text += &ledctl.map_or_else(
        || String::from("ledctl is not installed: the package ledmon has it\n"),
        |path| format!("other drives: by {}\n", path.display()),
    );
    output::write_stdout(text.as_bytes())
}

fn names(lights: &[Light]) -> Option<String> {
    let names: Vec<&str> = lights.iter().map(|light| light.name()).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
