//! Drawings as SVG.

use std::fmt::Write;

use super::shape::{Anchor, Area, FRAME, Label, Shape, Style};
use crate::text::escaped;

const STYLE: &str = "text{font-family:'DejaVu Sans',Verdana,Arial,sans-serif;font-size:11px;fill:#222}\
    .title{font-size:16px;font-weight:bold}.name{font-size:12px;font-weight:bold}.soft{fill:#666}\
    .mark{fill:#d4002a}.end{text-anchor:end}.middle{text-anchor:middle}path{shape-rendering:crispEdges}";

/// Returns a document of this size in pixels.
pub fn document(shapes: &[Shape], (width, height): (f64, f64)) -> String {
    let mut svg = String::new();
    // Writing to a `String` does not fail.
    let _ = write!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"><style>{STYLE}</style><rect width="100%" height="100%" fill="#fff"/>"##,
    );
    for shape in shapes {
        let _ = match shape {
            Shape::Fill(areas, color) => fill(&mut svg, areas, color),
            Shape::Frame(Area { x, y, width, height }) => write!(
                svg,
                r#"<rect x="{x}" y="{y:.1}" width="{width}" height="{height}" fill="none" stroke="{FRAME}"/>"#,
            ),
            Shape::Text(label) => text(&mut svg, label),
        };
    }
    svg + "</svg>\n"
}

/// Writes all rectangles as one path.
fn fill(svg: &mut String, areas: &[Area], color: &str) -> std::fmt::Result {
    svg.push_str("<path d=\"");
    for Area { x, y, width, height } in areas {
        write!(svg, "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z")?;
    }
    write!(svg, r#"" fill="{color}"/>"#)
}

fn text(svg: &mut String, Label { text, x, y, style, anchor, is_upward }: &Label) -> std::fmt::Result {
    let style = match style {
        Style::Title => "title",
        Style::Name => "name",
        Style::MarkedName => "name mark",
        Style::Plain => "",
        Style::Soft => "soft",
        Style::Mark => "mark",
    };
    let anchor = match anchor {
        Anchor::Start => "",
        Anchor::Middle => " middle",
        Anchor::End => " end",
    };
    if *is_upward {
        write!(svg, r#"<text transform="translate({x} {y:.1})rotate(-90)""#)?;
    } else {
        write!(svg, r#"<text x="{x:.1}" y="{y:.1}""#)?;
    }
    write!(svg, r#" class="{style}{anchor}">{}</text>"#, escaped(text))
}
