//! Tests of volume specifications.

use super::*;

fn parse_error(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn parses_memory_and_null_sizes() {
    assert_eq!(parse("mem:1G").unwrap().source, Source::Memory { bytes: 1 << 30 });
    assert_eq!(parse("null:1T").unwrap().source, Source::Null { bytes: 1 << 40 });
    assert_eq!(parse("mem:8k").unwrap().name(), "mem:8k");
}

#[test]
fn parses_path_with_options() {
    let uuid = "1b4e28ba-2fa1-4d2b-883f-0016d3cca427";
    let spec = parse(&format!(
        "/a/b.img,size=10G,block-size=4096,ro,nsid=7,uuid={uuid},group=a b,write-through,buffered"
    ))
    .unwrap();
    let expected = VolumeSpec {
        source: Source::Path { path: "/a/b.img".into(), size: Some(10 << 30) },
        block_size: 4096,
        read_only: true,
        nsid: Some(7),
        uuid: Some(Uuid::parse_str(uuid).unwrap()),
        group: Some("a b".into()),
        write_through: true,
        buffered: true,
    };
    assert_eq!(spec, expected);
}

#[test]
fn double_comma_is_a_comma_in_the_path() {
    let spec = parse("a,,b,ro").unwrap();
    assert_eq!(spec.source, Source::Path { path: "a,b".into(), size: None });
    assert!(spec.read_only);
}

#[test]
fn accepts_colon_behind_directory() {
    for text in ["./a:b", "/dev/disk/by-path/pci-0000:00", "dir/a:b", "a.img:1", ":1"] {
        assert_eq!(parse(text).unwrap().source, Source::Path { path: text.into(), size: None }, "{text}");
    }
}

#[test]
fn parses_binary_and_decimal_units() {
    assert_eq!(parse_size("512"), Ok(512));
    assert_eq!(parse_size("4k"), Ok(4096));
    assert_eq!(parse_size("1KiB"), Ok(1024));
    assert_eq!(parse_size("10GiB"), Ok(10 << 30));
    assert_eq!(parse_size("512B"), Ok(512));
    assert_eq!(parse_size("2MB"), Ok(2_000_000));
    assert_eq!(parse_size("10gB"), Ok(10_000_000_000));
    assert_eq!(parse_size("3T"), Ok(3 << 40));
    for text in [
        "",
        "k",
        "1.5G",
        "-1",
        "1X",
        "99999999999999999999",
        "16777216T",
        "B",
        "1i",
        "1iB",
        "1Gi",
        "1BB",
        "10Gb",
        "1gb",
        "1Kib",
        "8b",
    ] {
        assert!(parse_size(text).is_err(), "{text:?} was parsed as a size");
    }
}

#[test]
fn round_trips_size() {
    for bytes in [0, 1, 512, 1024, 1 << 30, 3 << 40, (1 << 30) + 512] {
        assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }
}

#[test]
fn errors_name_reason_and_remedy() {
    let cases = [
        ("", "invalid volume \"\": empty; use mem:1G, null:1T, or a path"),
        ("mem:lots", "invalid size \"lots\" (no whole number); use a whole number"),
        ("mem:0", "size is 0"),
        ("mem:1000", "1000 bytes is not a multiple of the block size 512; use a multiple of the block size"),
        ("disk.img,size=many", "k, M, G, or T, such as size=1G"),
        ("disk.img,size=10Gb", "invalid size \"10Gb\" (b stands for bits)"),
        ("Mem:1G,size=1G", "unknown kind \"Mem\"; use mem:, or write ./Mem:1G for a file of that name"),
        ("zero:1G", "unknown kind \"zero\"; use mem:, null:, or write ./zero:1G"),
        ("null:", "k, M, G, or T, such as null:1G"),
        ("mem:1G,size=2G", "size= applies to files only; write the size after the colon"),
        ("img,block-size=1k", "unsupported block size \"1k\"; use block-size=512 or block-size=4096"),
        ("img,nsid=0", "invalid namespace ID \"0\"; use a number from 1 to"),
        ("img,uuid=x", "invalid UUID \"x\""),
        ("img,colour=red", "unknown option \"colour\"; use size=, block-size="),
        ("img,ro=yes", "option ro takes no value; use ro alone"),
        ("img,size", "option size has no value"),
    ];
    for (text, expected) in cases {
        assert!(parse_error(text).contains(expected), "{text:?} is rejected with: {}", parse_error(text));
    }
}
