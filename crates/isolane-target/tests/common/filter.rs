//! A volume that lets a test decide what becomes of every request.

use std::fs::File;
use std::io;
use std::sync::Arc;

use isolane_memory::Pool;
use isolane_reactor::file::FileOp;
use isolane_volume::{Identity, Request, Step, Task, Volume, VolumeError, VolumeInfo};

use super::volume;

/// What becomes of a request.
pub enum Verdict {
    /// The volume below does it.
    Pass(Request),
    /// It is to be tried again.
    Later(Request),
    /// It fails.
    Fail(VolumeError),
}

/// A volume in front of another.
pub struct Filter<F> {
    below: Arc<dyn Volume>,
    judge: F,
}

impl<F: Fn(Request) -> Verdict + Send + Sync + 'static> Filter<F> {
    pub fn over(text: &str, judge: F) -> Arc<dyn Volume> {
        Arc::new(Filter { below: volume(text), judge })
    }
}

impl<F: Fn(Request) -> Verdict + Send + Sync> Volume for Filter<F> {
    fn info(&self) -> &VolumeInfo {
        self.below.info()
    }

    fn identity(&self) -> &Identity {
        self.below.identity()
    }

    fn name(&self) -> &str {
        "filter"
    }

    fn file(&self) -> Option<&Arc<File>> {
        self.below.file()
    }

    fn start(&self, request: Request, pool: &mut Pool) -> Step {
        match (self.judge)(request) {
            Verdict::Pass(request) => self.below.start(request, pool),
            Verdict::Later(request) => Step::Retry(request),
            Verdict::Fail(error) => Step::Done(Err(error)),
        }
    }

    fn resume(&self, task: Task, result: io::Result<usize>, operation: FileOp, pool: &mut Pool) -> Step {
        self.below.resume(task, result, operation, pool)
    }
}
