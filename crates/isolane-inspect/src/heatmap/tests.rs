use isolane_observe::histogram::{Histogram, Resolution};
use isolane_observe::snapshot::{Numbers, Snapshot, Step, Volume};
use isolane_observe::stage::SizeClass;

use super::shape::MARK;
use super::*;
use crate::sample::{START_MS, Sample};

fn map(sample: &Sample, by: By) -> HeatMap {
    HeatMap::new(&sample.snapshot(), by).expect("operations")
}

fn sum(counts: &Counts) -> u64 {
    counts.to_histogram().count()
}

/// Returns the names of all elements, and fails if one is not closed.
fn elements(svg: &str) -> Vec<&str> {
    let mut names = Vec::new();
    let mut open: Vec<&str> = Vec::new();
    for tag in svg.split('<').skip(1) {
        let (inside, _) = tag.split_once('>').expect("an end of the tag");
        let name = inside.trim_start_matches('/').split([' ', '/']).next().unwrap_or_default();
        if inside.starts_with('/') {
            assert_eq!(open.pop(), Some(name));
        } else {
            names.push(name);
            open.extend((!inside.ends_with('/')).then_some(name));
        }
    }
    assert!(open.is_empty(), "{open:?}");
    names
}

#[test]
fn marks_stalled_member_at_its_time() {
    let sample = Sample { members: 8, steps: 60, stalled: 3, stall: 20..30 };
    let map = map(&sample, By::Device);
    assert_eq!(map.outliers().collect::<Vec<_>>(), ["disk3"]);
    assert_eq!(map.strips.len(), 9, "eight members, and the other volume");
    let strip = &map.strips[2];
    let outlier = strip.outlier.as_ref().expect("the stalled one");
    for (column, slow) in map.columns.iter().zip(&outlier.columns) {
        let second = (column.start_ms - START_MS) / 1000;
        assert_eq!(*slow, (20..30).contains(&second), "second {second}");
    }
}

/// Pixels of a decoded image.
struct Image {
    width: usize,
    bytes: Vec<u8>,
}

impl Image {
    fn decode(file: &[u8]) -> Image {
        let mut reader = ::png::Decoder::new(std::io::Cursor::new(file)).read_info().expect("a header");
        let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
        let frame = reader.next_frame(&mut bytes).expect("an image");
        assert_eq!((frame.color_type, frame.bit_depth), (::png::ColorType::Rgb, ::png::BitDepth::Eight));
        Image { width: frame.width as usize, bytes }
    }

    fn rows(&self) -> impl Iterator<Item = &[[u8; 3]]> {
        self.bytes.as_chunks().0.chunks(self.width)
    }
}

fn channels(color: &str) -> [u8; 3] {
    [1, 3, 5].map(|at| u8::from_str_radix(&color[at..at + 2], 16).expect("hex"))
}

#[test]
fn image_has_stall_at_its_place() {
    let sample = Sample { members: 8, steps: 60, stalled: 3, stall: 20..30 };
    let map = map(&sample, By::Device);
    let (shapes, size) = drawing::draw(&map);
    let image = Image::decode(&map.to_png());
    assert_eq!((image.width as f64, image.bytes.len() / 3 / image.width), (size.0, size.1.ceil() as usize));
    // Frames in the order of the strips; the third is the stalled member.
    let frames = shapes.iter().filter_map(|shape| match shape {
        shape::Shape::Frame(area) => Some(*area),
        _ => None,
    });
    let frame = frames.collect::<Vec<_>>()[2];
    let second = (drawing::RIGHT - drawing::LEFT) / 60.0;
    let expected = [20.0, 30.0].map(|at| (drawing::LEFT + at * second).round() as usize);
    let rows: Vec<&[[u8; 3]]> = image.rows().collect();
    let painted = |row: &[[u8; 3]], is: &dyn Fn([u8; 3]) -> bool| -> Option<[usize; 2]> {
        let first = row.iter().position(|pixel| is(*pixel))?;
        Some([first, row.iter().rposition(|pixel| is(*pixel))? + 1])
    };
    // The mark above the strip.
    let mark = rows[frame.y as usize - 3];
    assert_eq!(painted(mark, &|pixel| pixel == channels(MARK)), Some(expected));
    // Cells of the slowest operations: the uppermost row of the strip that has cells.
    let is_cell = |pixel| scale::COLORS.iter().any(|color| pixel == channels(color));
    let inside = &rows[frame.y as usize..(frame.y + frame.height) as usize];
    let slowest = inside.iter().find_map(|row| painted(row, &is_cell)).expect("cells");
    assert_eq!(slowest, expected);
}

#[test]
fn long_names_do_not_overlap_quantiles() {
    for length in [5, 20, 30, 40, 60, 200] {
        let mut snapshot = Sample { steps: 20, stall: 5..10, ..Sample::default() }.snapshot();
        snapshot.volumes.iter_mut().for_each(|volume| volume.name = "W".repeat(length));
        let map = HeatMap::new(&snapshot, By::Device).expect("operations");
        let (shapes, _) = drawing::draw(&map);
        let labels: Vec<&shape::Label> = shapes
            .iter()
            .filter_map(|shape| if let shape::Shape::Text(label) = shape { Some(label) } else { None })
            .collect();
        for pair in labels.windows(2).filter(|pair| pair[0].text.contains("WWW")) {
            let [name, quantiles] = pair else { unreachable!("windows of two") };
            // Widths of bold and of normal characters.
            let end = name.x + name.text.chars().count() as f64 * 8.5;
            let start = quantiles.x - quantiles.text.chars().count() as f64 * 7.0;
            assert!(end < start || name.y < quantiles.y - 12.0, "{length}: {name:?} {quantiles:?}");
        }
    }
}

#[test]
fn equal_members_have_no_mark() {
    let sample = Sample { steps: 60, stall: 0..0, ..Sample::default() };
    for by in By::ALL {
        assert_eq!(map(&sample, by).outliers().count(), 0, "{by:?}");
    }
}

#[test]
fn cells_have_all_operations() {
    let sample = Sample { steps: 20, stall: 5..7, ..Sample::default() };
    let snapshot = sample.snapshot();
    let of_volume = |id| {
        let series = snapshot.numbers.series.iter().filter(|series| series.volume == id);
        series.map(|series| series.total.count()).sum::<u64>()
    };
    let map = map(&sample, By::Volume);
    assert_eq!(
        map.strips.iter().map(|strip| sum(&strip.total)).collect::<Vec<_>>(),
        [of_volume(0), of_volume(9)]
    );
    for strip in &map.strips {
        assert_eq!(strip.counts.iter().map(sum).sum::<u64>(), sum(&strip.total));
    }
    let cores = HeatMap::new(&snapshot, By::Core).expect("operations");
    let on_cores: u64 = cores.strips.iter().map(|strip| sum(&strip.total)).sum();
    assert_eq!(on_cores, of_volume(0) + of_volume(9), "members count once, with their stripe");
}

#[test]
fn volumes_on_one_disk_are_one_item() {
    let mut snapshot = Sample { members: 4, steps: 5, ..Sample::default() }.snapshot();
    for volume in &mut snapshot.volumes {
        volume.device = (volume.id == 1 || volume.id == 2).then(|| "nvme7n1".to_owned());
    }
    let map = HeatMap::new(&snapshot, By::Device).expect("operations");
    let names: Vec<&str> = map.strips.iter().map(|strip| strip.name.as_str()).collect();
    assert_eq!(names[..3], ["nvme7n1", "disk3", "disk4"]);
    assert_eq!(sum(&map.strips[0].total), sum(&map.strips[1].total) * 2);
}

#[test]
fn svg_is_well_formed_with_hostile_names() {
    let mut snapshot = Sample { steps: 5, ..Sample::default() }.snapshot();
    snapshot.program.machine = "</text><script>&\"'\u{1b}]0;x\u{7}".to_owned();
    snapshot
        .volumes
        .iter_mut()
        .for_each(|volume| volume.name = "<svg onload=alert(1)>\u{0}\u{202e}".repeat(1000));
    for by in By::ALL {
        let svg = HeatMap::new(&snapshot, by).expect("operations").to_svg();
        assert!(elements(&svg).iter().all(|name| ["svg", "style", "rect", "text", "path"].contains(name)));
        assert!(!svg.contains(|char: char| char.is_control() && char != '\n'), "{by:?}");
    }
    let html = html::document(&snapshot, By::Host, Some("<b>bold</b>"));
    assert!(
        html.contains("&lt;b&gt;bold&lt;/b&gt;") && !html.contains("<script") && !html.contains("<b>bold")
    );
}

#[test]
fn html_refers_to_nothing_outside() {
    let html = html::document(&Sample::default().snapshot(), By::Device, Some("no finding"));
    let allowed = "http://www.w3.org/2000/svg";
    assert!(!html.replace(allowed, "").contains("://"), "an address");
    assert!(!html.contains("src=") && !html.contains("url(") && !html.contains("<link"));
    for part in ["Verdict", "no finding", "<table>", "device", "By volume", "By core", "By host"] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn drawing_is_bounded() {
    let mut snapshot = Sample { members: 100, steps: 2, ..Sample::default() }.snapshot();
    let map = HeatMap::new(&snapshot, By::Device).expect("operations");
    assert_eq!((map.strips.len(), map.left_out), (MAX_STRIPS, 101 - MAX_STRIPS));
    let step = Step { length_ms: 1000, ..snapshot.steps[0].clone() };
    snapshot.steps = (1..=1500).map(|at| Step { at_unix_ms: at * 1000, ..step.clone() }).collect();
    let map = HeatMap::new(&snapshot, By::Volume).expect("operations");
    assert_eq!(map.columns.len(), 500);
    assert!(map.to_svg().len() < 2 << 20);
}

#[test]
fn malformed_snapshots_are_drawn() {
    let mut total = Histogram::new(Resolution::Four);
    total.record(u64::MAX, u64::MAX);
    total.record(0, u64::MAX);
    let mut series = Sample { steps: 1, ..Sample::default() }.snapshot().steps[0].numbers.series[0].clone();
    series.total = total;
    let volume = |id, parent| Volume { id, parent, ..Volume::default() };
    let numbers = Numbers { series: vec![series], ..Numbers::default() };
    let step =
        |at_unix_ms, length_ms| Step { at_unix_ms, length_ms, numbers: numbers.clone(), ..Step::default() };
    let mut snapshot = Snapshot {
        volumes: vec![
            volume(1, Some(2)),
            volume(2, Some(1)),
            volume(3, Some(3)),
            volume(4, None),
            volume(4, None),
        ],
        steps: vec![step(u64::MAX, 0), step(0, u64::MAX), step(5, u64::MAX)],
        ..Snapshot::default()
    };
    for by in By::ALL {
        if let Some(map) = HeatMap::new(&snapshot, by) {
            elements(&map.to_svg());
        }
        html::document(&snapshot, by, None);
    }
    snapshot.steps.clear();
    assert!(HeatMap::new(&snapshot, By::Volume).is_none());
}

#[test]
fn hosts_are_strips_of_their_connections() {
    let sample = Sample { steps: 3, ..Sample::default() };
    let map = map(&sample, By::Host);
    assert_eq!(map.strips.len(), 2);
    let snapshot = sample.snapshot();
    let totals = snapshot.numbers.connections.iter().flat_map(|at| &at.totals);
    let all: u64 =
        totals.map(|(size, total)| if *size == SizeClass::Small { total.count() } else { 0 }).sum();
    assert_eq!(map.strips.iter().map(|strip| sum(&strip.total)).sum::<u64>(), all);
}

/// Writes drawings to look at in a browser, if `ISOLANE_DRAWINGS` names a directory.
#[test]
fn draws_one_and_many_strips() {
    let samples =
        [1, 8, 24].map(|members| Sample { members, stalled: members.div_ceil(2), ..Sample::default() });
    for sample in samples {
        let svg = map(&sample, By::Device).to_svg();
        let names = elements(&svg);
        assert!(names.iter().filter(|name| **name == "path").count() > sample.members as usize);
        let Some(directory) = std::env::var_os("ISOLANE_DRAWINGS") else { continue };
        let directory = std::path::Path::new(&directory);
        std::fs::write(directory.join(format!("{}.svg", sample.members)), svg).expect("a file");
        let html = html::document(
            &sample.snapshot(),
            By::Device,
            Some("1  94 % of the time lost in the tail: disk5"),
        );
        std::fs::write(directory.join(format!("{}.html", sample.members)), html).expect("a file");
        let json = serde_json::to_vec(&sample.snapshot()).expect("JSON");
        std::fs::write(directory.join(format!("{}.json", sample.members)), json).expect("a file");
    }
}
