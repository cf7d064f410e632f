//! A volume whose requests the test completes.

use std::sync::{Arc, Mutex};
use std::thread;

use isolane_memory::{Payload, Pool};
use isolane_volume::{
    Completer, Request, Step, Volume, VolumeDescription, VolumeError, VolumeInfo, open, spec,
};

/// A volume whose requests wait for the test.
pub struct Waiting {
    description: VolumeDescription,
    /// Requests in flight, with their data.
    pub started: Mutex<Vec<(String, Request, Completer)>>,
}

impl Waiting {
    pub fn new() -> Arc<Waiting> {
        let description = open(&spec::parse("mem:1M").unwrap()).unwrap().description().clone();
        Arc::new(Waiting { description, started: Mutex::default() })
    }

    /// Waits until requests are in flight, and returns them.
    pub fn started(&self, count: usize) -> Vec<String> {
        loop {
            let started = self.started.lock().unwrap();
            if started.len() >= count {
                return started.iter().map(|(name, _, _)| name.clone()).collect();
            }
            drop(started);
            thread::yield_now();
        }
    }

    pub fn complete(&self, name: &str) {
        self.started(1);
        let mut started = self.started.lock().unwrap();
        let at = started.iter().position(|(known, _, _)| known == name).expect("a request in flight");
        let (_, _, completer) = started.remove(at);
        drop(started);
        completer.complete(Ok(Payload::default()));
    }

    pub fn fail(&self, name: &str) {
        self.started(1);
        let mut started = self.started.lock().unwrap();
        let at = started.iter().position(|(known, _, _)| known == name).expect("a request in flight");
        let (_, _, completer) = started.remove(at);
        drop(started);
        completer.complete(Err(VolumeError::SyncFailed { raw_os_error: 5 }));
    }
}

impl Volume for Waiting {
    fn description(&self) -> &VolumeDescription {
        &self.description
    }

    fn info(&self) -> &VolumeInfo {
        &self.description.info
    }

    fn start(&self, request: Request, _: &mut Pool) -> Step {
        let name = match &request {
            Request::Write { lba, data, fua, .. } => {
                format!("write {lba} {}{}", data.to_vec()[0], if *fua { " fua" } else { "" })
            }
            Request::Flush => "flush".to_owned(),
            other => format!("{other:?}"),
        };
        let (completer, step) = Step::pending(&request);
        self.started.lock().unwrap().push((name, request, completer));
        step
    }
}
