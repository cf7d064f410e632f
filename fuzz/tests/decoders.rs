//! Each decoder of the crates has a fuzz target. Reads the sources as text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Decoders that others call, and one of these others.
const PARTS: &[(&str, &str)] = &[
    ("Arrived", "Segment"),
    ("DatagramSource", "Segment"),
    ("Kind", "Message"),
    ("SegmentHeader", "Segment"),
    ("StreamEnd", "StreamRecord"),
    ("TransferFields", "HostPdu"),
    ("decode_error", "Outcome"),
    ("decode_generation", "GenerationLog"),
    ("decode_header", "HostPage"),
];

/// Decoders of data that neither a peer nor a client writes, or of which each bit pattern is valid.
const TRUSTED: &[(&str, &str)] = &[
    ("Bits", "a file of the target"),
    ("BlockConfig", "the server of virtual machines only writes it"),
    ("BlockSizeInformation", "the NBD server only writes it"),
    ("Chunk", "the NBD server only writes it"),
    ("ErrorChunk", "the NBD server only writes it"),
    ("ExportInformation", "the NBD server only writes it"),
    ("ExportReply", "the NBD server only writes it"),
    ("Greeting", "the NBD server only writes it"),
    ("IdentityXattr", "a file of the target"),
    ("Offer", "two words"),
    ("OptionReply", "the NBD server only writes it"),
    ("Record", "a file of the target"),
    ("Scope", "a name that this user has bound"),
    ("Setup", "two words"),
    ("SimpleReply", "the NBD server only writes it"),
    ("StaleAssociation", "a file of the host"),
    ("decode_info", "a reply of the kernel"),
];

#[test]
fn each_decoder_has_a_target() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Vec::new();
    collect(&root.join("../crates"), &mut sources);
    let decoders: BTreeSet<String> =
        sources.iter().flat_map(|path| decoders(&fs::read_to_string(path).unwrap())).collect();
    assert!(decoders.len() > 50, "found only {decoders:?}");
    let mut targets = Vec::new();
    collect(&root.join("src"), &mut targets);
    let targets: String = targets.iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let fuzzed: BTreeSet<String> = words(&targets).collect();
    let others: Vec<&str> = PARTS.iter().chain(TRUSTED).map(|(decoder, _)| *decoder).collect();
    let missing: Vec<&String> =
        decoders.iter().filter(|name| !fuzzed.contains(*name) && !others.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "decoders without a fuzz target in fuzz/src/decoders.rs: {missing:?}");
    for decoder in others {
        assert!(decoders.contains(decoder), "{decoder} is listed, but is not a decoder");
    }
    for (part, whole) in PARTS {
        assert!(fuzzed.contains(*whole), "{whole}, of which {part} is a part, has no fuzz target");
    }
}

/// Finds the sources below a directory, except tests and the macros of `isolane-layout`.
fn collect(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !["tests", "examples", "target", "isolane-layout"].contains(&&*name) {
            collect(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            found.push(path);
        }
    }
}

/// Returns the types with a function `decode…` or the layout of bytes, and the free functions of that name.
fn decoders(source: &str) -> Vec<String> {
    let (mut found, mut implemented) = (Vec::new(), None);
    for line in source.lines().take_while(|line| *line != "#[cfg(test)]") {
        if let Some(rest) = line.strip_prefix("impl") {
            let of = rest.rsplit(" for ").next().unwrap_or(rest);
            let of = if of.starts_with('<') { of.split_once("> ").map_or(of, |(_, of)| of) } else { of };
            implemented = words(of).next();
        } else if line.starts_with('}') {
            implemented = None;
        }
        if let Some((_, rest)) = line.split_once(" struct ")
            && rest.split([' ', '<', '(', '{']).next().is_some_and(|name| name.contains('['))
        {
            found.extend(words(rest).next());
        }
        let function = line.split_once("fn ").and_then(|(_, rest)| words(rest).next());
        if let Some(name) = function.filter(|name| name == "decode" || name.starts_with("decode_")) {
            found.push(implemented.clone().unwrap_or(name));
        }
    }
    found
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).map(str::to_owned)
}
