//! Events of a program, for clients that follow them.
//!
//! The last events are kept for clients that come later. Each client that follows has a queue.
//!
//! Invariant: the number of clients and the length of each queue are bounded, and a client that reads slowly delays
//! neither the program nor other clients: it loses events, and gets their number.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hyper::body::Bytes;
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep_until};

/// Source of events.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Number of events since the start.
    count: u64,
    recent: VecDeque<Bytes>,
    followers: Vec<Follower>,
    /// Number of followers since the start.
    followers_total: u64,
}

/// A client that follows.
#[derive(Debug)]
struct Follower {
    id: u64,
    queue: VecDeque<Bytes>,
    /// Events that did not fit into the queue.
    lost: u64,
    waker: Option<Waker>,
}

impl Events {
    /// Adds an event: its kind, as `connected`, and its fields, an object of JSON. Waits for no client.
    pub fn publish(&self, kind: &str, fields: Value) {
        let mut state = lock(&self.0);
        state.count += 1;
        let mut event = json!({ "event": kind, "number": state.count, "at_unix_ms": now_unix_ms() });
        if let (Value::Object(event), Value::Object(fields)) = (&mut event, fields) {
            event.extend(fields);
        }
        let line = to_line(&event);
        if state.recent.len() == MAX_RECENT {
            state.recent.pop_front();
        }
        state.recent.push_back(line.clone());
        state.followers.iter_mut().for_each(|follower| follower.push(line.clone()));
    }

    /// Returns the last events, one line of JSON each.
    pub(crate) fn recent(&self) -> Vec<Bytes> {
        lock(&self.0).recent.iter().cloned().collect()
    }

    /// Returns all later events; `None` if too many clients follow.
    pub(crate) fn follow(&self) -> Option<EventStream> {
        let mut state = lock(&self.0);
        if state.followers.len() >= MAX_FOLLOWERS {
            return None;
        }
        state.followers_total += 1;
        let id = state.followers_total;
        state.followers.push(Follower { id, queue: VecDeque::new(), lost: 0, waker: None });
        let idle = Box::pin(sleep_until(Instant::now() + IDLE_INTERVAL));
        Some(EventStream { state: Arc::clone(&self.0), id, idle })
    }
}

impl Follower {
    fn push(&mut self, line: Bytes) {
        if self.queue.len() + usize::from(self.lost > 0) < MAX_QUEUED {
            let lost = self.take_lost();
            self.queue.extend(lost.into_iter().chain([line]));
        } else {
            self.lost += 1;
        }
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Returns the next line. The lost events are later than those in the queue.
    fn next(&mut self) -> Option<Bytes> {
        self.queue.pop_front().or_else(|| self.take_lost())
    }

    /// Returns a line with the number of lost events, if there are any.
    fn take_lost(&mut self) -> Option<Bytes> {
        match std::mem::take(&mut self.lost) {
            0 => None,
            lost => Some(to_line(&json!({ "event": "lost", "at_unix_ms": now_unix_ms(), "count": lost }))),
        }
    }
}

/// Events for one client.
#[derive(Debug)]
pub(crate) struct EventStream {
    state: Arc<Mutex<State>>,
    id: u64,
    /// An empty line follows, so that a client that is gone is noticed.
    idle: Pin<Box<Sleep>>,
}

impl EventStream {
    /// Returns the next line. It has no end.
    pub(crate) fn poll_line(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let line = {
            let mut state = lock(&self.state);
            let follower = state.followers.iter_mut().find(|follower| follower.id == self.id);
            follower.and_then(|follower| {
                let line = follower.next();
                follower.waker = line.is_none().then(|| context.waker().clone());
                line
            })
        };
        let line = match line {
            Some(line) => line,
            None if self.idle.as_mut().poll(context).is_ready() => Bytes::from_static(b"\n"),
            None => return Poll::Pending,
        };
        self.idle.as_mut().reset(Instant::now() + IDLE_INTERVAL);
        Poll::Ready(line)
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        lock(&self.state).followers.retain(|follower| follower.id != self.id);
    }
}

fn to_line(event: &Value) -> Bytes {
    Bytes::from(event.to_string() + "\n")
}

fn now_unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of events that are kept.
const MAX_RECENT: usize = 256;
/// Events that wait for one client.
const MAX_QUEUED: usize = 1024;
/// Clients that follow at a time.
pub(crate) const MAX_FOLLOWERS: usize = 16;
/// Time between two lines without an event.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn next(stream: &mut EventStream) -> Option<Value> {
        match stream.poll_line(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(line) => serde_json::from_slice(&line).ok(),
            Poll::Pending => None,
        }
    }

    fn with_runtime(test: impl FnOnce()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async { test() });
    }

    #[test]
    fn slow_client_gets_the_number_of_lost_events() {
        with_runtime(|| {
            let events = Events::default();
            let mut stream = events.follow().unwrap();
            assert_eq!(next(&mut stream), None);
            (0..MAX_QUEUED + 3).for_each(|at| events.publish("tick", json!({ "at": at })));
            for at in 0..MAX_QUEUED {
                assert_eq!(next(&mut stream).unwrap()["at"], at);
            }
            let lost = next(&mut stream).unwrap();
            assert_eq!((&lost["event"], &lost["count"]), (&json!("lost"), &json!(3)));
            events.publish("tick", json!({ "at": "later" }));
            assert_eq!(next(&mut stream).unwrap()["at"], "later");
            assert_eq!(next(&mut stream), None);
        });
    }

    #[test]
    fn last_events_are_kept() {
        let events = Events::default();
        (0..MAX_RECENT + 5).for_each(|at| events.publish("tick", json!({ "at": at })));
        let recent = events.recent();
        let first: Value = serde_json::from_slice(&recent[0]).unwrap();
        assert_eq!((recent.len(), &first["at"], &first["number"]), (MAX_RECENT, &json!(5), &json!(6)));
    }

    #[test]
    fn number_of_clients_is_bounded() {
        with_runtime(|| {
            let events = Events::default();
            let mut streams: Vec<_> = (0..MAX_FOLLOWERS).map(|_| events.follow().unwrap()).collect();
            assert!(events.follow().is_none());
            streams.pop();
            assert!(events.follow().is_some());
        });
    }
}
