//! Measures the memory that the daemon takes under its default limits while spans arrive at a steady rate for minutes: traces that
//! wait for late spans, and the records of sealed ones in sessions.
//!
//! The spans of a second are sent within two thirds of it, and those of the next second are prepared in the rest.

use std::thread;
use std::time::Duration;

use crate::measure::{Account, Cpu, peak_resident_bytes, resident_bytes};
use crate::pass::Material;
use crate::report::Spread;
use crate::{Bench, BenchError, Case, Server, failed, since};

/// How many times faster the spans of a second are sent than if they were spread over all of it.
const HASTE: f64 = 1.5;

/// Seconds between two lines of progress.
const LINE_EVERY: u64 = 60;

/// The load: how much is sent, and for how long.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Load {
    /// Spans a second.
    pub(crate) rate: u64,
    /// The seconds for which it is sent.
    pub(crate) seconds: u64,
}

/// The results of one repeat.
struct Sustained {
    accepted: u64,
    refused: u64,
    nanos: u64,
    cpu_nanos: u64,
    peak_bytes: u64,
    end_bytes: u64,
}

impl Bench<'_> {
    /// Measures a case.
    pub(super) fn sustained(&mut self, case: Case, load: Load) -> Result<(), BenchError> {
        let mut found = Vec::new();
        for repeat in 1..=self.plan.repeats {
            found.push(self.sustain(case, repeat, load)?);
        }
        let each = |of: fn(&Sustained) -> f64| Spread::of(found.iter().map(of));
        let figures = vec![
            ("seconds", each(|of| of.nanos as f64 / 1e9)),
            ("spans/s", each(|of| of.accepted as f64 * 1e9 / of.nanos as f64)),
            ("requests refused", each(|of| of.refused as f64)),
            ("CPU per span, us", each(|of| of.cpu_nanos as f64 / 1e3 / of.accepted as f64)),
            ("peak resident, MB", each(|of| of.peak_bytes as f64 / 1e6)),
            ("resident at the end, MB", each(|of| of.end_bytes as f64 / 1e6)),
        ];
        self.report.add_figures(case, "daemon under a load that lasts", figures);
        Ok(())
    }

    fn sustain(&mut self, case: Case, repeat: usize, load: Load) -> Result<Sustained, BenchError> {
        let running = Server::Daemon.start(&self.cores).map_err(failed)?;
        let mut material = Material::new(&case);
        let mut cpu = Cpu::watch(running.id()).map_err(failed)?;
        let before = cpu.nanos().map_err(failed)?;
        let (mut accepted, mut refused) = (0, 0);
        let begun = self.clock.now();
        for second in 0..load.seconds {
            let pass = material.pass(load.rate, self.clock.now()).map_err(BenchError::Generator)?;
            thread::sleep(self.clock.until(begun.after(Duration::from_secs(second))));
            let rate = load.rate as f64 * HASTE;
            let outcome = self.offer(case, &running, &pass.into(), self.pace(rate))?;
            accepted += outcome.accepted_spans;
            refused += outcome.refused;
            // Idle threads may end, so their times are read regularly.
            cpu.nanos().map_err(failed)?;
            if (second + 1) % LINE_EVERY == 0 {
                let held = resident_bytes(running.id()).map_err(failed)? as f64 / 1e6;
                let said = format_args!("{accepted} spans in {} s: {held:.0} MB", second + 1);
                self.say(case, repeat, said);
            }
        }
        thread::sleep(self.clock.until(begun.after(Duration::from_secs(load.seconds))));
        let nanos = since(begun, self.clock.now());
        let account = Account::read(&running.metrics().map_err(failed)?);
        if (account.received, account.refused) != (accepted, refused) {
            let Account { received, refused: told, .. } = account;
            return Err(BenchError::Amiss(format!(
                "it counted {received} spans and {told} requests refused where {accepted} and {refused} were answered"
            )));
        }
        Ok(Sustained {
            accepted,
            refused,
            nanos,
            cpu_nanos: cpu.nanos().map_err(failed)?.saturating_sub(before),
            peak_bytes: peak_resident_bytes(running.id()).map_err(failed)?,
            end_bytes: resident_bytes(running.id()).map_err(failed)?,
        })
    }
}
