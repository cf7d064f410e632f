use std::fmt::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use isolane_volumes::Kinds;
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::model::TOP_LEVEL;
use crate::*;

/// A file with every key.
pub(crate) const FULL: &str = include_str!("full.toml");

/// Ports and hosts for one more subsystem.
const BASE: &str = r#"
port = [{ name = "left", listen = "4420" }, { name = "right", listen = "127.0.0.1:4421" }]
host = [{ name = "db1", nqn = "nqn.2014-08.org.example:db1" }, { name = "db2", nqn = "nqn.2014-08.org.example:db2" }]
"#;

pub(crate) fn parse(text: &str) -> Result<Config, Problems> {
    Config::parse(text, "f.toml", &Kinds::default())
}

/// Returns the only problem of a text.
fn problem(text: &str) -> Problem {
    let mut problems = parse(text).expect_err(text);
    assert_eq!(problems.count, 1, "{problems}");
    problems.shown.remove(0)
}

fn subsystem(keys: &str) -> String {
    format!("{BASE}[[subsystem]]\nnqn = \"nqn.2014-08.org.example:disks\"\n{keys}\n")
}

fn namespace(keys: &str) -> String {
    let namespace = format!("[[subsystem.namespace]]\n{keys}");
    subsystem(&format!("ports = [\"left\"]\nhosts = [\"db1\"]\n{namespace}"))
}

#[test]
fn full_text_has_every_key_and_survives_printing() {
    let config = parse(FULL).unwrap_or_else(|problems| panic!("{problems}"));
    let printed = config.to_toml();
    assert_eq!(parse(&printed).unwrap_or_else(|problems| panic!("{problems}\n{printed}")), config);
    let namespaces = config.subsystems.values().flat_map(|one| one.namespaces.iter().flatten());
    assert_eq!(namespaces.count(), 2);
    let tables = [
        Server::KEYS,
        Port::KEYS,
        Host::KEYS,
        Referral::KEYS,
        Subsystem::KEYS,
        Namespace::KEYS,
        Limits::KEYS,
    ];
    for key in tables.into_iter().flatten().chain(Qos::KEYS).chain(&TOP_LEVEL) {
        assert!(FULL.contains(key.name) && printed.contains(key.name), "{}", key.name);
        assert!(key.about.ends_with('.'), "{}: {}", key.name, key.about);
    }
}

#[test]
fn empty_text_is_a_configuration() {
    let config = parse("").unwrap();
    assert_eq!(config, Config::default());
    assert_eq!(config.to_toml(), "");
}

/// Tables in braces and lists in brackets mean the same as headers.
#[test]
fn accepts_all_forms_of_tables() {
    let headers = "[server]\nmode = \"poll\"\n[server.limits]\nconnections = 1\n[[port]]\nname = \"a\"\nlisten = \"4420\"\n";
    let braces =
        "server = { mode = \"poll\", limits.connections = 1 }\nport = [{ name = \"a\", listen = \":4420\" }]";
    assert_eq!(parse(headers).unwrap(), parse(braces).unwrap());
}

#[test]
fn errors_name_line_object_key_value_and_remedy() {
    let text = FULL.replace("\"10.0.0.1:4420,priority=5\"", "\"10.0.0.1:x\"");
    let text = text.replace("nsid = 7", "nsid = 0").replace("mode = \"sleep\"", "mode = \"slep\"");
    let problems = parse(&text).unwrap_err();
    assert_eq!(
        problems.to_string(),
        "f.toml:7: server: mode = \"slep\": unknown value; write \"sleep\"\n\
         f.toml:34: port left: listen = \"10.0.0.1:x\": \"10.0.0.1:x\" is not an address; use the form \
         127.0.0.1:4420, [::1]:4420, or [fe80::1%eth0]:4420\n\
         f.toml:71: subsystem nqn.2014-08.org.example:disks namespace 0: nsid = 0: out of range; write a number from 1 \
         to 1024"
    );
}

#[test]
fn shows_first_problems_and_counts_others() {
    let text: String = (0..50).fold(String::new(), |mut text, at| {
        let _ = writeln!(text, "key{at} = 1");
        text
    });
    let problems = parse(&text).unwrap_err();
    assert_eq!((problems.shown.len(), problems.count), (MAX_SHOWN_PROBLEMS, 50));
    assert!(problems.shown.iter().map(|problem| problem.line).eq((1..=20).map(Some)));
    assert!(problems.to_string().ends_with("f.toml: 30 more errors"), "{problems}");
}

#[test]
fn suggests_the_key_for_each_mistyped_one() {
    let tables = [
        ("server", Server::KEYS),
        ("port", Port::KEYS),
        ("host", Host::KEYS),
        ("referral", Referral::KEYS),
        ("subsystem", Subsystem::KEYS),
        ("subsystem.namespace", Namespace::KEYS),
        ("", &TOP_LEVEL[..]),
    ];
    for (table, keys) in tables {
        for key in keys.iter().filter(|key| key.name.len() > 2) {
            let end = key.name.len() - 1;
            let mistyped = format!("{}{}", &key.name[..end - 1], &key.name[end..]);
            let header = match table {
                "" => String::new(),
                "server" => "[server]\n".to_owned(),
                table => format!("[[{table}]]\n"),
            };
            let header =
                if table == "subsystem.namespace" { format!("[[subsystem]]\n{header}") } else { header };
            let problems = parse(&format!("{header}{mistyped} = 1")).unwrap_err();
            let found = problems.shown.iter().find(|problem| problem.key == mistyped);
            let found = found.unwrap_or_else(|| panic!("{mistyped}: {problems}"));
            assert_eq!(found.reason, "unknown key");
            assert_eq!(found.remedy, format!("write {}", key.name), "{problems}");
        }
    }
}

/// A date is a value of no key.
#[test]
fn rejects_wrong_type_of_each_key() {
    for line in FULL.lines().filter(|line| line.contains(" = ")) {
        let (key, _) = line.split_once(" = ").unwrap();
        for wrong in ["2026-01-01", "[[]]", "{ x = 1 }", "-1", "1.5", "\"\\u0000\""] {
            let start = FULL.find(&format!("\n{line}\n")).unwrap() + 1;
            let text = format!("{}{key} = {wrong}{}", &FULL[..start], &FULL[start + line.len()..]);
            let problems = parse(&text).expect_err(&format!("{key} = {wrong}"));
            let number = FULL[..start].lines().count() + 1;
            assert!(
                problems.shown.iter().any(|problem| problem.line == Some(number) && problem.remedy.len() > 5),
                "{key} = {wrong}: {problems}"
            );
        }
    }
}

#[test]
fn rejects_duplicate_keys_and_objects() {
    let error = problem("[server]\nmode = \"poll\"\nmode = \"poll\"\n");
    assert!(error.line == Some(3) && error.reason.contains("duplicate key"), "{error}");
    let error = problem("[[port]]\nname = \"a\"\nlisten = \"1\"\n[[port]]\nname = \"a\"\nlisten = \"2\"\n");
    assert_eq!(
        error.to_string(),
        "port a: already in line 1; give it another name, or remove one of the two"
    );
    assert_eq!(error.line, Some(4));
    let error = problem(&namespace(
        "nsid = 1\nvolume = \"mem:1M\"\n[[subsystem.namespace]]\nnsid = 1\nvolume = \"mem:1M\"",
    ));
    assert!(
        error.place.ends_with("disks namespace 1") && error.reason.contains("already in line"),
        "{error}"
    );
}

#[test]
fn long_names_that_begin_alike_differ() {
    let nqn = |end: &str| format!("nqn.2014-08.org.nvmexpress:uuid:1b4e28ba-2fa1-4d2b-883f-0016d3cca42{end}");
    let subsystem = |nqn: &str, ports: &str| {
        format!(
            "[[subsystem]]\nnqn = \"{nqn}\"\nports = [{ports}]\nhosts = \"any\"\n[[subsystem.namespace]]\nnsid = 1\nvolume = \"mem:1M\"\n"
        )
    };
    let port = "[[port]]\nname = \"a\"\nlisten = \"4420\"\n";
    let both =
        |one: &str, other: &str| format!("{port}{}{}", subsystem(one, "\"a\""), subsystem(other, "\"b\""));
    let error = problem(&both(&nqn("7"), &nqn("8")));
    assert!(error.to_string().starts_with(&format!("subsystem {}: ", nqn("8"))), "{error}");
    assert_eq!((error.line, error.key.as_str()), (Some(13), "ports"), "{error}");
    let problems = parse(&both(&nqn("7"), &nqn("7"))).unwrap_err().to_string();
    assert!(problems.contains("already in line 4"), "{problems}");
    let invalid = "x".repeat(300);
    let problems = parse(&both(&format!("{invalid}1"), &format!("{invalid}2"))).unwrap_err().to_string();
    assert!(!problems.contains("already in line"), "{problems}");
}

#[test]
fn rejects_contradictions() {
    let ports = |one: &str, other: &str| {
        format!("[[port]]\nname = \"a\"\nlisten = \"{one}\"\n[[port]]\nname = \"b\"\nlisten = \"{other}\"")
    };
    for (text, key, expected) in [
        (ports("4420", "127.0.0.1:4420"), "listen", "port a listens on 127.0.0.1:4420"),
        (ports("10.0.0.1:4420", "0.0.0.0:4420"), "listen", "port a listens on 10.0.0.1:4420"),
        (ports("localhost:4420", "4421"), "listen", "is not an address"),
        (subsystem("hosts = \"any\""), "ports", "missing"),
        (subsystem("hosts = \"any\"\nports = []"), "ports", "an empty list"),
        (subsystem("ports = [\"left\"]"), "hosts", "missing; add it, as in hosts = [\"db1\"], or \"any\""),
        (subsystem("ports = [\"left\", \"left\"]\nhosts = \"any\""), "ports", "\"left\" is there twice"),
        (
            subsystem("ports = [\"letf\"]\nhosts = \"any\""),
            "ports",
            "no port is named \"letf\"; write \"left\"",
        ),
        (subsystem("ports = [\"x\"]\nhosts = \"any\""), "ports", "add a table [[port]] with name = \"x\""),
        (subsystem("ports = [\"left\"]\nhosts = [\"db3\"]"), "hosts", "no host is named \"db3\"; write \"db"),
        (subsystem("ports = [\"left\"]\nhosts = \"all\""), "hosts", "a text instead of a list"),
        (
            subsystem("ports = [\"left\"]\nhosts = \"any\"\ncntlid-min = 5\ncntlid-max = 4"),
            "cntlid-min",
            "more than cntlid-max",
        ),
        (
            subsystem("ports = [\"left\"]\nhosts = [\"db1\"]\nrequire = \"auth\""),
            "require",
            "host db1 has no auth-key; write auth-key = \"file:/etc/isolane/db1.key\"",
        ),
        (
            "[[host]]\nname = \"x\"\nnqn = \"nqn.2014-08.org.example:x\"\nauth-key = \"file:/a\"\n\
             auth-target-key = [\"file:/b\", \"file:/c\"]"
                .into(),
            "auth-target-key",
            "more keys than auth-key has; name one for each auth-key",
        ),
        ("server.auth-groups = [\"ffdhe307\"]".into(), "auth-groups", "unknown value; write \"ffdhe3072\""),
        ("server.auth-groups = []".into(), "auth-groups", "an empty list; remove the key"),
        ("server.auth-hashes = \"sha256\"".into(), "auth-hashes", "a text instead of a list"),
        (
            "server.auth-hashes = [\"sha256\", \"sha256\"]".into(),
            "auth-hashes",
            "\"sha256\" is there twice; write it once",
        ),
        (
            format!(
                "server.limits.commands = 5\n{}",
                subsystem("ports = [\"left\"]\nhosts = \"any\"\nlimits.commands = 6")
            ),
            "commands",
            "more than the limit of the server",
        ),
        (namespace("nsid = 1\nvolume = \"mem:1M\"\nhosts = [\"db2\"]"), "hosts", "host db2 has no access"),
        (namespace("nsid = 1\nvolume = \"mem:1M\"\nhosts = \"any\""), "hosts", "more than the hosts"),
        (namespace("nsid = 1\nvolume = \"mem:1M\"\nqos = {}"), "qos", "limits nothing"),
        (
            namespace("nsid = 1\nvolume = \"mem:1M\"\nqos = { iops = 1, read-iops = 2 }"),
            "read-iops",
            "more than iops",
        ),
        (namespace("nsid = 1\nvolume = \"mem:1M,nsid=1\""), "volume", "nsid= in a volume; write the ID"),
        (namespace("nsid = 1\nvolume = \"mem:1X\""), "volume", "invalid size"),
        (namespace("nsid = 1\nvolume = \"/a,sise=1G\""), "volume", "unknown option \"sise\"; use size="),
        (
            namespace(
                "nsid = 1\nvolume = \"/srv/a\"\n[[subsystem.namespace]]\nnsid = 2\nvolume = \"read-only:/srv/./a\"",
            ),
            "volume",
            "disks namespace 1 has the same volume",
        ),
        ("server = { stall-after = \"9s\", answer-within = \"8s\" }".into(), "stall-after", "longer than"),
        ("server.stall-after = \"30s\"".into(), "stall-after", "longer than answer-within"),
        ("server.answer-within = \"8s\"".into(), "answer-within", "shorter than stall-after"),
        ("server = { acks = \"1/9\", observe = false }".into(), "acks", "records nothing"),
        ("server.advertise = [\"0.0.0.0:1\"]".into(), "advertise", "no host can connect"),
        ("server.cores = \"3-1\"".into(), "cores", "write the lower number first"),
        ("server.fair-queueing = \"off\"".into(), "fair-queueing", "write false"),
        (
            "server.stall-after = 10".into(),
            "stall-after",
            "no unit; write a text with a unit, such as \"10s\"",
        ),
        ("server.state = \"state\"".into(), "state", "not an absolute path"),
        ("server.pool = \"1M\"".into(), "pool", "too small; write at least \"4M\""),
        ("server.pool = \"64X\"".into(), "pool", "unknown unit; use a whole number with k"),
    ] {
        let error = problem(&text);
        assert_eq!(error.key, key, "{error}");
        assert!(error.to_string().contains(expected), "{error}\n{text}");
        assert!(error.line.is_some(), "{error}");
    }
}

/// Volumes of several subsystems are compared, and IDs are free in each.
#[test]
fn compares_volumes_of_all_subsystems() {
    let two = |volume: &str| {
        let one = |name: &str| {
            format!(
                "[[subsystem]]\nnqn = \"nqn.2014-08.org.example:{name}\"\nports = [\"left\"]\nhosts = \"any\"\n\
                 namespace = [{{ nsid = 1, volume = \"{volume}\" }}]\n"
            )
        };
        format!("{BASE}{}{}", one("b"), one("a"))
    };
    assert!(parse(&two("mem:1M")).is_ok());
    let error = problem(&two("/srv/a.img"));
    // The earlier one in the file is right.
    assert!(error.place.contains(":a namespace 1") && error.reason.contains(":b namespace 1 has"), "{error}");
}

#[test]
fn broken_objects_still_have_names() {
    let text = "[[port]]\nname = \"third\"\n[[subsystem]]\nnqn = \"nqn.2014-08.org.example:disks\"\n\
                ports = [\"third\"]\nhosts = \"any\"\n";
    let error = problem(text);
    assert!(error.place == "port third" && error.key == "listen" && error.reason == "missing", "{error}");
}

#[test]
fn keys_of_later_versions_have_their_own_error() {
    let port = problem("[[port]]\nname = \"a\"\nlisten = \"1\"\nsecurity = \"tls\"\n");
    assert!(port.line == Some(4) && port.reason.contains("no TLS") && port.remedy == "remove it", "{port}");
    let host =
        problem("[[host]]\nname = \"a\"\nnqn = \"nqn.2014-08.org.example:a\"\ntls-key = \"file:/a\"\n");
    assert!(host.reason.contains("no TLS"), "{host}");
}

#[test]
fn errors_show_no_key() {
    let key = "DHHC-1:00:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0:";
    for text in [
        FULL.replace("file:/etc/isolane/db1.key", key),
        FULL.replace("file:/etc/isolane/db1.key", &format!("file:{key}")),
        FULL.replace("file:/etc/isolane/old.key", key),
        FULL.replace("name = \"db1\"", &format!("name = \"{key}\"")),
        FULL.replace("serial = \"SN 0001\"", &format!("serial = \"{key}\"")),
        FULL.replace("serial = ", &format!("\"{key}\" = ")),
        FULL.replace("\"left\"]", &format!("\"left\", \"{key}\"]")),
        FULL.replace("volume = \"/srv/a.img,size=10G\"", &format!("volume = \"{key}\"")),
        FULL.replace("\"file:/etc/isolane/db1.key\"", &format!("\"{key}")),
        FULL.replace("mode = \"sleep\"", &format!("mode = \"{key}\"")),
    ] {
        let problems = parse(&text).unwrap_err();
        let shown = format!("{problems}");
        assert!(!shown.to_lowercase().contains("c2vjcmv0"), "{shown}");
    }
}

/// A file that was written to the half, at each character.
#[test]
fn half_written_text_is_no_panic() {
    for end in (0..FULL.len()).filter(|end| FULL.is_char_boundary(*end)) {
        if let Err(problems) = parse(&FULL[..end]) {
            assert!(problems.count > 0 && !problems.shown.is_empty());
        }
    }
}

#[test]
fn reads_only_text_of_bounded_regular_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let error = |name: &str| read(&path(name)).expect_err(name).to_string();
    assert!(error("missing").contains("No such file"), "{}", error("missing"));
    assert_eq!(error("."), "a directory instead of a file; name a regular file");
    // Opening a pipe without a writer would wait.
    mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    assert!(error("pipe").contains("a pipe instead"));
    let _socket = UnixListener::bind(path("socket")).unwrap();
    assert!(!error("socket").is_empty());
    symlink("/dev/zero", path("zero")).unwrap();
    assert!(error("zero").contains("a device instead"));
    std::fs::write(path("latin1"), b"# a\n# \xe9\n").unwrap();
    assert!(error("latin1").contains("line 2: not UTF-8"));
    let long = std::fs::File::create(path("long")).unwrap();
    long.set_len(100 << 20).unwrap();
    assert!(error("long").contains("longer than 4 MiB"));
    std::fs::write(path("full"), FULL).unwrap();
    assert_eq!(read(&path("full")).unwrap(), FULL);
}

#[test]
fn nests_no_deeper_than_the_stack() {
    for text in ["[".repeat(1 << 20), "a.".repeat(1 << 18), format!("a = {}", "{ a = ".repeat(1 << 16))] {
        assert!(parse(&text).is_err());
    }
}

#[test]
fn names_access_without_authentication() {
    let open = |text: &str| -> Vec<String> {
        let gaps = gaps(&parse(text).unwrap_or_else(|problems| panic!("{problems}")));
        gaps.iter().filter(|gap| gap.is_open).map(Gap::to_string).collect()
    };
    assert_eq!(open(FULL), Vec::<String>::new());
    let is_proof =
        |line: &&str| ["require", "auth-key", "auth-target-key"].iter().any(|key| line.starts_with(key));
    let without: String =
        FULL.lines().filter(|line| !is_proof(line)).map(|line| format!("{line}\n")).collect();
    let subsystem = "subsystem nqn.2014-08.org.example:disks: a host that uses the name of db1 reads and writes it \
                     without authentication on left (10.0.0.1:4420,priority=5); write require = \"auth\" and an \
                     auth-key for each host, or listen on 127.0.0.1";
    assert_eq!(open(&without), [subsystem]);
    assert_eq!(open(&without.replace("10.0.0.1:4420", "127.0.0.1:4420")), Vec::<String>::new());
    // The proof of the subsystem, or of the host, is enough; a host with a key always gives one.
    let with_key = without.replace("name = \"db1\"", "name = \"db1\"\nauth-key = \"file:/k\"");
    assert_eq!(open(&with_key), Vec::<String>::new());
    assert_eq!(open(&FULL.replace("\nrequire = \"auth\"\n", "\n")), Vec::<String>::new());
    assert_eq!(open(&FULL.replace("\nrequire = \"auth-both\"\n", "\n")), Vec::<String>::new());
    let any = without.replace("hosts = [\"db1\"]\nserial", "hosts = \"any\"\nserial");
    assert!(open(&any)[0].contains("any host reads and writes it without"), "{:?}", open(&any));
    let discovery = open(&FULL.replace("discovery-require = \"auth\"", ""));
    assert!(discovery.len() == 1 && discovery[0].contains("discovery log of port left"), "{discovery:?}");
}

#[test]
fn names_objects_without_effect() {
    let of = |text: &str| -> Vec<String> { gaps(&parse(text).unwrap()).iter().map(Gap::to_string).collect() };
    let text = namespace("nsid = 1\nvolume = \"a.img\"");
    assert_eq!(
        of(&text),
        [
            "subsystem nqn.2014-08.org.example:disks namespace 1: a.img depends on the working directory; write the \
             path from the root",
            "port right: no subsystem has it; name it in a subsystem, or remove it",
            "host db2: no subsystem admits it; name it in a subsystem, or remove it",
        ]
    );
}

/// Applies the differences to the text of the old configuration.
fn applied(old: &Config, new: &Config) -> Config {
    let changes: Vec<(ObjectId, Edit)> =
        diff(old, new).into_iter().map(|change| (change.object, change.edit)).collect();
    edit(&old.to_toml(), &changes, "f.toml", &Kinds::default()).unwrap_or_else(|error| panic!("{error}")).1
}

#[test]
fn plans_changes_with_their_effects() {
    let old = parse(FULL).unwrap();
    assert!(diff(&old, &old).is_empty());
    let new = FULL
        .replace("cores = \"0-3\"\n", "")
        .replace("file:/etc/isolane/db1.key", "file:/etc/isolane/new.key")
        .replace("{ iops = 50000, ", "{ iops = 60000, ")
        .replace("nsid = 7", "nsid = 8")
        .replace("10.0.0.1:4420,priority=5", "10.0.0.1:4421");
    let new = parse(&new).unwrap();
    let plan: Vec<String> =
        diff(&old, &new).iter().map(|change| format!("{}: {change}", change.effect.name())).collect();
    let disks = "subsystem nqn.2014-08.org.example:disks";
    assert_eq!(
        plan,
        [
            format!("live: add {disks} namespace 8: nsid = 8, volume = \"stripe:64k:/srv/b.img;/srv/c.img\""),
            "restart: server: cores = \"0-3\" -> (default)".to_owned(),
            "live: port left: listen = \"10.0.0.1:4420,priority=5\" -> \"10.0.0.1:4421\"; its connections close after \
             their commands"
                .to_owned(),
            "new associations only: host db1: auth-key = [\"file:/etc/isolane/db1.key\", \
             \"credential:db1-old\"] -> [\"file:/etc/isolane/new.key\", \"credential:db1-old\"]"
                .to_owned(),
            format!(
                "live: {disks} namespace 1: qos = {{ iops = 50000, read-iops = 40000, write-iops = 50000, bytes = \
                 \"500M\", read-bytes = \"400M\", write-bytes = \"1000000\", burst = \"1500ms\" }} -> {{ iops = 60000, \
                 read-iops = 40000, write-iops = 50000, bytes = \"500M\", read-bytes = \"400M\", write-bytes = \
                 \"1000000\", burst = \"1500ms\" }}"
            ),
            format!("live: remove {disks} namespace 7"),
        ]
    );
    assert_eq!(applied(&old, &new), new);
    assert_eq!(applied(&Config::default(), &new), new);
    assert_eq!(applied(&new, &Config::default()), Config::default());
}

/// Returns the rows of the keys for the document.
fn rows(keys: &[KeyInfo]) -> String {
    keys.iter().fold(String::from("| key | meaning | change |\n|---|---|---|\n"), |mut rows, key| {
        let name = if key.is_required { format!("**`{}`**", key.name) } else { format!("`{}`", key.name) };
        let _ = writeln!(rows, "| {name} | {} | {} |", key.about, key.effect.name());
        rows
    })
}

#[test]
fn document_has_every_key() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/CONFIG.md");
    let document = std::fs::read_to_string(path).unwrap();
    for keys in [
        Server::KEYS,
        Port::KEYS,
        Host::KEYS,
        Subsystem::KEYS,
        Namespace::KEYS,
        Qos::KEYS,
        Limits::KEYS,
        Referral::KEYS,
    ] {
        let rows = rows(keys);
        assert!(document.contains(&rows), "docs/CONFIG.md is out of date; it needs\n{rows}");
    }
}

/// Each TOML text of the document is valid.
#[test]
fn examples_of_document_are_valid() {
    let document = include_str!("../../../docs/CONFIG.md");
    let examples: Vec<&str> =
        document.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(!examples.is_empty());
    for example in examples.into_iter().chain([include_str!("../../../docs/isolane.toml")]) {
        parse(example).unwrap_or_else(|problems| panic!("{problems}\n{example}"));
    }
}

#[test]
fn edits_keep_comments_and_order() {
    let text = "# head\n\n[[port]]   # first\nlisten = \"4420\"    # address\nname = \"left\"\n\n# hosts\n[[host]]\n\
                name = \"db1\"\nnqn = \"nqn.2014-08.org.example:db1\"\n\n# disks\n[[subsystem]]\n\
                nqn = \"nqn.2014-08.org.example:disks\"\nports = [\"left\"]\nhosts = [\"db1\"] # one\n\n\
                [[subsystem.namespace]]\nnsid = 1\nvolume = \"mem:1M\"\n\n# end\n";
    let name = |text: &str| Name::new(text).unwrap();
    let nqn = SubsystemNqn("nqn.2014-08.org.example:disks".parse().unwrap());
    let namespace = |nsid| ObjectId::Namespace(nqn, Number::new(nsid).unwrap());
    let key = |key: &str, text: &str| (key.to_owned(), parse_value(&namespace(1), key, text));
    let set = |object: ObjectId, key: &str, text: &str| {
        let value = parse_value(&object, key, text);
        (object, Edit::Set(key.to_owned(), value))
    };
    let edited = |edits: &[(ObjectId, Edit)]| edit(text, edits, "f.toml", &Kinds::default());
    let (with, config) = edited(&[
        set(ObjectId::Port(name("left")), "listen", "127.0.0.1:4421"),
        (
            namespace(2),
            Edit::Add(vec![key("nsid", "2"), key("volume", "null:1M"), key("qos", "{ iops = 5 }")]),
        ),
        set(ObjectId::Subsystem(nqn), "hosts", "any"),
        set(ObjectId::Server, "pool", "64M"),
    ])
    .unwrap();
    for kept in
        ["# head\n\n[[port]]   # first\nlisten = \"127.0.0.1:4421\"    # address\nname", "# hosts\n[[host]]"]
    {
        assert!(with.contains(kept), "{with}");
    }
    assert!(with.contains("hosts = \"any\" # one\n") && with.ends_with("# end\n"), "{with}");
    let namespaces = config.subsystems[&nqn].namespaces.as_ref().unwrap();
    assert!(namespaces.len() == 2 && config.server.pool == Size::new(64 << 20));
    // What was added is removed again, and nothing else.
    let (without, _) = edit(&with, &[(namespace(2), Edit::Remove)], "f.toml", &Kinds::default()).unwrap();
    assert!(
        !without.contains("nsid = 2") && without.contains("nsid = 1") && without.contains("# disks"),
        "{without}"
    );
    for (object, change, expected) in [
        (
            namespace(3),
            Edit::Remove,
            "there is no subsystem nqn.2014-08.org.example:disks namespace 3; check",
        ),
        (namespace(1), Edit::Add(vec![key("nsid", "1")]), "namespace 1 exists already"),
        (ObjectId::Port(name("left")), Edit::Remove, "no port is named \"left\""),
        (ObjectId::Host(name("db1")), Edit::Remove, "no host is named \"db1\""),
        (namespace(1), set(namespace(1), "volume", "mem:0").1, "size is 0"),
        (namespace(1), Edit::Unset("volume".into()), "volume: missing"),
        (ObjectId::Host(name("db2")), set(ObjectId::Server, "nqn", "x").1, "there is no host db2"),
    ] {
        let error = edited(&[(object, change)]).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn values_of_the_command_line_need_no_quotes() {
    let name = |text: &str| Name::new(text).unwrap();
    let subsystem = ObjectId::Subsystem(SubsystemNqn("nqn.2014-08.org.example:disks".parse().unwrap()));
    for (object, key, text, expected) in [
        (ObjectId::Port(name("a")), "listen", "4420", "\"4420\""),
        (ObjectId::Port(name("a")), "discovery-only", "true", "true"),
        (subsystem.clone(), "hosts", "any", "\"any\""),
        (subsystem.clone(), "hosts", "db1,db2", "[\"db1\", \"db2\"]"),
        (subsystem.clone(), "hosts", "[\"db1\"]", "[\"db1\"]"),
        (subsystem.clone(), "ports", "left", "[\"left\"]"),
        (subsystem.clone(), "cntlid-min", "7", "7"),
        (ObjectId::Host(name("a")), "auth-key", "file:/a,b", "\"file:/a,b\""),
        (ObjectId::Host(name("a")), "auth-key", "file:/a,file:/b", "[\"file:/a\", \"file:/b\"]"),
        (ObjectId::Host(name("a")), "auth-key", "file:/a,credential:b", "[\"file:/a\", \"credential:b\"]"),
        (ObjectId::Server, "pool", "64M", "\"64M\""),
        (ObjectId::Server, "pool", "67108864", "67108864"),
        (subsystem, "no-such-key", "1", "1"),
    ] {
        assert_eq!(parse_value(&object, key, text).to_string(), expected, "{key} = {text}");
    }
}
