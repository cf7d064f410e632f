//! How the process's open files are shared between connected queues and connections before Connect.

use isolane_reactor::cpu::raise_fd_limit;

use crate::shared::MAX_CLOSING;

/// Raises the limit of open files as far as it may be raised, and returns it.
pub(crate) fn raise_limit() -> usize {
    let limit = raise_fd_limit().unwrap_or_else(|error| {
        log::warn!("cannot raise the limit of open files: {error}");
        DEFAULT_LIMIT
    });
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// How many connected queues and how many connections before Connect are possible within the limit and beside
/// the files that are open now; at most as many as wished for.
pub(crate) fn share(limit: usize, connections: usize, newcomers: usize) -> (usize, usize) {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let free = limit.saturating_sub(open + MAX_CLOSING + RESERVE);
    let shares = split(free, connections, newcomers);
    if shares.0 < connections {
        let wanted = connections + newcomers + open + MAX_CLOSING + RESERVE;
        log::warn!(
            "the limit of {limit} open files allows {} connected queues and {} connections before Connect; \
             raise it with `ulimit -n {wanted}`",
            shares.0,
            shares.1
        );
    }
    shares
}

/// Newcomers get what connected queues leave, a quarter at least.
fn split(free: usize, connections: usize, newcomers: usize) -> (usize, usize) {
    let newcomers_least = newcomers.min(free / 4).max(1);
    let connections = connections.min(free.saturating_sub(newcomers_least)).max(1);
    (connections, newcomers.min(free.saturating_sub(connections)).max(1))
}

/// Files of the program that are opened later: volumes that are reopened, logs, what a debugger needs.
const RESERVE: usize = 32;
/// The soft limit on most systems.
const DEFAULT_LIMIT: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gives_as_many_as_wished_for_if_there_are_enough() {
        assert_eq!(split(20_000, 4096, 12_288), (4096, 12_288));
        assert_eq!(split(usize::MAX, 4096, 12_288), (4096, 12_288));
    }

    #[test]
    fn keeps_a_quarter_for_newcomers_if_there_are_few() {
        assert_eq!(split(900, 4096, 12_288), (675, 225));
        assert_eq!(split(900, 4096, 16), (884, 16));
        assert_eq!(split(900, 100, 12_288), (100, 800));
        assert_eq!(split(0, 4096, 12_288), (1, 1));
    }
}
