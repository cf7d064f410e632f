//! The buffer of a task in pieces, one for each part: split without a copy, and joined again.

use isolane_memory::Buffer;

/// The buffer, as far as no command has it.
#[derive(Debug)]
pub(super) enum Pieces {
    /// That of the only part.
    One(Option<Buffer>),
    /// One for each part.
    Many(Vec<Option<Buffer>>),
}

impl Pieces {
    /// One piece for each part.
    pub(super) fn split(buffer: Option<Buffer>, parts: u32, part_bytes: usize) -> Pieces {
        let Some(mut buffer) = buffer else { return Pieces::One(None) };
        let mut pieces = Vec::with_capacity(parts as usize);
        for _ in 1..parts {
            let rest = buffer.split_off(part_bytes);
            pieces.push(Some(std::mem::replace(&mut buffer, rest)));
        }
        pieces.push(Some(buffer));
        Pieces::Many(pieces)
    }

    /// Where the piece of a part is kept.
    #[inline]
    pub(super) fn place(&mut self, part: u32) -> Option<&mut Option<Buffer>> {
        match self {
            Pieces::One(piece) => (part == 0).then_some(piece),
            Pieces::Many(pieces) => pieces.get_mut(part as usize),
        }
    }

    /// The whole buffer again; all pieces are back.
    pub(super) fn join(self) -> Option<Buffer> {
        let mut pieces = match self {
            Pieces::One(piece) => return piece,
            Pieces::Many(pieces) => pieces.into_iter().flatten(),
        };
        let mut whole = pieces.next()?;
        for piece in pieces {
            if whole.join(piece).is_err() {
                debug_assert!(false, "pieces of one buffer always fit");
            }
        }
        Some(whole)
    }
}
