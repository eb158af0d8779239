//! Measures the daemon on one core, two, and so on up to all cores.
//!
//! The generator has the remaining cores, or all of them if none remains; the table has how many it was busy on. Enough requests
//! are in flight that no core of the daemon waits for one, and the middle of the pass is measured.

use crate::client::Sending;
use crate::pass::Material;
use crate::report::{OnCores, Spread};
use crate::{Bench, BenchError, Case, Cores, Sample, Server, generator};

/// The least number of connections, and of requests in flight on each.
const CONNECTIONS: usize = 4;
const STREAMS: usize = 8;

impl Bench<'_> {
    /// Measures a case on more and more cores.
    pub(super) fn scaling(&mut self, case: Case) -> Result<(), BenchError> {
        let divisions = Cores::growing(&self.available);
        let sending = self.sending(case);
        let sending = Sending {
            connections: sending.connections.max(CONNECTIONS),
            streams: sending.streams.max(STREAMS),
            ..sending
        };
        let mut material = Material::new(&case);
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); divisions.len()];
        for repeat in 1..=self.plan.repeats {
            let passes = self.passes(&mut material, self.plan.spans)?;
            for (cores, samples) in divisions.iter().zip(&mut samples) {
                self.runtime = generator(cores)?;
                self.cores = cores.clone();
                let sample = self.measure(Server::Daemon, &[], sending, &passes)?;
                let (rate, many) = (sample.steady.spans_per_second(), cores.server.len());
                let said = format_args!("{rate:.0} spans/s on {many} cores");
                self.say(case, repeat, said);
                samples.push(sample);
            }
        }
        let rate = |of: &Sample| of.steady.spans_per_second();
        let rows = divisions.iter().zip(&samples).map(|(cores, of)| {
            let each = |figure: fn(&Sample) -> f64| Spread::of(of.iter().map(figure));
            let times = of.iter().zip(&samples[0]);
            let times = times.map(|(more, one)| rate(more) / rate(one));
            OnCores {
                cores: cores.clone(),
                spans_per_second: each(rate),
                times_one_core: Spread::of(times),
                cores_busy: each(|of| of.steady.cores_busy()),
                generator_cores: each(|of| of.steady.generator_cores()),
                cpu_micros_per_span: each(Sample::micros_per_span),
            }
        });
        self.report.add_scaling(case, rows.collect());
        Ok(())
    }
}
