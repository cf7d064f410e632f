//! Shares of the open-file limit for connected queues and for connections before Connect.

use isolane_reactor::cpu::raise_fd_limit;

use crate::error::StartError;
use crate::shared::MAX_CLOSING;

/// Raises the limit of open files to the hard limit, and returns it.
pub(crate) fn raise_limit() -> usize {
    let limit = raise_fd_limit().unwrap_or_else(|error| {
        log::warn!("cannot raise the limit of open files: {error}");
        DEFAULT_LIMIT
    });
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the numbers of connected queues and of connections before Connect that fit into the limit, next to
/// the files that are open already; at most the requested numbers.
///
/// # Errors
/// If not even one host can connect.
pub(crate) fn share(
    limit: usize,
    connections: usize,
    newcomers: usize,
) -> Result<(usize, usize), StartError> {
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let used = open + MAX_CLOSING + RESERVE;
    let needed = used + ONE_HOST;
    let wanted = connections + newcomers + used;
    if limit < needed {
        return Err(StartError::OpenFiles { limit, needed, wanted });
    }
    let shares = split(limit - used, connections, newcomers);
    if shares.0 < connections {
        log::warn!(
            "the limit of {limit} open files allows {} connected queues and {} connections before Connect; \
             raise it with `ulimit -n {wanted}`",
            shares.0,
            shares.1
        );
    }
    Ok(shares)
}

/// Newcomers get the files that connected queues leave, at least a quarter.
fn split(free: usize, connections: usize, newcomers: usize) -> (usize, usize) {
    let newcomers_least = newcomers.min(free / 4).max(1);
    let connections = connections.min(free.saturating_sub(newcomers_least)).max(1);
    (connections, newcomers.min(free.saturating_sub(connections)).max(1))
}

/// Connections of one host: an admin queue, an I/O queue, and one before Connect.
const ONE_HOST: usize = 3;
/// Files that the program opens later, such as reopened volumes and logs.
const RESERVE: usize = 32;
/// The soft limit on most systems.
const DEFAULT_LIMIT: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_both_limits_if_possible() {
        assert_eq!(split(20_000, 4096, 12_288), (4096, 12_288));
        assert_eq!(split(usize::MAX, 4096, 12_288), (4096, 12_288));
    }

    #[test]
    fn keeps_a_quarter_for_newcomers() {
        assert_eq!(split(900, 4096, 12_288), (675, 225));
        assert_eq!(split(900, 4096, 16), (884, 16));
        assert_eq!(split(900, 100, 12_288), (100, 800));
        assert_eq!(split(ONE_HOST, 4096, 12_288), (2, 1), "an admin queue and an I/O queue");
    }

    #[test]
    fn rejects_limit_below_one_host() {
        let least = (1..).find(|limit| share(*limit, 4096, 12_288).is_ok()).unwrap();
        assert_eq!(share(least + 8, 1, 1).unwrap(), (1, 1));
        let text = share(MAX_CLOSING + RESERVE + ONE_HOST, 4096, 12_288).unwrap_err().to_string();
        assert!(text.contains("67 open files") && text.contains("ulimit -n 164"), "{text}");
    }
}
