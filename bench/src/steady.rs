//! Measures the middle of a pass, from the first tenth of its spans to the last.
//!
//! At the beginning connections open, and memory is used for the first time; at the end there are fewer requests than the server has
//! cores.

use std::io;
use std::process;
use std::sync::{Mutex, PoisonError};

use crate::measure::Cpu;
use crate::since;
use agentgauge::clock::Clock;
use agentgauge::engine::span::Timestamp;

/// Watches server and generator during the middle of a pass.
pub(super) struct Middle {
    clock: Clock,
    // The numbers of answered spans at which the middle begins and ends.
    from: u64,
    to: u64,
    watch: Mutex<Watch>,
}

/// The spans and the times of the middle of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Steady {
    /// Spans that were answered.
    pub(super) spans: u64,
    /// The nanoseconds that this took.
    pub(super) nanos: u64,
    /// Processor time of the server meanwhile, in nanoseconds.
    pub(super) busy_nanos: u64,
    /// Processor time of the generator meanwhile, in nanoseconds.
    pub(super) generator_nanos: u64,
}

struct Watch {
    server: Cpu,
    generator: Cpu,
    began: Option<At>,
    ended: Option<At>,
}

#[derive(Clone, Copy)]
struct At {
    spans: u64,
    time: Timestamp,
    server_nanos: u64,
    generator_nanos: u64,
}

impl Middle {
    /// A watch over a pass of this many spans to the server with this process id.
    ///
    /// # Errors
    ///
    /// As [`Cpu::watch`].
    pub(super) fn new(spans: u64, server: u32, clock: &Clock) -> io::Result<Self> {
        let (server, generator) = (Cpu::watch(server)?, Cpu::watch(process::id())?);
        let watch = Mutex::new(Watch { server, generator, began: None, ended: None });
        Ok(Self { clock: clock.clone(), from: spans / 10, to: spans - spans / 10, watch })
    }

    /// Notes an answer, with the numbers of answered spans before and after it.
    pub(super) fn answered(&self, before: u64, now: u64) {
        let passed = |mark| before < mark && mark <= now;
        if !passed(self.from) && !passed(self.to) {
            return;
        }
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let nanos = watch.server.nanos().and_then(|server| Ok((server, watch.generator.nanos()?)));
        // Without these times there is no figure: `steady` then returns `None`.
        let Ok((server_nanos, generator_nanos)) = nanos else { return };
        let at = At { spans: now, time: self.clock.now(), server_nanos, generator_nanos };
        if passed(self.from) {
            watch.began = Some(at);
        } else {
            watch.ended = Some(at);
        }
    }

    /// The figures of the middle; `None` if the pass had none.
    pub(super) fn steady(&self) -> Option<Steady> {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let (began, ended) = (watch.began?, watch.ended?);
        Some(Steady {
            spans: ended.spans.saturating_sub(began.spans),
            nanos: since(began.time, ended.time),
            busy_nanos: ended.server_nanos.saturating_sub(began.server_nanos),
            generator_nanos: ended.generator_nanos.saturating_sub(began.generator_nanos),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_between_the_first_tenth_and_the_last() {
        let middle = Middle::new(100, process::id(), &Clock::system()).unwrap();
        assert!(middle.steady().is_none());
        for answered in (0..100).step_by(20) {
            middle.answered(answered, answered + 20);
        }
        assert_eq!(middle.steady().unwrap().spans, 80);
    }
}
