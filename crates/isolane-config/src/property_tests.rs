//! Properties of random configurations: printing, differences, and edits.

use proptest::prelude::*;

use crate::model::Config;
use crate::tests::parse;
use crate::{Edit, ObjectId, diff, edit};

/// Random keys of a namespace.
fn namespace() -> impl Strategy<Value = String> {
    let volume = prop_oneof!["mem:[1-9]M", "null:[1-9]G,ro", "stripe:64k:mem:[1-9]M;mem:1M"];
    let qos =
        prop_oneof!["", "qos = [{] iops = [1-9], burst = \"[1-9]s\" [}]\n", "qos\\.bytes = \"[1-9]M\"\n"];
    let hosts = prop_oneof!["", "hosts = \\[\"h1\"\\]\n"];
    (volume, qos, hosts).prop_map(|(volume, qos, hosts)| format!("volume = \"{volume}\"\n{qos}{hosts}"))
}

/// Random subsystems with namespaces from 1 to 5.
fn subsystem(name: &'static str) -> impl Strategy<Value = String> {
    let ports = prop::sample::subsequence(vec!["p1", "p2", "p3"], 1..=3);
    let hosts = prop::sample::subsequence(vec!["h2", "h3"], 0..=2);
    let more = prop_oneof!["", "serial = \"S[0-9]\"\n", "cntlid-min = [1-9]\nlimits\\.commands = [1-9]\n"];
    let namespaces = prop::collection::btree_map(1..6_u8, namespace(), 0..4);
    (ports, hosts, more, namespaces).prop_map(move |(ports, hosts, more, namespaces)| {
        let hosts = [vec!["h1"], hosts].concat();
        let namespaces: String = namespaces
            .iter()
            .map(|(nsid, keys)| format!("[[subsystem.namespace]]\nnsid = {nsid}\n{keys}"))
            .collect();
        let nqn = format!("nqn.2014-08.org.example:{name}");
        format!("[[subsystem]]\nnqn = \"{nqn}\"\nports = {ports:?}\nhosts = {hosts:?}\n{more}{namespaces}")
    })
}

fn server() -> impl Strategy<Value = String> {
    let keys = [
        "cores = \"[0-3]\"\n",
        "mode = \"poll\"\n",
        "pool = \"[4-9]M\"\n",
        "stall-after = \"[1-9]s\"\n",
        "limits = [{] memory = \"[4-9]G\" [}]\n",
    ];
    let optional = keys.map(|key| prop_oneof![Just(String::new()), key]);
    optional.prop_map(|keys| format!("[server]\n{}", keys.concat()))
}

fn configs() -> impl Strategy<Value = String> {
    let port =
        |at: u8| format!("\\[\\[port\\]\\]\nname = \"p{at}\"\nlisten = \"127\\.0\\.0\\.[1-9]:44{at}\"\n");
    let host = |at: u8| {
        let key = String::from("(auth-key = \"file:/k[1-9]\"\n)?(require = \"none\"\n)?");
        format!("\\[\\[host\\]\\]\nname = \"h{at}\"\nnqn = \"nqn\\.2014-08\\.org\\.example:h{at}\"\n{key}")
    };
    let [a, b, c] = [subsystem("a"), subsystem("b"), subsystem("c")];
    let subsystems = [a.boxed(), b.boxed(), c.boxed()].map(prop::option::of);
    let objects = [port(1), port(2), port(3), host(1), host(2), host(3)];
    let objects: Vec<BoxedStrategy<String>> =
        objects.iter().map(|regex| prop::string::string_regex(regex).unwrap().boxed()).collect();
    (server(), objects, subsystems).prop_map(|(server, objects, subsystems)| {
        format!("{server}{}{}", objects.concat(), subsystems.into_iter().flatten().collect::<String>())
    })
}

fn valid(text: &str) -> Config {
    parse(text).unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

fn applied(text: &str, old: &Config, new: &Config) -> Config {
    let edits: Vec<(ObjectId, Edit)> =
        diff(old, new).into_iter().map(|change| (change.object, change.edit)).collect();
    let kinds = isolane_volumes::Kinds::default();
    edit(text, &edits, "f", &kinds).unwrap_or_else(|error| panic!("{error}\n{text}")).1
}

proptest! {
    // Each case reads several files.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..ProptestConfig::default() })]

    #[test]
    fn printing_and_parsing_are_inverse(text in configs()) {
        let config = valid(&text);
        prop_assert_eq!(valid(&config.to_toml()), config);
    }

    #[test]
    fn differences_lead_from_one_to_the_other(one in configs(), other in configs()) {
        let (old, new) = (valid(&one), valid(&other));
        prop_assert!(diff(&old, &old).is_empty());
        prop_assert_eq!(&applied(&one, &old, &new), &new);
        prop_assert_eq!(&applied(&old.to_toml(), &old, &new), &new);
        prop_assert_eq!(&applied("", &Config::default(), &new), &new);
    }
}
