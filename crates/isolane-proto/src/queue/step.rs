//! What came of one step of receiving, with the events of one side.

/// The outcome of a step.
pub(crate) enum Step<E> {
    /// An event.
    Event(E),
    /// Nothing to tell, but there may be more to do.
    Again,
    /// More bytes must arrive.
    Starved,
}
