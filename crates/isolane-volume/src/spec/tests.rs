//! What is understood, and what is said about the rest.

use super::*;

fn refusal(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

#[test]
fn memory_and_null_take_their_size_behind_the_colon() {
    assert_eq!(parse("mem:1G").unwrap().source, Source::Memory { bytes: 1 << 30 });
    assert_eq!(parse("null:1T").unwrap().source, Source::Null { bytes: 1 << 40 });
    assert_eq!(parse("mem:8k").unwrap().name(), "mem:8k");
}

#[test]
fn a_path_takes_options_after_commas() {
    let uuid = "1b4e28ba-2fa1-4d2b-883f-0016d3cca427";
    let spec =
        parse(&format!("/a/b.img,size=10G,block-size=4096,ro,nsid=7,uuid={uuid},write-through,buffered"))
            .unwrap();
    let expected = VolumeSpec {
        source: Source::Path { path: "/a/b.img".into(), size: Some(10 << 30) },
        block_size: 4096,
        read_only: true,
        nsid: Some(7),
        uuid: Some(Uuid::parse_str(uuid).unwrap()),
        write_through: true,
        is_buffered: true,
    };
    assert_eq!(spec, expected);
}

#[test]
fn a_comma_in_a_path_is_written_twice() {
    let spec = parse("a,,b,ro").unwrap();
    assert_eq!(spec.source, Source::Path { path: "a,b".into(), size: None });
    assert!(spec.read_only);
}

#[test]
fn sizes_have_binary_units_unless_they_end_in_b() {
    assert_eq!(parse_size("512"), Ok(512));
    assert_eq!(parse_size("4k"), Ok(4096));
    assert_eq!(parse_size("1KiB"), Ok(1024));
    assert_eq!(parse_size("10GiB"), Ok(10 << 30));
    assert_eq!(parse_size("512B"), Ok(512));
    assert_eq!(parse_size("2MB"), Ok(2_000_000));
    assert_eq!(parse_size("10gb"), Ok(10_000_000_000));
    assert_eq!(parse_size("3T"), Ok(3 << 40));
    for text in
        ["", "k", "1.5G", "-1", "1X", "99999999999999999999", "16777216T", "B", "1i", "1iB", "1Gi", "1BB"]
    {
        assert!(parse_size(text).is_err(), "{text:?} was read as a size");
    }
}

#[test]
fn a_size_is_written_as_it_is_read() {
    for bytes in [0, 1, 512, 1024, 1 << 30, 3 << 40, (1 << 30) + 512] {
        assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }
}

#[test]
fn errors_say_what_failed_why_and_what_to_do() {
    let said = [
        ("", "cannot read the volume \"\": it names nothing to serve; give mem:1G, null:1T or a path"),
        ("mem:lots", "\"lots\" is not a size (there is no whole number in front); write a whole number"),
        ("mem:0", "its size is 0"),
        ("mem:1000", "1000 bytes are not whole blocks of 512 bytes; give a multiple of the block size"),
        ("disk.img,size=many", "k, M, G or T, as in size=1G"),
        ("null:", "k, M, G or T, as in null:1G"),
        ("mem:1G,size=2G", "size= is for files; write the size behind the colon"),
        (
            "img,block-size=1k",
            "a block size of \"1k\" is not served; write block-size=512 or block-size=4096",
        ),
        ("img,nsid=0", "\"0\" is not a namespace id; write a number from 1 to"),
        ("img,uuid=x", "\"x\" is not a UUID"),
        ("img,colour=red", "there is no option \"colour\"; options are size=, block-size="),
        ("img,ro=yes", "the option ro takes no value; write just ro"),
        ("img,size", "the option size has no value"),
    ];
    for (text, expected) in said {
        assert!(refusal(text).contains(expected), "{text:?} is refused with: {}", refusal(text));
    }
}
