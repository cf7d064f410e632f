//! Sections of the manual pages next to the definition of the command line: exit status, environment, files, and examples.

use clap_mangen::roff::{Roff, bold, roman};

/// Examples at the start of the help.
pub const BEFORE_HELP: &str = "\
Examples:
  isolane serve disk.img,size=10G                     export a disk image, created if missing
  isolane info nvme+tcp://127.0.0.1                   show a target, its volumes, and limits
  isolane copy disk.img nvme+tcp://10.0.0.1 --verify  copy a file to a volume and check it
  isolane bench nvme+tcp://127.0.0.1 --rw randread    measure a volume
  isolane engine --cores 1                            process traffic of other programs on core 1";

/// The sections for one command. Items are lines of a term and its description.
#[derive(Default)]
struct Sections {
    status: &'static str,
    environment: &'static str,
    files: &'static str,
    examples: &'static str,
}

/// Appends the sections of `command` to its page, the last with the related pages.
pub fn write(command: &str, see_also: &str, page: &mut Vec<u8>) -> std::io::Result<()> {
    let Sections { status, environment, files, examples } = of(command);
    let mut roff = Roff::new();
    let status = format!("{STATUS}{status}");
    for (title, text) in
        [("EXIT STATUS", &*status), ("ENVIRONMENT", environment), ("FILES", files), ("EXAMPLES", examples)]
    {
        roff.control("SH", [title]);
        for (term, description) in items(text) {
            roff.control("TP", []).text([bold(term)]).text([roman(description)]);
        }
        if text.is_empty() {
            roff.text([roman("None.")]);
        }
    }
    roff.control("SH", ["SEE ALSO"]).text([roman(see_also)]);
    roff.to_writer(page)
}

/// Returns the terms of a section and their descriptions.
fn items(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| line.split_once(": "))
}

/// Exit status of every command.
const STATUS: &str = "\
0: Success.
1: Failure; one line on standard error names the cause and the remedy.
2: Wrong usage.
";

/// Identity of a host.
const HOST_FILES: &str = "\
/etc/nvme/hostnqn, /etc/nvme/hostid: Name and ID of this host, unless --host-nqn and --host-id are given.
/etc/machine-id, /var/lib/dbus/machine-id: Source of name and ID of this host otherwise.";

/// Socket and program of an engine.
macro_rules! engine_environment {
    () => {
        "\
XDG_RUNTIME_DIR: With via=engine, directory of the socket isolane/engine.sock (default: /tmp/isolane-UID/engine.sock).
ISOLANE_BIN: Program to start as an engine if none is running.
ISOLANE_TRUSTED_UIDS: IDs of other users whose engines may be used, separated by commas."
    };
}

const ENGINE_ENVIRONMENT: &str = engine_environment!();

/// Socket and program of an engine, and the control socket of a command with a host.
const HOST_ENVIRONMENT: &str = concat!(
    engine_environment!(),
    "
ISOLANE_CONTROL: Path of a control socket while the command runs, for isolane top, explain, slow, and snapshot; \
ignored if the program is set-user-ID."
);

/// Directory of control sockets.
const CONTROL_ENVIRONMENT: &str = "\
RUNTIME_DIRECTORY: Directory of control sockets, as systemd sets it.
XDG_RUNTIME_DIR: Its directory isolane has the control sockets otherwise (default: /tmp/isolane-UID).";

const TOP_ENVIRONMENT: &str = "\
RUNTIME_DIRECTORY: Directory of control sockets, as systemd sets it.
XDG_RUNTIME_DIR: Its directory isolane has the control sockets otherwise (default: /tmp/isolane-UID).
NO_COLOR: If it is not empty, nothing is colored.
TERM: With dumb, or without a value, all tables are printed once.";

/// Control sockets.
const CONTROL_FILES: &str = "\
KIND-PID.sock: Control socket of a running program, for example serve-4711.sock.";

/// Control socket of a program with verbs.
macro_rules! verbs_control {
    () => {
        "\
ISOLANE_CONTROL: Path of a control socket while the program runs, for isolane top, explain, and snapshot; \
ignored if the program is set-user-ID."
    };
}

/// The key of a program with verbs.
macro_rules! verbs_key {
    () => {
        "\
ISOLANE_VERBS_KEY: File with the key that both ends have, as isolane key gen writes it."
    };
}

const VERBS_KEY: &str = verbs_key!();

/// Variables that choose the libraries of RDMA devices.
macro_rules! libraries_environment {
    () => {
        "\
CC: C compiler that links the libraries in a build directory (default: cc).
LD_LIBRARY_PATH: Directories of the installed libraries, before the usual ones."
    };
}

/// Variables of unmodified programs with RDMA devices.
macro_rules! devices_environment {
    () => {
        "\
ISOLANE_IBVERBS: File to preload instead of the libraries with symbol versions.
ISOLANE_VERBS_SOCKET, ISOLANE_VERBS_PROGRESS, ISOLANE_VERBS_LANES, ISOLANE_VERBS_CRC, ISOLANE_VERBS_PORTS, \
ISOLANE_VERBS_KEY: Values of the options that are not given.
TMPDIR: Directory for the files of the devices, when a program runs (default: /tmp)."
    };
}

const VERBS_FILES: &str = "\
isolane-verbs: Directory of the libraries, next to this program, in ../lib, or in ../lib/isolane.";

fn of(command: &str) -> Sections {
    match command {
        "isolane" => Sections {
            environment: ENGINE_ENVIRONMENT,
            files: HOST_FILES,
            examples: "\
isolane serve disk.img,size=10G: Export a disk image, created sparse if it is missing.
isolane info nvme+tcp://127.0.0.1: Show a target, its volumes, and limits.
isolane copy disk.img nvme+tcp://10.0.0.1 --verify: Copy a file to a volume and check it.
isolane bench nvme+tcp://127.0.0.1 --rw randread: Measure a volume.
isolane engine --cores 1: Process traffic of other programs on core 1.",
            ..Sections::default()
        },
        "serve" => Sections {
            status: "\
1: Also if data may be lost, a volume was skipped, or a served file was deleted, replaced, or moved; the log names it. \
Also for what may end by itself: a path that is missing, an address that is not available.
2: Also a wrong configuration, key, or state file, which no repetition corrects.
129, 130, 143: Ended by a second SIGHUP, SIGINT, or SIGTERM.",
            environment: CONTROL_ENVIRONMENT,
            files: "\
/etc/machine-id, /var/lib/dbus/machine-id, /etc/hostname: Source of the default NQN, with the identities of the volumes.
serve-PID.sock: Control socket, in the directory above.",
            examples: "\
isolane serve: Serve 1 GiB of memory at 127.0.0.1:4420.
isolane serve disk.img,size=10G /dev/sdb,ro: Serve a file, and a disk read-only.
isolane serve 'stripe:64k:/dev/sdb;/dev/sdc': Serve two disks as one stripe.
isolane serve --listen 10.0.0.1:4420 --allow-host nqn.2014-08.org.example:host mem:4G: Serve one host on a network.
isolane serve --config /etc/isolane/isolane.toml: Serve what a file describes.
isolane serve --cores 2-3 --mode poll null:1T: Spin on two cores for the lowest latency.",
        },
        "export" => Sections {
            status: "\
1: Also if data may be lost, or an exported file was deleted, replaced, or moved; the log names it.
129, 130, 143: Ended by a second SIGHUP, SIGINT, or SIGTERM.",
            examples: "\
isolane export disk.img,size=10G --nbd ./disk.sock: Export a file to programs of this user.
isolane export mem:1G --nbd 10809 --name scratch: Export memory at 127.0.0.1:10809.
isolane export 'nvme+tcp://10.0.0.1/NQN?nsid=1' --nbd ./remote.sock: Export a volume of a target.
isolane export disk.img --vhost-user-blk ./vm.sock: Export a file to virtual machines of this user.",
            ..Sections::default()
        },
        "config" => Sections {
            examples: "\
isolane config check /etc/isolane/isolane.toml: Check a file.
isolane config diff /etc/isolane/isolane.toml new.toml: List the changes, and when each takes effect.
isolane config dump --nqn nqn.2014-08.org.example:disks /srv/a.img,size=10G: Start a file from arguments of serve.
isolane config schema: Print the JSON Schema of files.",
            ..Sections::default()
        },
        "config-check" => Sections {
            status: "1: Also for a file that this version cannot serve, and with --strict or server.strict if a host on another machine has access without authentication.",
            examples: "\
isolane config check /etc/isolane/isolane.toml: Report errors and gaps of a file.
isolane config check --strict /etc/isolane/isolane.toml: Fail also if access without authentication is possible.",
            ..Sections::default()
        },
        "config-diff" => Sections {
            examples: "isolane config diff /etc/isolane/isolane.toml new.toml: List the changes of a new file.",
            ..Sections::default()
        },
        "config-dump" => Sections {
            examples: "\
isolane config dump: Print the file of `isolane serve` without arguments.
isolane config dump --running > isolane.toml: Write the file of the running target.
isolane config dump --listen 10.0.0.1:4420 --nqn nqn.2014-08.org.example:disks /srv/a.img: Print the file of a target.",
            ..Sections::default()
        },
        "config-schema" => Sections {
            examples: "isolane config schema > isolane.schema.json: Save the schema for an editor.",
            ..Sections::default()
        },
        "ctl" => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane ctl status: List the namespaces of the only running target.
isolane ctl namespace add /srv/b.img,size=10G: Serve another file.
isolane ctl namespace resize 1 20G: Grow a file and its namespace.
isolane ctl namespace remove 2 --socket /run/isolane/serve-812.sock: End a namespace of one of several targets.",
            ..Sections::default()
        },
        _ if command.starts_with("ctl-") => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            ..Sections::default()
        },
        "discover" => Sections {
            files: HOST_FILES,
            examples: "\
isolane discover nvme+tcp://10.0.0.1: List the subsystems of a target.
isolane discover nvme+tcp://10.0.0.1:8009 --json: List the subsystems of another port, as JSON.",
            ..Sections::default()
        },
        "doctor" => Sections {
            status: "\
0: Also if only information was found.
3: A warning, or a check that could not read its data.
4: An error.",
            files: "/proc, /sys, /etc/default/irqbalance: Settings and counters, below --root.",
            examples: "\
isolane doctor: Check this system.
isolane doctor $XDG_RUNTIME_DIR/isolane/serve-4711.sock: Check the system and a running target.
isolane doctor --cores 2-3 --only cpu --only irq: Check two areas for reactors on two cores.
isolane doctor --fix > fix.sh: Write a script with the remedies, to read and edit.",
            ..Sections::default()
        },
        "info" => Sections {
            files: HOST_FILES,
            examples: "\
isolane info nvme+tcp://127.0.0.1: Show the only subsystem of a target.
isolane info 'nvme+tcp://10.0.0.1/nqn.2014-08.org.example:disk?nsid=2' --json: Show one namespace, as JSON.",
            ..Sections::default()
        },
        "copy" => Sections {
            status: "129, 130, 143: Ended by SIGHUP, SIGINT, or SIGTERM; an existing regular file is unchanged, a \
                     volume has part of the source.",
            environment: HOST_ENVIRONMENT,
            files: "\
.NAME.copying-XXXXXXXXXXXXXXXX: Incomplete regular file in the directory of the destination; kill -9 leaves it, and \
it can be deleted.
/etc/nvme/hostnqn, /etc/nvme/hostid: Name and ID of this host, unless --host-nqn and --host-id are given.",
            examples: "\
isolane copy disk.img nvme+tcp://10.0.0.1 --verify: Copy an image to a volume and check it.
isolane copy 'nvme+tcp://10.0.0.1?nsid=2' backup.img: Back up a volume; zeros become holes.
zcat disk.img.gz | isolane copy - nvme+tcp://10.0.0.1 --pad: Copy a pipe, and pad its last block with zeros.",
        },
        "bench" => Sections {
            status: "\
0: Also after SIGHUP, SIGINT, or SIGTERM, with the results so far.
129, 130, 143: Ended by SIGHUP, SIGINT, or SIGTERM with --verify, before all data was read back.
1: Also if an operation failed, or with --verify if a block was wrong.",
            environment: HOST_ENVIRONMENT,
            files: HOST_FILES,
            examples: "\
isolane bench nvme+tcp://127.0.0.1 --rw write --bs 1m: Fill the volume, because unwritten memory reads too fast. \
Destroys its data.
isolane bench nvme+tcp://127.0.0.1 --rw randrw --mix 70 --warm-up 2s --time 30s: Measure reads and writes, \
together and separately. Destroys its data.
isolane bench nvme+tcp://127.0.0.1 --depth 1 --mode poll --core 1: Measure latency without sleeping.
isolane bench nvme+tcp://127.0.0.1 --rate 10000 --json result.json: Measure latency at 10,000 operations per second.
isolane bench nvme+tcp://127.0.0.1 --rw randrw --verify --time 10m: Check every block. Destroys its data.",
        },
        "engine" => Sections {
            environment: ENGINE_ENVIRONMENT,
            files: "\
$XDG_RUNTIME_DIR/isolane/engine.sock, /tmp/isolane-UID/engine.sock: Socket for applications, PATH below.
PATH.lock: PID of the supervisor, which locks the file.
PATH.log: Log of an engine with --daemon.
engine-PID.sock: Control socket, next to PATH, with the PID of the supervisor.",
            examples: "\
isolane engine --cores 2-3: Run on two cores until a signal.
isolane engine --daemon --idle-timeout 30s: Run in the background until 30 s without clients.
isolane engine upgrade: Upgrade the engine to a newer program; sessions continue.
isolane snapshot: Print the latencies of its volumes as JSON, if no other program with a control socket runs.
isolane engine stop: Stop the engine, and wait for its end.
isolane bench 'nvme+tcp://127.0.0.1?via=engine': Measure a volume through the engine.",
            ..Sections::default()
        },
        "verbs" => Sections {
            examples: "isolane verbs bench 10.0.0.1: Measure SENDs to a server.",
            ..Sections::default()
        },
        "verbs-bench" => Sections {
            examples: "\
isolane verbs bench --server 10.0.0.1: Serve measurements at an address.
isolane verbs bench 10.0.0.1: Measure the latency of SENDs of 64 bytes.
isolane verbs bench 10.0.0.1 --operation write --size 4k,64k,1m --depth 16: Measure WRITEs of three sizes.",
            environment: concat!(verbs_key!(), "\n", verbs_control!()),
            ..Sections::default()
        },
        "verbs-env" => Sections {
            environment: concat!(devices_environment!(), "\n", libraries_environment!()),
            examples: "eval \"$(isolane verbs env)\": Give the devices to all programs that this shell starts.",
            ..Sections::default()
        },
        "verbs-libs" => Sections {
            environment: libraries_environment!(),
            files: VERBS_FILES,
            examples: "\
isolane verbs libs: Print the directory, as for NCCL_IBVERBS_LIB=$(isolane verbs libs)/libibverbs.so.1.
isolane verbs libs --link /opt/lib: Link the libraries into another directory.",
            ..Sections::default()
        },
        "verbs-run" => Sections {
            status: "any other: Exit status of PROGRAM, which replaces this one.",
            files: VERBS_FILES,
            environment: concat!(
                verbs_control!(),
                "\n",
                devices_environment!(),
                "\n",
                libraries_environment!(),
                "
LD_PRELOAD, LD_LIBRARY_PATH, FI_PROVIDER_PATH, ASAN_OPTIONS: The library, its directory, the one of the provider of \
libfabric, and an option that it needs, are put in front."
            ),
            examples: "isolane verbs run -- ibv_rc_pingpong -d isolane0 -g 0: Start a server of the package ibverbs-utils.",
        },
        "verbs-serve" => Sections {
            examples: "\
isolane verbs serve: Offer 1 MiB to programs of this machine.
isolane verbs serve 10.0.0.1 --bytes 1G --rkey 0x5eed: Offer 1 GiB at an address, with an rkey that clients know.",
            environment: VERBS_KEY,
            ..Sections::default()
        },
        "verbs-read" => Sections {
            examples: "isolane verbs read 10.0.0.1 --rkey 0x5eed --bytes 1M > copy: Copy the first 1 MiB to a file.",
            environment: VERBS_KEY,
            ..Sections::default()
        },
        "verbs-write" => Sections {
            examples: "isolane verbs write 10.0.0.1 --rkey 0x5eed file: Copy a file to the start of the memory.",
            environment: VERBS_KEY,
            ..Sections::default()
        },
        "verbs-devices" => Sections {
            examples: "isolane verbs devices --json: List the devices as JSON.",
            ..Sections::default()
        },
        "engine-run" => Sections {
            status: "any other: Exit status of PROGRAM, which replaces this one.",
            environment: "\
ISOLANE_PRELOAD: File of the library (default: next to this program, in ../lib, or in ../lib/isolane).
ISOLANE_ADOPT: always moves each connection with its first message, for tests.
LD_PRELOAD: The library is put in front.
XDG_RUNTIME_DIR: Directory of the socket isolane/engine.sock (default: /tmp/isolane-UID/engine.sock).
ISOLANE_BIN: Program to start as an engine if none is running.
ISOLANE_TRUSTED_UIDS: IDs of other users whose engines may be used, separated by commas.",
            examples: "\
isolane engine run -- redis-server: Move the connections of clients to the engine.
isolane engine run --stats=/tmp/stats -- nginx: Count the messages of each process.",
            ..Sections::default()
        },
        "engine-status" | "engine-stop" | "engine-upgrade" | "engine-logs" => Sections {
            environment: "XDG_RUNTIME_DIR: Directory of the socket isolane/engine.sock (default: \
                          /tmp/isolane-UID/engine.sock).",
            files: "\
PATH.lock: PID of the supervisor, which locks the file.
PATH.log: Log of an engine with --daemon.",
            examples: "\
isolane engine status: Show the engine of this user.
isolane engine logs --follow: Print its log, and follow it.",
            ..Sections::default()
        },
        "top" => Sections {
            status: "129, 130, 143: Ended by SIGHUP, SIGINT, or SIGTERM.",
            environment: TOP_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane top: Watch the only running program.
isolane top --once --window 10s: Print the numbers of 10 s once.
isolane top --from snapshot.json: Show the last second of a snapshot; [ and ] show other ones.",
        },
        "light" => Sections {
            examples: "\
isolane light disk5 locate: Find the drive of a volume of the only running program.
isolane light /dev/nvme5n1 fault --for 1h: Mark a drive as failed.
isolane light list: List the slots with lights.",
            ..Sections::default()
        },
        "key" | "key-gen" | "key-check" | "key-convert" => Sections {
            files: "FILE: One key, readable by its owner only; the owner is the user of the program, or root.",
            examples: "\
isolane key gen host.key: Write a new key, and print the lines for the other side.
isolane key check host.key: Check the key and its file.
isolane key convert host.key --host-nqn NQN: Print the lines for a host with this name.",
            ..Sections::default()
        },
        "heatmap" => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane heatmap -o latency.html: Draw the last minutes of the only running program.
isolane heatmap --from snapshot.json --by volume -o latency.svg: Draw the volumes of a snapshot.",
            ..Sections::default()
        },
        "explain" => Sections {
            status: "3: With --check, there is a finding.",
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane explain: Explain the slow operations of the only running target in the last 10 s.
isolane explain --from ticket.json --window 5m: Explain slow operations of a file.
isolane explain --quantile 0.99 --json --check: Fail with status 3 if there is a cause, and print it as JSON.",
        },
        "slow" => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane slow: List the slow operations of the only running target.
isolane slow --follow --json: Print them as they become known, as JSON.
isolane slow --from ticket.json: List operations of a file.",
            ..Sections::default()
        },
        "snapshot" => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane snapshot -o ticket.json: Save all data of the only running target.
isolane snapshot /run/isolane/serve-812.sock -o ticket.json: Save the data of one of several.",
            ..Sections::default()
        },
        "trace" => Sections {
            environment: CONTROL_ENVIRONMENT,
            files: CONTROL_FILES,
            examples: "\
isolane trace -o slow.json: Write the slow operations of the only running program.
isolane trace --from snapshot.json -o slow.json: Write operations of a snapshot.",
            ..Sections::default()
        },
        "man" => Sections {
            examples: "\
isolane man | man -l -: Read the page of the program.
isolane man /usr/local/share/man/man1: Install all pages.",
            ..Sections::default()
        },
        "completions" => Sections {
            files: "~/.local/share/bash-completion/completions/isolane: Default location for bash.",
            examples: "isolane completions bash > ~/.local/share/bash-completion/completions/isolane: Install \
                       completions for bash.",
            ..Sections::default()
        },
        _ => Sections::default(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::args::Cli;

    /// Returns the words of the call of the program.
    fn words(line: &str) -> Vec<&str> {
        let (_, call) = line.split_once("isolane ").unwrap();
        let call = call.split(['|', '>']).next().unwrap_or_default();
        std::iter::once("isolane")
            .chain(call.split_whitespace().map(|word| word.trim_matches('\'')))
            .collect()
    }

    const CONFIG: [&str; 4] = ["config-check", "config-diff", "config-dump", "config-schema"];

    #[test]
    fn examples_are_valid() {
        let names =
            Cli::command().get_subcommands().map(|command| command.get_name().to_owned()).collect::<Vec<_>>();
        for command in names
            .iter()
            .map(String::as_str)
            .chain(["isolane", "verbs-bench", "verbs-run", "verbs-devices"])
            .chain(CONFIG)
        {
            let examples = of(command).examples;
            assert!(!examples.is_empty(), "{command}");
            for (line, _) in items(examples) {
                Cli::try_parse_from(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }

    #[test]
    fn help_starts_with_examples() {
        let help = Cli::command().render_long_help().to_string();
        assert!(help.starts_with("Examples:\n"), "{help}");
        let examples: Vec<_> = items(of("isolane").examples).collect();
        assert_eq!(examples.len(), 5);
        for (example, line) in examples.iter().zip(help.lines().skip(1)) {
            assert!(line.trim().starts_with(example.0), "{line}");
        }
    }

    #[test]
    fn log_levels_are_listed_once() {
        let mut program = Cli::command();
        program.build();
        for command in program.get_subcommands_mut() {
            let help = command.render_long_help().to_string();
            assert!(
                help.matches("error, warn, info, debug").count() <= 1 && !help.contains("- trace"),
                "{help}"
            );
        }
    }
}
