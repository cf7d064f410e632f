//! State of a mirror for its operator: in sync, copying, or degraded. Logs each change.

use std::time::Instant;

use super::record::MemberState;

/// Progress of the copy, and the time of the last removal.
#[derive(Debug)]
pub(super) struct Progress {
    /// Regions to copy and copied regions, while a copy runs.
    copy: Option<(u64, u64)>,
    /// When a member was removed, or the mirror was opened.
    changed_at: Instant,
}

impl Progress {
    pub fn new() -> Progress {
        Progress { copy: None, changed_at: Instant::now() }
    }

    /// Records that a member was removed.
    pub fn on_removed(&mut self) {
        *self = Progress::new();
    }

    /// Logs the start of a copy unless it runs.
    pub fn on_region(&mut self, name: &str, member: usize, count: impl FnOnce() -> u64) {
        if self.copy.is_none() {
            let total = count();
            log::info!("{name}: copying {total} regions to member {}", member + 1);
            self.copy = Some((total, 0));
        }
    }

    /// Records a copied region, and logs each tenth part.
    pub fn on_copied(&mut self, name: &str) {
        let before = self.percent();
        if let Some((_, copied)) = &mut self.copy {
            *copied += 1;
        }
        let percent = self.percent();
        if percent / 10 > before / 10 && percent < 100 {
            log::info!("{name}: copied {percent} %");
        }
    }

    /// Logs the end of a copy.
    pub fn on_complete(&mut self, name: &str) {
        self.copy = None;
        log::info!("{name}: in sync, both members have all data");
    }

    /// Returns the copied share. Writes that fail can add regions, so it stays below 100 until the copy ends.
    fn percent(&self) -> u64 {
        self.copy.map_or(0, |(total, copied)| (copied * 100 / total.max(1)).min(99))
    }

    /// Describes a mirror whose members have these states.
    pub fn describe(&self, members: [MemberState; 2], has_failed: bool) -> String {
        let find = |wanted: MemberState| members.iter().position(|member| *member == wanted);
        let remedy = "repair it, and restart this target";
        if has_failed {
            return "all changes fail after an error; see the log".to_owned();
        }
        match (find(MemberState::Out), find(MemberState::Incomplete)) {
            (Some(out), _) => {
                let seconds = self.changed_at.elapsed().as_secs();
                format!("degraded for {seconds} s, without member {}; {remedy}", out + 1)
            }
            (None, Some(member)) => format!("copying to member {}, {} %", member + 1, self.percent()),
            (None, None) => "in sync".to_owned(),
        }
    }
}
