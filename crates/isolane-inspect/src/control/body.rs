//! Body of a response: parts of memory that several responses share, or events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};

use crate::events::EventStream;

/// Body of a response.
#[derive(Debug)]
pub enum ResponseBody {
    Parts(PartsBody),
    /// Without an end.
    Events(EventStream),
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match self.get_mut() {
            ResponseBody::Parts(parts) => Pin::new(parts).poll_frame(context),
            ResponseBody::Events(events) => events.poll_line(context).map(|line| Some(Ok(Frame::data(line)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, ResponseBody::Parts(parts) if parts.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            ResponseBody::Parts(parts) => parts.size_hint(),
            ResponseBody::Events(_) => SizeHint::default(),
        }
    }
}

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
