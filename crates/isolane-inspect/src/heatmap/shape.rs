//! The parts of a drawing, in pixels.

/// Rectangle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Area {
    pub x: f64,
    pub y: f64,
    pub width: f64,
    pub height: f64,
}

/// Part of a drawing. Later ones cover earlier ones.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Filled rectangles of one color, `#rrggbb`.
    Fill(Vec<Area>, &'static str),
    /// Outline of a rectangle.
    Frame(Area),
    Text(Label),
}

/// Text on one line.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    pub text: String,
    /// Position on the base line.
    pub x: f64,
    pub y: f64,
    pub style: Style,
    pub anchor: Anchor,
    /// Written from the bottom to the top.
    pub is_upward: bool,
}

/// Size and color of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    Title,
    Name,
    /// Name of an outlier.
    MarkedName,
    Plain,
    Soft,
    Mark,
}

/// Part of the text that is at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Color of outliers.
pub const MARK: &str = "#d4002a";
/// Color of frames.
pub const FRAME: &str = "#888888";

impl Style {
    /// Returns the color, `#rrggbb`.
    pub const fn color(self) -> &'static str {
        match self {
            Style::Title | Style::Name | Style::Plain => "#222222",
            Style::Soft => "#666666",
            Style::MarkedName | Style::Mark => MARK,
        }
    }
}
