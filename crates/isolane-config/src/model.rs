//! The model: the tables of the file, their keys, and the whole.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as MapEntry;

use isolane_host::Cores;
use isolane_volume::spec::MAX_NSID;
use isolane_volumes::Kinds;
use isolane_wire::Nqn;
use serde_json::{Value as Json, json};
use toml_edit::{ArrayOfTables, Item, TableLike};

use crate::choice::{AuthGroup, AuthHash, Choices, Idle, KernelInterface, Placement, Require, Scheduler};
use crate::names::{AuthKeys, Hosts, Model, Name, Names, Serial, StandardNqn, SubsystemNqn};
use crate::problem::{Invalid, has_secret, shown};
use crate::reader::Reader;
use crate::table::{self, Entry, KeyInfo, ReadTable, Table, inner_table, table};
use crate::value::{
    AbsolutePath, Addresses, ControlSocket, ListenAddress, Metrics, Number, OnSlow, OneIn, Size, Time,
};
use crate::volume::Volume;

table! {
    /// Limits. One more connection, association, or command than allowed is rejected; commands above the memory wait.
    pub struct Limits {
        /// Maximum number of connections.
        optional connections: Number<1, 1_000_000> = "connections", Live;
        /// Maximum number of associations, each of one host with one subsystem.
        optional associations: Number<1, 1_000_000> = "associations", Live;
        /// Maximum number of commands in flight.
        optional commands: Number<1, 100_000_000> = "commands", Live;
        /// Maximum memory for data of commands in flight; at least 4M.
        optional memory: Size<{ 4 << 20 }> = "memory", Live;
    }
}
inner_table!(Limits);

table! {
    /// Maximum speed of a namespace.
    pub struct Qos {
        /// Reads and writes per second.
        optional iops: Number<1, 1_000_000_000> = "iops", Live;
        /// Reads per second.
        optional read_iops: Number<1, 1_000_000_000> = "read-iops", Live;
        /// Writes per second.
        optional write_iops: Number<1, 1_000_000_000> = "write-iops", Live;
        /// Bytes read and written per second; at least 64k.
        optional bytes: Size<{ 64 << 10 }> = "bytes", Live;
        /// Bytes read per second; at least 64k.
        optional read_bytes: Size<{ 64 << 10 }> = "read-bytes", Live;
        /// Bytes written per second; at least 64k.
        optional write_bytes: Size<{ 64 << 10 }> = "write-bytes", Live;
        /// Unused speed of this time can be used later, in a burst; at most 1m (default: none).
        optional burst: Time<1, 60_000> = "burst", Live;
    }
}
inner_table!(Qos);

table! {
    /// Options of the target as a whole.
    pub struct Server {
        /// Directory of the state that outlives the target, such as namespace IDs in use.
        optional state: AbsolutePath = "state", Restart;
        /// One reactor runs on each of these cores, as 0,1 or 0-3 (default: all cores of the process).
        optional cores: Cores = "cores", Restart;
        /// Reactor of a new connection: incoming-cpu, round-robin, or least-loaded (default: incoming-cpu).
        optional placement: Placement = "placement", Restart;
        /// Migration of connections between reactors: static or dynamic (default: static).
        optional scheduler: Scheduler = "scheduler", Restart;
        /// Idle behavior of a reactor: poll, adaptive, or sleep (default: adaptive).
        optional mode: Idle = "mode", Restart;
        /// Kernel interface for files, readiness, and sleep: auto, uring, or epoll (default: auto).
        optional io: KernelInterface = "io", Restart;
        /// Maximum I/O queues of one host (default: 64).
        optional io_queues: Number<1, 1024> = "io-queues", Restart;
        /// Maximum entries of one queue (default: 256).
        optional queue_depth: Number<2, 4096> = "queue-depth", Restart;
        /// Short commands overtake long ones on their connection (default: true).
        optional fair_queueing: bool = "fair-queueing", Restart;
        /// Memory of each reactor for data in flight; at least 4M (default: 128M).
        optional pool: Size<{ 4 << 20 }> = "pool", Restart;
        /// Minimum size of a send without a copy, if the network card supports it (default: none).
        optional zerocopy_threshold: Size<0> = "zerocopy-threshold", Restart;
        /// The other volumes are served if one cannot be opened (default: false).
        optional skip_missing: bool = "skip-missing", Restart;
        /// Maximum Ceph RBD images of one connection to a cluster (default: 8).
        optional rbd_images_per_connection: Number<1, 65_535> = "rbd-images-per-connection", Restart;
        /// Latencies, their stages, and slow operations are recorded (default: true).
        optional observe: bool = "observe", Restart;
        /// Memory for these numbers; volumes beyond it are counted together (default: 64M).
        optional observe_memory: Size<0> = "observe-memory", Restart;
        /// The stage peer is measured for one send in N, as 1/1000 (default: none).
        optional acks: OneIn = "acks", Restart;
        /// Actions for a device that is slower than its peers, as a list of log, metric, light, and avoid, or none.
        optional on_slow: OnSlow = "on-slow", Restart;
        /// Path of the socket for commands such as `isolane explain`, or off.
        optional control_socket: ControlSocket = "control-socket", Restart;
        /// Address of the metrics for Prometheus.
        optional metrics: Metrics = "metrics", Restart;
        /// Addresses in the discovery log, instead of the ports that the host can reach.
        optional advertise: Addresses = "advertise", Restart;
        /// Access without authentication from other machines is rejected (default: false).
        optional strict: bool = "strict", Live;
        /// Proof of identity for reading the discovery log: none, auth, or auth-both (default: none).
        optional discovery_require: Require = "discovery-require", NewAssociations;
        /// Hash functions of authentication, the preferred ones first (default: sha512, sha384, and sha256).
        optional auth_hashes: Choices<AuthHash> = "auth-hashes", Restart;
        /// Diffie-Hellman groups of authentication, the preferred ones first (default: all, with ffdhe3072 first).
        optional auth_groups: Choices<AuthGroup> = "auth-groups", Restart;
        /// A queue whose host has not authenticated within this time is closed (default: 30s).
        optional auth_within: Time<1000, 600_000> = "auth-within", Restart;
        /// A namespace whose volume has not completed an operation for this time is stalled (default: 10s).
        optional stall_after: Time<1000, 60_000> = "stall-after", Live;
        /// A command that a stalled volume, `qos`, or `limits.memory` holds is returned to its host after this time (default: 20s).
        optional answer_within: Time<1000, 600_000> = "answer-within", Live;
        /// Limits of the whole target.
        optional limits: Limits = "limits", Live;
    }
}

table! {
    /// An address that hosts connect to.
    pub struct Port {
        /// Name of the port in this file.
        required name: Name = "name", Live;
        /// Address and socket options, as 10.0.0.1:4420,priority=5; a port alone means 127.0.0.1.
        required listen: ListenAddress = "listen", Live;
        /// The port has only the discovery service (default: false).
        optional discovery_only: bool = "discovery-only", Live;
    }
}

table! {
    /// A host that is known by its name, and by its keys.
    pub struct Host {
        /// Name of the host in this file.
        required name: Name = "name", Live;
        /// NQN of the host, which Linux has in /etc/nvme/hostnqn.
        required nqn: StandardNqn = "nqn", Live;
        /// Location of the key of the host, file:PATH or credential:NAME; a list of two during a rotation. With it, the host must always give a proof.
        optional auth_key: AuthKeys = "auth-key", NewAssociations;
        /// Location of the key with which the target proves its identity to this host; with two, each belongs to the auth-key at its place.
        optional auth_target_key: AuthKeys = "auth-target-key", NewAssociations;
        /// Proof of identity that this host must give: none, auth, or auth-both; the stronger one of host and subsystem applies.
        optional require: Require = "require", NewAssociations;
        /// Limits of this host in all subsystems together.
        optional limits: Limits = "limits", Live;
    }
}

table! {
    /// Another target whose discovery service this one names.
    pub struct Referral {
        /// Name of the referral in this file.
        required name: Name = "name", Live;
        /// Addresses of the other discovery service.
        required addresses: Addresses = "addresses", Live;
    }
}

table! {
    /// A namespace of a subsystem.
    pub struct Namespace {
        /// Namespace ID.
        required nsid: Nsid = "nsid", Live;
        /// Volume, as for `isolane serve`, such as /srv/a.img,size=10G.
        required volume: Volume = "volume", Live;
        /// Hosts that have access, a part of those of the subsystem (default: all of these).
        optional hosts: Hosts = "hosts", Live;
        /// Maximum speed.
        optional qos: Qos = "qos", Live;
    }
}

table! {
    /// A subsystem: namespaces, and the hosts and ports that reach them.
    pub struct Subsystem {
        /// NQN.
        required nqn: SubsystemNqn = "nqn", Live;
        /// Ports on which hosts reach it.
        required ports: Names = "ports", Live;
        /// Hosts that have access, or "any" for every host.
        required hosts: Hosts = "hosts", Live;
        /// Serial number (default: derived from the NQN).
        optional serial: Serial = "serial", Restart;
        /// Model number.
        optional model: Model = "model", Restart;
        /// Lowest controller ID (default: 1).
        optional cntlid_min: Number<1, 0xffef> = "cntlid-min", Restart;
        /// Highest controller ID (default: 65519).
        optional cntlid_max: Number<1, 0xffef> = "cntlid-max", Restart;
        /// Proof of identity that hosts must give: none, auth, or auth-both, if the target must give one also (default: none).
        optional require: Require = "require", NewAssociations;
        /// Limits of the subsystem.
        optional limits: Limits = "limits", Live;
        /// Namespaces.
        optional namespaces: Namespaces = "namespace", Live;
    }
}

/// Namespaces by ID.
pub type Namespaces = BTreeMap<Nsid, Namespace>;

/// Namespace ID.
pub type Nsid = Number<1, MAX_NSID>;

/// A list of tables of the same kind with names.
pub(crate) trait Objects: ReadTable {
    /// Word for an object in errors.
    const KIND: &'static str;
    /// Key that has its name.
    const ID: &'static str;
    /// Key of a map.
    type Id: Ord + Clone;

    fn id(&self) -> Self::Id;
}

macro_rules! objects {
    ($($type:ident, $kind:literal, $key:literal, $field:ident: $id:ty;)*) => {$(
        impl Objects for $type {
            const KIND: &'static str = $kind;
            const ID: &'static str = $key;
            type Id = $id;

            fn id(&self) -> $id {
                self.$field.clone()
            }
        }
    )*};
}

objects! {
    Port, "port", "name", name: Name;
    Host, "host", "name", name: Name;
    Referral, "referral", "name", name: Name;
    Subsystem, "subsystem", "nqn", nqn: SubsystemNqn;
    Namespace, "namespace", "nsid", nsid: Nsid;
}

impl Entry for Namespaces {
    fn example(key: &str) -> String {
        format!("add a table [[subsystem.{key}]]")
    }

    fn read(item: &Item, place: &str, key: &'static str, reader: &mut Reader<'_>) -> Option<Namespaces> {
        read_objects(item, place, &format!("subsystem.{key}"), reader)
    }

    fn to_item(&self) -> Item {
        Item::ArrayOfTables(self.values().map(table::table_of).collect::<ArrayOfTables>())
    }

    fn schema() -> Json {
        list_schema::<Namespace>()
    }
}

fn list_schema<T: Table>() -> Json {
    json!({ "type": "array", "items": table::table_schema(T::KEYS) })
}

/// Returns the name of an object as a part of its place. Places differ if names do, so a name is whole if it can be valid.
fn id_text(id: &Item, at: usize) -> String {
    let text = id.as_str().map_or_else(|| id.to_string().trim().to_owned(), str::to_owned);
    let short = shown(&text);
    if short == text || text.len() <= Nqn::MAX_LEN && !has_secret(&text) && !text.contains(char::is_control) {
        text
    } else {
        format!("{short} (#{at})")
    }
}

/// Reads a list of tables. Valid ones are returned even if others are not, so that references to them are checked.
pub(crate) fn read_objects<T: Objects>(
    item: &Item,
    place: &str,
    header: &str,
    reader: &mut Reader<'_>,
) -> Option<BTreeMap<T::Id, T>> {
    let mut objects = BTreeMap::new();
    let mut add = |table: &dyn TableLike, span, reader: &mut Reader<'_>, at: usize| {
        let id = table.get(T::ID).map_or_else(|| format!("#{at}"), |id| id_text(id, at));
        let inner = format!("{place}{}{} {id}", if place.is_empty() { "" } else { " " }, T::KIND);
        reader.declare(span, &inner);
        if let Some(object) = T::read_table(table, &inner, reader)
            && let MapEntry::Vacant(entry) = objects.entry(object.id())
        {
            entry.insert(object);
        }
    };
    match item {
        Item::ArrayOfTables(tables) => {
            tables.iter().enumerate().for_each(|(at, table)| add(table, table.span(), reader, at + 1));
        }
        Item::Value(toml_edit::Value::Array(list)) if list.iter().all(|value| value.is_inline_table()) => {
            for (at, table) in list.iter().filter_map(|value| value.as_inline_table()).enumerate() {
                add(table, table.span(), reader, at + 1);
            }
        }
        _ => {
            let remedy = format!("write each as a table [[{header}]]");
            reader.invalid(item, place, T::KIND, Invalid::new("not a list of tables", remedy));
            return None;
        }
    }
    Some(objects)
}

/// A configuration: a target, its ports, hosts, subsystems, and referrals. Each list is ordered by name or ID.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Options of the target.
    pub server: Server,
    /// Ports by name.
    pub ports: BTreeMap<Name, Port>,
    /// Hosts by name.
    pub hosts: BTreeMap<Name, Host>,
    /// Subsystems by NQN.
    pub subsystems: BTreeMap<SubsystemNqn, Subsystem>,
    /// Referrals by name.
    pub referrals: BTreeMap<Name, Referral>,
}

impl Config {
    /// Returns the proof that a host must give at a subsystem: the strongest one of both. A host with a key always
    /// gives one. `None` is a host without a table.
    pub fn required(&self, host: Option<&Host>, subsystem: &Subsystem) -> Require {
        let with_key = match host {
            Some(Host { auth_key: Some(_), .. }) => Require::Auth,
            _ => Require::None,
        };
        let of_host = host.and_then(|host| host.require).unwrap_or(Require::None);
        of_host.max(with_key).max(subsystem.require.unwrap_or(Require::None))
    }
}

impl Default for Server {
    fn default() -> Server {
        let empty = toml_edit::Table::new();
        let kinds = Kinds::default();
        let server = Server::read_table(&empty, "server", &mut Reader::new("", &kinds));
        server.unwrap_or_else(|| unreachable!("no key of a server is required"))
    }
}

/// Keys of the file itself.
pub(crate) const TOP_LEVEL: [KeyInfo; 5] = {
    const fn key(name: &'static str, about: &'static str, schema: fn() -> Json) -> KeyInfo {
        KeyInfo { name, about, is_required: false, effect: table::Effect::Live, schema }
    }
    [
        key("server", "Options of the target as a whole.", || table::table_schema(Server::KEYS)),
        key("port", "Addresses that hosts connect to.", list_schema::<Port>),
        key("host", "Hosts that are known by their names and keys.", list_schema::<Host>),
        key("subsystem", "Namespaces, and the hosts and ports that reach them.", list_schema::<Subsystem>),
        key("referral", "Other discovery services that this target names.", list_schema::<Referral>),
    ]
};
