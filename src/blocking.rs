//! Work that blocks, on dedicated threads.
//!
//! Not on tokio's threads: if the system cannot start a thread, `spawn_blocking` panics, and keeps the work with everything that it
//! holds until there is one.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

/// Why there is no result of some work.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum NotDone {
    /// It was not begun; it may be tried again.
    #[error("cannot start a thread: the process is at its limit")]
    NoThread,
    /// It was begun and panicked.
    #[error("a panic ended it")]
    Panicked,
}

impl From<NotDone> for io::Error {
    fn from(why: NotDone) -> Self {
        Self::other(why)
    }
}

/// Starts work on a thread that may block; the future waits for its result. Without a thread the work is dropped.
///
/// Callers bound the amount of such work.
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = Result<T, NotDone>> + Send {
    THREADS.blocking(work)
}

/// How long an idle thread is kept.
const KEPT_FOR: Duration = Duration::from_secs(5);

static THREADS: Threads = Threads::new(spawn);

type Job = Box<dyn FnOnce() + Send>;

/// Threads that are started on demand, and end some time after.
struct Threads {
    state: Mutex<State>,
    added: Condvar,
    /// Starts a thread that begins with this job.
    spawn: fn(&'static Self, Job) -> io::Result<()>,
}

// Invariant: no more jobs wait than threads.
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
}

fn spawn(threads: &'static Threads, job: Job) -> io::Result<()> {
    let named = thread::Builder::new().name("blocking".to_owned());
    named.spawn(move || threads.work(job)).map(drop)
}

impl Threads {
    const fn new(spawn: fn(&'static Self, Job) -> io::Result<()>) -> Self {
        let state = State { jobs: VecDeque::new(), idle: 0 };
        Self { state: Mutex::new(state), added: Condvar::new(), spawn }
    }

    fn blocking<T: Send + 'static>(
        &'static self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> impl Future<Output = Result<T, NotDone>> + Send {
        let (reply, done) = oneshot::channel();
        let begun = self.begin(Box::new(move || {
            // The result may no longer be wanted.
            let _ = reply.send(catch_unwind(AssertUnwindSafe(work)));
        }));
        async move {
            begun.map_err(|_| NotDone::NoThread)?;
            done.await.ok().and_then(Result::ok).ok_or(NotDone::Panicked)
        }
    }

    fn begin(&'static self, job: Job) -> io::Result<()> {
        let mut state = self.state();
        if state.idle > state.jobs.len() {
            state.jobs.push_back(job);
            self.added.notify_one();
            return Ok(());
        }
        drop(state);
        (self.spawn)(self, job)
    }

    /// Does this job, and others as long as there are any.
    fn work(&self, first: Job) {
        let mut job = first;
        loop {
            job();
            let mut state = self.state();
            state.idle += 1;
            let waited = self.added.wait_timeout_while(state, KEPT_FOR, |it| it.jobs.is_empty());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
            let Some(next) = state.jobs.pop_front() else { return };
            job = next;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[tokio::test]
    async fn work_is_begun_before_anybody_waits_and_panics_stay_with_it() {
        let (begun, begins) = std::sync::mpsc::channel();
        let work = blocking(move || begun.send(()).is_ok());
        begins.recv().unwrap();
        assert_eq!(work.await, Ok(true));
        let panicked: Result<(), NotDone> = blocking(|| panic!("of a test")).await;
        assert_eq!(panicked, Err(NotDone::Panicked));
        let many: Vec<_> = (0..50).map(|number| blocking(move || number)).collect();
        for (number, work) in many.into_iter().enumerate() {
            assert_eq!(work.await, Ok(number));
        }
    }

    #[tokio::test]
    async fn without_a_thread_the_work_is_dropped_with_all_that_it_holds() {
        static NONE: AtomicBool = AtomicBool::new(true);
        static FEW: Threads = Threads::new(|threads, job| match NONE.load(Ordering::SeqCst) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => spawn(threads, job),
        });
        let held = Arc::new(());
        let holds = |held: &Arc<()>| {
            let held = Arc::clone(held);
            FEW.blocking(move || Arc::strong_count(&held))
        };
        let refused = holds(&held);
        assert_eq!(Arc::strong_count(&held), 1);
        assert_eq!(refused.await, Err(NotDone::NoThread));
        NONE.store(false, Ordering::SeqCst);
        assert_eq!(holds(&held).await, Ok(2));
    }
}
