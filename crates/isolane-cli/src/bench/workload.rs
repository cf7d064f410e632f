//! Settings of a run, and the lanes that the target granted.

use isolane_host::{ConnectionStatus, Cores, LaneClass, LaneCounts};
use serde::Serialize;

use super::Args;
use super::access_pattern::OPERATION_KINDS;
use super::coalesce::show_coalesce;
use crate::choice::name_of;
use crate::host_args::{MODES, show_digests};

/// The settings of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Workload {
    /// The volume.
    pub uri: String,
    /// Kind of operations.
    pub rw: String,
    /// Share of reads with `--rw randrw`, in percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mix: Option<u8>,
    /// Size of one operation.
    pub block_bytes: u64,
    /// Operations in flight per lane, or per thread.
    pub depth: u32,
    /// Granted lanes of the default class.
    pub lanes: usize,
    /// Granted lanes of the read class.
    pub read_lanes: usize,
    /// Granted lanes of the poll class.
    pub poll_lanes: usize,
    /// Requested lanes.
    pub lanes_requested: LaneCounts,
    /// Whether all lanes share the depth.
    pub share_depth: bool,
    /// Class of the operations; `None` for the read class for reads and the default class for writes.
    pub class: Option<String>,
    /// Idle behavior of the host.
    pub mode: String,
    /// CRC32C of headers.
    pub hdr_digest: bool,
    /// CRC32C of data.
    pub data_digest: bool,
    /// Limits of `--coalesce`.
    pub coalesce: Option<String>,
    /// Duration of `--warm-up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up_seconds: Option<f64>,
    /// Maximum operations per second, with `--rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Whether writes are durable before they complete.
    pub fua: bool,
    /// The background load.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub background: Option<String>,
    /// Threads that share the volume, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// With `--threads`: whether a waiting thread drives the connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<bool>,
    /// Cores with lanes, from `--cores` or the URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
}

impl Workload {
    /// Returns the settings of `args`, with `granted` lanes, each of which holds `max_depth` commands, on `cores`.
    pub fn new(args: &Args, (granted, max_depth): (LaneCounts, u16), cores: &Cores) -> Workload {
        let threads = &args.threads;
        let [default, read, poll] = [args.lanes, args.read_lanes, args.poll_lanes].map(usize::from);
        let cores: Vec<_> = cores_with_lanes(cores, granted).iter().map(ToString::to_string).collect();
        Workload {
            uri: args.uri.clone(),
            rw: name_of(&OPERATION_KINDS, &args.rw).into(),
            mix: (args.rw == super::Rw::Randrw).then(|| args.mix()),
            block_bytes: args.bs,
            depth: u32::from(args.depth(max_depth)),
            lanes: granted.default,
            read_lanes: granted.read,
            poll_lanes: granted.poll,
            lanes_requested: LaneCounts { default, read, poll },
            share_depth: args.share_depth,
            class: args.class.map(|class| class.to_string()),
            mode: name_of(&MODES, &args.mode).into(),
            hdr_digest: args.host.hdr_digest,
            data_digest: args.host.data_digest,
            coalesce: args.coalesce.as_ref().map(show_coalesce),
            warm_up_seconds: (!args.warm_up.is_zero()).then_some(args.warm_up.as_secs_f64()),
            rate: args.rate,
            fua: args.fua,
            background: args.background.as_ref().map(ToString::to_string),
            threads: threads.threads,
            inline: threads.threads.map(|_| threads.inline),
            cores: (!cores.is_empty()).then(|| cores.join(",")),
        }
    }

    /// Returns kind, size, depth, lanes, and mode, the first criteria of a comparison.
    pub fn shape(&self) -> String {
        let Workload { rw, block_bytes, depth, mode, .. } = self;
        let mix = self.mix.map_or(String::new(), |mix| format!(" {mix} % reads"));
        format!("{rw}{mix} {block_bytes} B x depth {depth} {}, {mode} mode", self.lanes_to_text())
    }

    /// Returns the other settings on one line.
    pub fn choices(&self) -> String {
        let digests = show_digests(self.hdr_digest, self.data_digest);
        let (class, coalesce) = (self.class.as_deref(), self.coalesce.as_deref());
        let (class, coalesce) = (class.unwrap_or("by direction"), coalesce.unwrap_or("off"));
        let mut all = vec![format!("class {class}, digests {digests}, coalescing {coalesce}")];
        all.extend(self.inline.map(|on| format!("inline {}", if on { "on" } else { "off" })));
        all.extend(self.cores.as_ref().map(|cores| format!("lanes on cores {cores}")));
        all.extend(self.fua.then(|| "FUA".to_owned()));
        all.extend(self.warm_up_seconds.map(|seconds| format!("warm-up {seconds} s")));
        all.extend(self.rate.map(|rate| format!("at most {rate} operations/s")));
        all.extend(self.background.as_ref().map(|background| format!("background {background}")));
        all.join(", ")
    }

    fn lanes_to_text(&self) -> String {
        let Workload { lanes, lanes_requested: requested, .. } = self;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let mut text = match self.threads.map(usize::from) {
            Some(threads) => format!("x {threads} thread{}, ", plural(threads)),
            None if self.share_depth => "over ".to_owned(),
            None => "x ".to_owned(),
        };
        text += &format!("{lanes} lane{}", plural(*lanes));
        for (count, requested, name) in
            [(self.read_lanes, requested.read, "read"), (self.poll_lanes, requested.poll, "poll")]
        {
            if count < requested {
                text += &format!(" + {count} {name} (of {requested} requested)");
            } else if count > 0 {
                text += &format!(" + {count} {name}");
            }
        }
        text
    }
}

/// Returns the lanes of a volume by class, or `None` without connections.
pub fn granted(connections: &[ConnectionStatus]) -> Option<LaneCounts> {
    let count = |class| connections.iter().filter(|one| one.lane.is_some_and(|(of, _)| of == class)).count();
    let granted = LaneCounts {
        default: count(LaneClass::Default),
        read: count(LaneClass::Read),
        poll: count(LaneClass::Poll),
    };
    (granted.default > 0).then_some(granted)
}

/// Returns the cores with lanes; each class is dealt out from the first core upward.
pub fn cores_with_lanes(cores: &Cores, granted: LaneCounts) -> &[usize] {
    let max = granted.default.max(granted.read).max(granted.poll);
    &cores.as_slice()[..max.min(cores.as_slice().len())]
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// A workload of depth 1.
    pub fn workload() -> Workload {
        parse("--depth 1", LaneCounts { default: 1, read: 0, poll: 0 })
    }

    fn parse(arguments: &str, granted: LaneCounts) -> Workload {
        let line = format!("bench nvme+tcp://127.0.0.1/x {arguments}");
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        Workload::new(&args, (granted, u16::MAX), &args.threads.cores.clone().unwrap_or_default())
    }

    #[test]
    fn heading_has_all_settings() {
        let classes = LaneCounts { default: 2, read: 0, poll: 1 };
        let chosen = parse("--lanes 2 --poll-lanes 1 --class poll --coalesce=8:4k:20us -g -G --fua", classes);
        assert_eq!(chosen.shape(), "randread 4096 B x depth 32 x 2 lanes + 1 poll, adaptive mode");
        assert_eq!(chosen.choices(), "class poll, digests header and data, coalescing 8:4k:20us, FUA");
        let threads =
            parse("--rw randrw --threads 3 --inline off", LaneCounts { default: 1, read: 0, poll: 0 });
        assert_eq!(threads.shape(), "randrw 70 % reads 4096 B x depth 32 x 3 threads, 1 lane, adaptive mode");
        assert_eq!(threads.choices(), "class by direction, digests none, coalescing off, inline off");
        let placed = parse("--threads 2 --cores 0-1", classes).choices();
        assert!(placed.ends_with(", inline on, lanes on cores 0,1"), "{placed}");
    }

    #[test]
    fn heading_omits_cores_without_lanes() {
        let classes = LaneCounts { default: 1, read: 2, poll: 0 };
        let placed = parse("--threads 2 --read-lanes 2 --cores 3,5,0-2", classes);
        assert_eq!(placed.cores.as_deref(), Some("3,5"));
    }

    #[test]
    fn heading_reports_refused_lanes() {
        let granted = LaneCounts { default: 1, read: 63, poll: 0 };
        let shrunk = parse("--read-lanes 70 --poll-lanes 2", granted);
        assert_eq!((shrunk.lanes, shrunk.read_lanes, shrunk.poll_lanes), (1, 63, 0));
        assert_eq!(shrunk.lanes_requested, LaneCounts { default: 1, read: 70, poll: 2 });
        let text = shrunk.shape();
        assert!(text.contains("1 lane + 63 read (of 70 requested) + 0 poll (of 2 requested)"), "{text}");
    }
}
