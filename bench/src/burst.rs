//! Measures the memory that is left after a burst: resident memory before it, at its peak, and when all of its traces and sessions
//! have been removed.
//!
//! Quiet times are short here, so that they are removed soon. A smaller burst comes first, so that memory which stays after any
//! burst is already there. Some spans follow at a slow pace, as the allocator returns memory only when it is asked for some.

use std::io;
use std::time::Duration;

use crate::child::Running;
use crate::measure::{peak_resident_bytes, resident_bytes};
use crate::pass::Material;
use crate::report::Spread;
use crate::{Bench, BenchError, Case, LOOK_EVERY, MAX_LOOKS, Server, failed};

/// How many times smaller the first burst is.
const SMALLER: u64 = 10;

/// The number of single blocks of spans after the burst, each sent when the previous one was removed.
const AFTER: usize = 5;

/// Options under which traces and sessions are removed soon.
const SOON: [(&str, &str); 5] = [
    ("AGENTGAUGE__ASSEMBLE__TRACE_IDLE", "1s"),
    ("AGENTGAUGE__ASSEMBLE__ROOTLESS_IDLE", "1s"),
    ("AGENTGAUGE__ASSEMBLE__LATE_HORIZON", "1s"),
    ("AGENTGAUGE__ASSEMBLE__REPORT_WAIT", "1s"),
    ("AGENTGAUGE__SESSION__SESSION_IDLE", "3s"),
];

/// A little more than the time for which closed sessions are held.
const CLOSED: Duration = Duration::from_secs(5);

/// The resident bytes of one repeat.
struct Left {
    before: u64,
    peak: u64,
    gone: u64,
    later: u64,
}

impl Bench<'_> {
    /// Measures a case.
    pub(super) fn burst(&mut self, case: Case) -> Result<(), BenchError> {
        let mut material = Material::new(&case);
        let mut found = Vec::new();
        for repeat in 1..=self.plan.repeats {
            let left = self.one_burst(case, &mut material)?;
            let said = format_args!(
                "{:.0} MB before, {:.0} at the peak, {:.0} when all had gone, {:.0} later",
                megabytes(left.before),
                megabytes(left.peak),
                megabytes(left.gone),
                megabytes(left.later)
            );
            self.say(case, repeat, said);
            found.push(left);
        }
        let each = |of: fn(&Left) -> u64| Spread::of(found.iter().map(|left| megabytes(of(left))));
        let back = |left: &Left| {
            (left.peak as f64 - left.later as f64) / (left.peak.saturating_sub(left.before)) as f64
        };
        let figures = vec![
            ("spans", Spread::of([self.plan.spans as f64].into_iter())),
            ("resident before, MB", each(|left| left.before)),
            ("at the peak, MB", each(|left| left.peak)),
            ("when all had gone, MB", each(|left| left.gone)),
            ("after a little more, MB", each(|left| left.later)),
            ("given back, share", Spread::of(found.iter().map(back))),
        ];
        self.report.add_figures(case, "daemon after a burst", figures);
        Ok(())
    }

    fn one_burst(&self, case: Case, material: &mut Material) -> Result<Left, BenchError> {
        let options = SOON.map(|(name, value)| (name, value.to_owned()));
        let running = Server::Daemon.start_with(&self.cores, &options).map_err(failed)?;
        self.come_and_go(case, material, &running, self.plan.spans / SMALLER)?;
        let before = resident_bytes(running.id()).map_err(failed)?;
        self.come_and_go(case, material, &running, self.plan.spans)?;
        let gone = resident_bytes(running.id()).map_err(failed)?;
        let peak = peak_resident_bytes(running.id()).map_err(failed)?;
        for _ in 0..AFTER {
            self.come_and_go(case, material, &running, 1)?;
        }
        let later = resident_bytes(running.id()).map_err(failed)?;
        Ok(Left { before, peak, gone, later })
    }

    /// Sends at least this many spans, and waits until none of their traces and sessions is held.
    fn come_and_go(
        &self,
        case: Case,
        material: &mut Material,
        running: &Running,
        spans: u64,
    ) -> Result<(), BenchError> {
        let pass = material.pass(spans, self.clock.now()).map_err(BenchError::Generator)?;
        self.send(running, self.sending(case), &pass.into(), None)?;
        for _ in 0..MAX_LOOKS {
            std::thread::sleep(LOOK_EVERY);
            if held(&running.metrics().map_err(failed)?) == 0 {
                // Closed sessions are held for a while.
                std::thread::sleep(CLOSED);
                return Ok(());
            }
        }
        Err(failed(io::Error::other("traces and sessions are held for ever")))
    }
}

/// The number of open traces and sessions.
fn held(page: &str) -> u64 {
    let of = |what| {
        let line = page.lines().find_map(|line| line.strip_prefix(what));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    of(r#"agentgauge_held{what="traces"}"#) + of(r#"agentgauge_held{what="sessions"}"#)
}

fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traces_and_sessions_are_held() {
        let page = "agentgauge_held{what=\"agents\"} 3\nagentgauge_held{what=\"sessions\"} 4\n\
            agentgauge_held{what=\"traces\"} 5\n";
        assert_eq!((held(page), held("")), (9, 0));
    }
}
