//! Result of one receive step.

/// The outcome of a step.
pub(crate) enum Step<E> {
    /// An event.
    Event(E),
    /// Nothing to tell, but there may be more to do.
    Continue,
    /// More bytes must arrive.
    NeedMoreData,
}
