//! Measures overload: offers twice the spans a second that the daemon accepted from a generator that waits for answers, and as many
//! spans.
//!
//! Requests are sent when they are due, whether earlier ones were answered or not, and refused ones are not sent again.
//! There is no figure unless the daemon counted the same accepted spans and refused requests.

use crate::measure::{Account, Cpu, peak_resident_bytes, resident_bytes};
use crate::pass::Material;
use crate::report::Spread;
use crate::{Bench, BenchError, Case, Sample, Server, failed, since};

/// The offered rate over the accepted one.
const TIMES: u64 = 2;

/// How many times more spans are sent than in other measurements: enough to fill every queue, and for traces to be scored
/// meanwhile. Both ways of sending send as many, as a span costs more while more traces are held.
const PASSES: u64 = 4;

/// One measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overload {
    /// Spans a second that were accepted from a generator that waits.
    saturation: f64,
    /// Spans a second that were offered.
    offered: f64,
    /// Spans a second that were accepted, up to the last answer.
    accepted: f64,
    /// Accepted spans per processor second, over those from a generator that waits: the same even if other processes take the
    /// processor from the daemon.
    by_cpu: f64,
    /// The share of requests that were refused.
    refused: f64,
    /// Spans that were sent and neither accepted nor refused.
    lost: f64,
    peak_bytes: u64,
    start_bytes: u64,
}

impl Bench<'_> {
    /// Measures a case under overload.
    pub(super) fn overload(&mut self, case: Case) -> Result<(), BenchError> {
        let mut material = Material::new(&case);
        let mut found = Vec::new();
        for repeat in 1..=self.plan.repeats {
            let sample = self.unhurried(case, &mut material, self.plan.spans * PASSES)?;
            let overload = self.flood(case, &mut material, &sample)?;
            let Overload { accepted, offered, saturation, .. } = overload;
            let said = format_args!(
                "{accepted:.0} spans/s accepted of {offered:.0} offered, {saturation:.0} at saturation"
            );
            self.say(case, repeat, said);
            found.push(overload);
        }
        let each = |figure: fn(&Overload) -> f64| Spread::of(found.iter().map(figure));
        let figures = vec![
            ("saturation, spans/s", each(|of| of.saturation)),
            ("offered, spans/s", each(|of| of.offered)),
            ("accepted, spans/s", each(|of| of.accepted)),
            ("accepted / saturation", each(|of| of.accepted / of.saturation)),
            ("accepted / saturation, by CPU", each(|of| of.by_cpu)),
            ("requests refused, share", each(|of| of.refused)),
            ("spans neither accepted nor refused", each(|of| of.lost)),
            ("peak resident, MB", each(|of| of.peak_bytes as f64 / 1e6)),
            ("of that before the first span, MB", each(|of| of.start_bytes as f64 / 1e6)),
        ];
        self.report.add_figures(case, "daemon under overload", figures);
        Ok(())
    }

    fn flood(
        &self,
        case: Case,
        material: &mut Material,
        unhurried: &Sample,
    ) -> Result<Overload, BenchError> {
        let pass = self.passes(material, self.plan.spans * PASSES)?.measured;
        let running = Server::Daemon.start(&self.cores).map_err(failed)?;
        let saturation = unhurried.spans_per_second();
        let rate = saturation * TIMES as f64;
        let mut cpu = Cpu::watch(running.id()).map_err(failed)?;
        let before = cpu.nanos().map_err(failed)?;
        let start_bytes = resident_bytes(running.id()).map_err(failed)?;
        let start = self.clock.now();
        let outcome = self.offer(case, &running, &pass, self.pace(rate))?;
        let seconds = since(start, self.clock.now()) as f64 / 1e9;
        let busy_nanos = cpu.nanos().map_err(failed)?.saturating_sub(before);
        let account = Account::read(&running.metrics().map_err(failed)?);
        let counted = (account.received, account.refused);
        let told = (outcome.accepted_spans, outcome.refused);
        if counted != told {
            return Err(BenchError::Amiss(format!(
                "under overload it counted {counted:?} spans accepted and requests refused, and told its senders of {told:?}"
            )));
        }
        let accepted = outcome.accepted_spans as f64;
        Ok(Overload {
            saturation,
            offered: rate,
            accepted: accepted / seconds,
            by_cpu: accepted / busy_nanos as f64 * unhurried.busy_nanos as f64
                / unhurried.spans as f64,
            refused: outcome.refused as f64 / pass.messages.len() as f64,
            lost: pass.spans() as f64 - accepted - outcome.refused_spans as f64,
            peak_bytes: peak_resident_bytes(running.id()).map_err(failed)?,
            start_bytes,
        })
    }
}
