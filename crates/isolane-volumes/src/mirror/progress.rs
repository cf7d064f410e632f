//! State of a mirror for its operator: in sync, copying, or degraded. Logs each change.

use std::time::Instant;

use isolane_volume::tree::MirrorState;

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

    /// Returns the state of a mirror whose members have these states.
    pub fn state(&self, members: [MemberState; 2], has_failed: bool) -> MirrorState {
        let find = |wanted: MemberState| members.iter().position(|member| *member == wanted);
        match (find(MemberState::Out), find(MemberState::Incomplete)) {
            _ if has_failed => MirrorState::Failed,
            (Some(without), _) => MirrorState::Degraded { without },
            (None, Some(to)) => MirrorState::Copying { to, percent: self.percent() },
            (None, None) => MirrorState::InSync,
        }
    }

    /// Describes a mirror whose members have these states.
    pub fn describe(&self, members: [MemberState; 2], has_failed: bool) -> String {
        match self.state(members, has_failed) {
            MirrorState::Failed => "all changes fail after an error; see the log".to_owned(),
            MirrorState::Degraded { without } => {
                let (seconds, member) = (self.changed_at.elapsed().as_secs(), without + 1);
                format!(
                    "degraded for {seconds} s, without member {member}; repair it, and restart this target"
                )
            }
            MirrorState::Copying { to, percent } => format!("copying to member {}, {percent} %", to + 1),
            MirrorState::InSync => "in sync".to_owned(),
        }
    }
}
