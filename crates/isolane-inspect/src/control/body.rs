//! Body of a response: parts of memory that several responses share.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

/// Parts of a body, sent in sequence.
#[derive(Debug, Default)]
pub struct PartsBody {
    parts: VecDeque<Bytes>,
    remaining: u64,
}

impl From<Vec<Bytes>> for PartsBody {
    fn from(parts: Vec<Bytes>) -> PartsBody {
        let remaining = parts.iter().map(|part| part.len() as u64).sum();
        PartsBody { parts: parts.into(), remaining }
    }
}

impl Body for PartsBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.remaining -= part.as_ref().map_or(0, |part| part.len() as u64);
        Poll::Ready(part.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.remaining)
    }
}
