//! Processes and their threads: `/proc/PID`.

use super::fields::Fields;
use super::read_error::{Malformed, ReadError, Reason};
use super::root::{Root, SMALL};

/// Limit for the number of threads that [`tasks`] returns.
pub const MAX_TASKS: usize = 65_536;

/// Scheduling of a thread since its start: `schedstat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedStat {
    /// Time on a CPU, in nanoseconds.
    pub ran_ns: u64,
    /// Time in which the thread could run and another thread ran, in nanoseconds.
    pub waited_ns: u64,
    /// Number of time slices.
    pub slices: u64,
}

/// Decodes `/proc/self/task/T/schedstat`.
///
/// # Errors
/// A number is missing.
pub fn decode_schedstat(text: &str) -> Result<SchedStat, Malformed> {
    let mut fields = Fields::new(0, text);
    let mut number = || fields.number("three numbers");
    Ok(SchedStat { ran_ns: number()?, waited_ns: number()?, slices: number()? })
}

/// A thread: fields of `stat`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStat {
    /// ID of the thread.
    pub tid: u32,
    /// Name of the thread, as the thread has chosen it.
    pub name: String,
    /// State, for example `R`.
    pub state: char,
    /// Time in the program and in the kernel, in ticks.
    pub ticks: u64,
    /// The CPU on which the thread ran last.
    pub cpu: u32,
}

/// Decodes `/proc/PID/task/TID/stat`.
///
/// # Errors
/// A field is missing.
pub fn decode_task_stat(text: &str) -> Result<TaskStat, Malformed> {
    let malformed = || Malformed::at(0, "the fields of a thread");
    // The name can contain parentheses and spaces.
    let (start, rest) = text.rsplit_once(')').ok_or_else(malformed)?;
    let (tid, name) = start.split_once(" (").ok_or_else(malformed)?;
    let tid = tid.trim().parse().map_err(|_| malformed())?;
    let mut fields = Fields::new(0, rest);
    let state = fields.word("a state")?.chars().next().ok_or_else(malformed)?;
    fields.skip(10, "the fields of a thread")?;
    let (user, system): (u64, u64) = (fields.number("a time")?, fields.number("a time")?);
    fields.skip(23, "the fields of a thread")?;
    let cpu = fields.number("a CPU")?;
    Ok(TaskStat { tid, name: name.to_owned(), state, ticks: user.saturating_add(system), cpu })
}

/// A thread with the ID of its process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Task {
    /// ID of the process.
    pub pid: u32,
    /// The thread.
    pub stat: TaskStat,
}

/// Returns the threads of all processes, at most [`MAX_TASKS`]. Threads that end in the meantime are left out.
///
/// # Errors
/// `/proc` cannot be read, or the first `stat` that is malformed.
pub fn tasks(root: &Root) -> Result<Vec<Task>, ReadError> {
    let mut found = Vec::new();
    for pid in root.list("/proc")?.iter().filter_map(|name| name.parse().ok()) {
        let Some(tids) = if_alive(root.list(&format!("/proc/{pid}/task")))? else { continue };
        for tid in tids {
            let path = format!("/proc/{pid}/task/{tid}/stat");
            let stat = if_alive(root.parse(&path, SMALL, decode_task_stat))?;
            found.extend(stat.map(|stat| Task { pid, stat }));
            if found.len() == MAX_TASKS {
                return Ok(found);
            }
        }
    }
    Ok(found)
}

/// Returns `None` for a process that has ended, or that is hidden from this user.
fn if_alive<T>(result: Result<T, ReadError>) -> Result<Option<T>, ReadError> {
    match result {
        Err(ReadError { reason: Reason::Missing | Reason::NotPermitted, .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the value of a field of `/proc/PID/status`, for example `0-3` of `Cpus_allowed_list`.
///
/// # Errors
/// The field is missing.
pub fn decode_status_field<'a>(text: &'a str, name: &str) -> Result<&'a str, Malformed> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    let missing = || Malformed::at(text.lines().count(), "a field that is missing");
    text.lines().find_map(value).map(str::trim).ok_or_else(missing)
}

/// Returns the hard limit of open files in `/proc/PID/limits`, `None` if it is unlimited. Isolane raises the soft limit to
/// it.
///
/// # Errors
/// The limit is missing or malformed.
pub fn decode_file_limit(text: &str) -> Result<Option<u64>, Malformed> {
    let name = "Max open files";
    let (index, line) = text.lines().enumerate().find(|(_, line)| line.starts_with(name)).unwrap_or_default();
    let mut fields = Fields::new(index, line.strip_prefix(name).unwrap_or_default());
    fields.skip(1, "the limit of open files")?;
    match fields.word("the limit of open files")? {
        "unlimited" => Ok(None),
        limit => limit.parse().map(Some).map_err(|_| fields.malformed("the limit of open files")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    /// A thread named `a) (b` with 12 ticks on CPU 5.
    const STAT: &str = "31 (a) (b) R 1 1 1 0 -1 4194304 100 0 0 0 5 7 0 0 20 0 1 0 19 31 40 18 9 9 9 0 0 0 0 0 0 0 0 0 17 5 \
                        0 0 0\n";

    #[test]
    fn decodes_threads_with_any_name() {
        let stat = decode_task_stat(STAT).unwrap();
        assert_eq!(stat, TaskStat { tid: 31, name: "a) (b".into(), state: 'R', ticks: 12, cpu: 5 });
        for cut in 0..STAT.rfind("5 0 0 0").unwrap() {
            assert!(decode_task_stat(&STAT[..cut]).is_err(), "{cut}");
        }
    }

    #[test]
    fn decodes_times_on_a_cpu() {
        let stat = SchedStat { ran_ns: 368_588, waited_ns: 54_641, slices: 1 };
        assert_eq!(decode_schedstat("368588 54641 1\n"), Ok(stat));
        assert!(decode_schedstat("1 2").is_err() && decode_schedstat("1 2 x").is_err());
    }

    #[test]
    fn finds_fields_of_a_process() {
        let status = "Name:\tcat\nVmSwap:\t 4 kB\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n";
        assert_eq!(decode_status_field(status, "Cpus_allowed_list").unwrap(), "0-1");
        assert_eq!(decode_status_field(status, "VmSwap").unwrap(), "4 kB");
        assert!(decode_status_field(status, "Seccomp").is_err());
        let limits = "Limit  Soft Limit Hard Limit Units\nMax open files            1024 4096 files\n";
        assert_eq!(decode_file_limit(limits), Ok(Some(4096)));
        assert_eq!(decode_file_limit("Max open files unlimited unlimited files"), Ok(None));
        assert!(decode_file_limit("").is_err() && decode_file_limit("Max open files 1 x").is_err());
    }

    #[test]
    fn lists_threads_of_all_processes() {
        let tree =
            Tree::new(&[("/proc/31/task/31/stat", STAT), ("/proc/31/task/32/comm", ""), ("/proc/stat", "")]);
        let found = tasks(&tree.root()).unwrap();
        assert_eq!((found.len(), found[0].pid, found[0].stat.cpu), (1, 31, 5));
        tree.write_bytes("/proc/31/task/32/stat", b"bad");
        assert!(tasks(&tree.root()).is_err());
        assert!(tasks(&Root::system().unwrap()).unwrap().iter().any(|task| task.pid == std::process::id()));
    }
}
