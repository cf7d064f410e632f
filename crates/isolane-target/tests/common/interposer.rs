//! Volume in front of another one; the test decides about each request.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use isolane_volume::{Request, Step, Task, Volume, VolumeDescription, VolumeError};

use super::volume;

/// Handling of one request.
pub enum Decision {
    /// The volume below does it.
    Pass(Request),
    /// The volume returns it for a retry.
    Later(Request),
    /// It fails.
    Fail(VolumeError),
}

/// A volume in front of another.
pub struct Interposer<F> {
    below: Arc<dyn Volume>,
    decide: F,
}

impl<F: Fn(Request) -> Decision + Send + Sync + 'static> Interposer<F> {
    pub fn over(text: &str, decide: F) -> Arc<dyn Volume> {
        Arc::new(Interposer { below: volume(text), decide })
    }
}

impl<F: Fn(Request) -> Decision + Send + Sync> Volume for Interposer<F> {
    fn description(&self) -> &VolumeDescription {
        self.below.description()
    }

    fn file(&self) -> Option<&Arc<File>> {
        self.below.file()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match (self.decide)(request) {
            Decision::Pass(request) => self.below.start(request, pool),
            Decision::Later(request) => Step::Retry(request),
            Decision::Fail(error) => Step::Done(Err(error)),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        self.below.resume(task, result, operation, pool)
    }
}
