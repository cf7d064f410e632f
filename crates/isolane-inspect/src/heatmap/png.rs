//! Drawings as PNG.

use std::convert::Infallible;

use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::{FONT_6X13, FONT_7X13_BOLD, FONT_9X18_BOLD};
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::text::{Alignment, Text};
use embedded_graphics::{Drawable, Pixel};

use super::shape::{Anchor, Area, FRAME, Label, Shape, Style};

/// Returns a file with an image of this size in pixels.
pub fn file(shapes: &[Shape], (width, height): (f64, f64)) -> Vec<u8> {
    let mut image = Image::new(width as u32, height.ceil() as u32);
    shapes.iter().for_each(|shape| image.draw(shape));
    image.encode()
}

/// Three bytes for each pixel, row by row.
struct Image {
    width: u32,
    height: u32,
    bytes: Vec<u8>,
}

impl Image {
    /// Returns a white image.
    fn new(width: u32, height: u32) -> Image {
        Image { width, height, bytes: vec![u8::MAX; width as usize * height as usize * 3] }
    }

    fn draw(&mut self, shape: &Shape) {
        match shape {
            Shape::Fill(areas, color) => areas.iter().for_each(|area| self.fill(area, rgb(color))),
            Shape::Frame(area) => self.frame(area),
            Shape::Text(label) => self.text(label),
        }
    }

    fn frame(&mut self, area: &Area) {
        let Area { x, y, width, height } = *area;
        for (x, y, width, height) in [
            (x, y, width, 1.0),
            (x, y + height - 1.0, width, 1.0),
            (x, y, 1.0, height),
            (x + width - 1.0, y, 1.0, height),
        ] {
            self.fill(&Area { x, y, width, height }, rgb(FRAME));
        }
    }

    /// Fills at least one pixel. Areas that touch have no gap.
    fn fill(&mut self, area: &Area, color: Rgb888) {
        let pixels = |start: f64, length: f64| {
            let first = start.round() as i32;
            first..((start + length).round() as i32).max(first + 1)
        };
        for y in pixels(area.y, area.height) {
            pixels(area.x, area.width).for_each(|x| self.set(x, y, color));
        }
    }

    fn text(&mut self, label: &Label) {
        let font = match label.style {
            Style::Title => &FONT_9X18_BOLD,
            Style::Name | Style::MarkedName => &FONT_7X13_BOLD,
            Style::Plain | Style::Soft | Style::Mark => &FONT_6X13,
        };
        let alignment = match label.anchor {
            Anchor::Start => Alignment::Left,
            Anchor::Middle => Alignment::Center,
            Anchor::End => Alignment::Right,
        };
        // The font has the characters of Latin-1, and draws others as question marks.
        let text = label.text.replace('…', "...");
        let style = MonoTextStyle::new(font, rgb(label.style.color()));
        let start = Point::new(label.x.round() as i32, label.y.round() as i32);
        // Drawing into memory does not fail.
        let Ok(_) = if label.is_upward {
            let mut upward = Upward { image: self, start };
            Text::with_alignment(&text, Point::zero(), style, alignment).draw(&mut upward)
        } else {
            Text::with_alignment(&text, start, style, alignment).draw(self)
        };
    }

    /// Sets a pixel, if it is in the image.
    fn set(&mut self, x: i32, y: i32, color: Rgb888) {
        let inside = |at: i32, end: u32| u32::try_from(at).ok().filter(|at| *at < end);
        if let (Some(x), Some(y)) = (inside(x, self.width), inside(y, self.height)) {
            let at = (y as usize * self.width as usize + x as usize) * 3;
            self.bytes[at..at + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        let mut writer = encoder.write_header().expect("the image is not empty");
        writer.write_image_data(&self.bytes).expect("the header has the size of the image");
        writer.finish().expect("memory takes all bytes");
        file
    }
}

impl OriginDimensions for Image {
    fn size(&self) -> Size {
        Size::new(self.width, self.height)
    }
}

impl DrawTarget for Image {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        pixels.into_iter().for_each(|Pixel(at, color)| self.set(at.x, at.y, color));
        Ok(())
    }
}

/// An image with the direction of text turned to the top.
struct Upward<'a> {
    image: &'a mut Image,
    start: Point,
}

impl OriginDimensions for Upward<'_> {
    fn size(&self) -> Size {
        self.image.size()
    }
}

impl DrawTarget for Upward<'_> {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> Result<(), Infallible> {
        let start = self.start;
        pixels.into_iter().for_each(|Pixel(at, color)| self.image.set(start.x + at.y, start.y - at.x, color));
        Ok(())
    }
}

/// Returns the color `#rrggbb`.
fn rgb(color: &str) -> Rgb888 {
    let number = u32::from_str_radix(color.trim_start_matches('#'), 16).unwrap_or(0);
    let channel = |shift: u32| (number >> shift) as u8;
    Rgb888::new(channel(16), channel(8), channel(0))
}
