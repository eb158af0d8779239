//! Tasks and threads without which the daemon is half dead.

use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Starts tasks, and notices when one of them panics.
#[derive(Debug, Default)]
pub(crate) struct Vital(watch::Sender<Option<&'static str>>);

/// Dropped at the end of its task or thread, whether that panicked or not.
#[derive(Debug)]
pub(crate) struct Alarm {
    task: &'static str,
    panicked: watch::Sender<Option<&'static str>>,
}

impl Vital {
    /// Starts a task with this name.
    pub(crate) fn spawn(
        &self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> JoinHandle<()> {
        let alarm = self.alarm(name);
        tokio::spawn(async move {
            let _alarm = alarm;
            task.await;
        })
    }

    /// A guard that a thread with this name holds until its end.
    pub(crate) fn alarm(&self, name: &'static str) -> Alarm {
        Alarm { task: name, panicked: self.0.clone() }
    }

    /// Notes that the part with this name cannot continue, although it has not panicked as a task.
    #[cfg(feature = "kafka")]
    pub(crate) fn give_up(&self, name: &'static str) {
        self.0.send_replace(Some(name));
    }

    /// Waits until one of the tasks has panicked; returns its name.
    pub(crate) async fn panicked(&self) -> &'static str {
        let mut panicked = self.0.subscribe();
        let name = panicked.wait_for(Option::is_some).await.ok().and_then(|name| *name);
        match name {
            Some(name) => name,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.panicked.send_replace(Some(self.task));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_a_panic_is_noticed() {
        let vital = Vital::default();
        vital.spawn("ends", async {}).await.unwrap();
        let dropped = vital.spawn("dropped", std::future::pending());
        dropped.abort();
        assert!(dropped.await.is_err());
        assert!(vital.0.borrow().is_none());
        assert!(vital.spawn("panics", async { panic!("of a test") }).await.is_err());
        assert_eq!(vital.panicked().await, "panics");
    }

    #[tokio::test]
    async fn a_thread_that_panics_is_noticed() {
        let vital = Vital::default();
        let end = |alarm: Alarm, panics: bool| {
            let thread = std::thread::spawn(move || {
                let _alarm = alarm;
                assert!(!panics, "of a test");
            });
            thread.join().is_ok()
        };
        assert!(end(vital.alarm("ends"), false) && vital.0.borrow().is_none());
        assert!(!end(vital.alarm("panics"), true));
        assert_eq!(vital.panicked().await, "panics");
    }
}
