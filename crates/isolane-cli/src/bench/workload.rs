//! How a run of `bench` was asked for, and what of it the target granted.

use clap::ValueEnum;
use isolane_host::{Class, Classes, ConnectionStatus, Cores};
use serde::Serialize;

use super::Args;
use super::hold::show_hold;

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
    /// Bytes of one operation.
    pub block_bytes: u64,
    /// Operations in flight on each lane, or of each thread.
    pub depth: u32,
    /// Connections of the default class.
    pub lanes: u32,
    /// Connections of the read class, as many as were granted.
    pub read_lanes: u32,
    /// Connections of the poll class, as many as were granted.
    pub poll_lanes: u32,
    /// What was asked for.
    pub lanes_asked: LanesAsked,
    /// Whether depths count on all lanes together.
    pub is_spread: bool,
    /// The class that operations ask for; none: reads the read class, writes the default class.
    pub class: Option<String>,
    /// How the host waits.
    pub mode: String,
    /// CRC32C over headers.
    pub hdr_digest: bool,
    /// CRC32C over data.
    pub data_digest: bool,
    /// How long operations are held back for others, as `--hold` writes it; none: not at all.
    pub hold: Option<String>,
    /// Seconds before the measurement, with `--warm-up`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warm_up_seconds: Option<f64>,
    /// Most operations a second, with `--rate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// Whether writes are durable before they complete.
    pub fua: bool,
    /// What goes on beside it, as `--beside` writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub beside: Option<String>,
    /// Threads that share the volume, with `--threads`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u16>,
    /// With `--threads`: whether a thread that waits does the work itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<bool>,
    /// With `--threads`: whether operations are sent together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub batching: Option<bool>,
    /// The cores that have lanes, with `--cores` or those of the URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<String>,
}

/// Lanes that were asked for, by class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LanesAsked {
    default: u32,
    read: u32,
    poll: u32,
}

impl Workload {
    /// What `args` ask for; of the lanes, what was `granted`, on `cores` if there are any.
    pub fn new(args: &Args, granted: Classes, cores: &Cores) -> Workload {
        let threads = &args.threads;
        let of_threads = |is_on: bool| threads.threads.map(|_| is_on);
        let asked = LanesAsked {
            default: args.lanes.into(),
            read: args.read_lanes.into(),
            poll: args.poll_lanes.into(),
        };
        Workload {
            uri: args.uri.clone(),
            rw: name(&args.rw),
            mix: (args.rw == super::Rw::Randrw).then(|| args.mix()),
            block_bytes: args.bs,
            depth: u32::from(args.depth),
            lanes: granted.default as u32,
            read_lanes: granted.read as u32,
            poll_lanes: granted.poll as u32,
            lanes_asked: asked,
            is_spread: args.spread,
            class: args.class.as_ref().map(name),
            mode: name(&args.mode),
            hdr_digest: args.host.hdr_digest,
            data_digest: args.host.data_digest,
            hold: args.hold.as_ref().map(show_hold),
            warm_up_seconds: (!args.warm_up.is_zero()).then_some(args.warm_up.as_secs_f64()),
            rate: args.rate,
            fua: args.fua,
            beside: args.beside.as_ref().map(ToString::to_string),
            threads: threads.threads,
            inline: of_threads(threads.inline.is_on()),
            batching: of_threads(threads.batching.is_on()),
            cores: list(with_lanes(cores, granted)),
        }
    }

    /// Size, depth, lanes and mode: what a figure is compared by first.
    pub fn shape(&self) -> String {
        let Workload { rw, block_bytes, depth, mode, .. } = self;
        let mix = self.mix.map_or(String::new(), |mix| format!(" {mix} % reads"));
        format!("{rw}{mix} {block_bytes} B x depth {depth} {}, {mode} mode", self.lanes_to_text())
    }

    /// Everything else that was chosen, on one line.
    pub fn choices(&self) -> String {
        let on = |is_on: bool| if is_on { "on" } else { "off" };
        let digests = match (self.hdr_digest, self.data_digest) {
            (true, true) => "header and data",
            (true, false) => "header",
            (false, true) => "data",
            (false, false) => "none",
        };
        let class = self.class.as_deref().unwrap_or("by direction");
        let mut text =
            format!("class {class}, digests {digests}, hold {}", self.hold.as_deref().unwrap_or("off"));
        for (name, value) in [("inline", self.inline), ("batching", self.batching)] {
            text += &value.map_or(String::new(), |is_on| format!(", {name} {}", on(is_on)));
        }
        text += &self.cores.as_ref().map_or(String::new(), |cores| format!(", lanes on cores {cores}"));
        text += if self.fua { ", FUA" } else { "" };
        text += &self.warm_up_seconds.map_or(String::new(), |seconds| format!(", warm-up {seconds} s"));
        text += &self.rate.map_or(String::new(), |rate| format!(", at most {rate} operations/s"));
        text + &self.beside.as_ref().map_or(String::new(), |beside| format!(", beside {beside}"))
    }

    fn lanes_to_text(&self) -> String {
        let Workload { lanes, is_spread, lanes_asked: asked, .. } = self;
        let plural = |count: u32| if count == 1 { "" } else { "s" };
        let sign = if *is_spread { "over" } else { "x" };
        let mut text = match self.threads {
            Some(threads) => {
                format!("x {threads} thread{}, {lanes} lane{}", plural(u32::from(threads)), plural(*lanes))
            }
            None => format!("{sign} {lanes} lane{}", plural(*lanes)),
        };
        for (count, asked, name) in
            [(self.read_lanes, asked.read, "read"), (self.poll_lanes, asked.poll, "poll")]
        {
            if count < asked {
                text.push_str(&format!(" + {count} {name} (of {asked} asked for)"));
            } else if count > 0 {
                text.push_str(&format!(" + {count} {name}"));
            }
        }
        text
    }
}

/// The lanes of a volume, by class; none without connections.
pub fn granted(connections: &[ConnectionStatus]) -> Option<Classes> {
    let count = |class| connections.iter().filter(|one| one.lane.is_some_and(|(of, _)| of == class)).count();
    let granted =
        Classes { default: count(Class::Default), read: count(Class::Read), poll: count(Class::Poll) };
    (granted.default > 0).then_some(granted)
}

/// Those of the cores that have lanes: each class is dealt out from the first core upward.
pub fn with_lanes(cores: &Cores, granted: Classes) -> &[usize] {
    let most = granted.default.max(granted.read).max(granted.poll);
    &cores.as_slice()[..most.min(cores.as_slice().len())]
}

fn list(cores: &[usize]) -> Option<String> {
    let texts: Vec<_> = cores.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

/// A choice as it is written.
fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
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

    /// One of depth 1.
    pub fn workload() -> Workload {
        of("--depth 1", Classes { default: 1, read: 0, poll: 0 })
    }

    fn of(arguments: &str, granted: Classes) -> Workload {
        let line = format!("bench nvme+tcp://127.0.0.1/x {arguments}");
        let args = Line::try_parse_from(line.split_whitespace()).unwrap().args;
        Workload::new(&args, granted, &args.threads.cores.clone().unwrap_or_default())
    }

    #[test]
    fn the_heading_has_what_was_chosen() {
        let classes = Classes { default: 2, read: 0, poll: 1 };
        let chosen = of("--lanes 2 --poll-lanes 1 --class poll --hold=8:4k:20us -g -G --fua", classes);
        assert_eq!(chosen.shape(), "randread 4096 B x depth 32 x 2 lanes + 1 poll, adaptive mode");
        assert_eq!(chosen.choices(), "class poll, digests header and data, hold 8:4k:20us, FUA");
        let threads = of("--rw randrw --threads 3 --batching off", Classes { default: 1, read: 0, poll: 0 });
        assert_eq!(threads.shape(), "randrw 70 % reads 4096 B x depth 32 x 3 threads, 1 lane, adaptive mode");
        assert_eq!(threads.choices(), "class by direction, digests none, hold off, inline on, batching off");
        let placed = of("--threads 2 --cores 0-1", classes).choices();
        assert!(placed.ends_with(", inline on, batching on, lanes on cores 0,1"), "{placed}");
    }

    #[test]
    fn cores_without_a_lane_are_not_in_the_heading() {
        let classes = Classes { default: 1, read: 2, poll: 0 };
        let placed = of("--threads 2 --read-lanes 2 --cores 3,5,0-2", classes);
        assert_eq!(placed.cores.as_deref(), Some("3,5"));
    }

    #[test]
    fn lanes_that_were_not_granted_are_told() {
        let granted = Classes { default: 1, read: 63, poll: 0 };
        let shrunk = of("--read-lanes 70 --poll-lanes 2", granted);
        assert_eq!((shrunk.lanes, shrunk.read_lanes, shrunk.poll_lanes), (1, 63, 0));
        assert_eq!(shrunk.lanes_asked, LanesAsked { default: 1, read: 70, poll: 2 });
        let text = shrunk.shape();
        assert!(text.contains("1 lane + 63 read (of 70 asked for) + 0 poll (of 2 asked for)"), "{text}");
    }
}
