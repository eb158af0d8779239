//! The daemon on one core, two, and so on up to all that there are.
//!
//! The generator has the cores that are left, and all of them where none is left; it needs a fraction of what the daemon
//! does.

use std::io::Write;

use super::pass::Material;
use super::report::{Report, Spread};
use super::{Bench, BenchError, Case, Cores, Sample, Server, generator};

impl Bench<'_> {
    /// Measures a case on more and more cores.
    pub(super) fn scaling(
        &mut self,
        case: Case,
        report: &mut Report,
        progress: &mut dyn Write,
    ) -> Result<(), BenchError> {
        let divisions = Cores::growing(&self.available);
        let mut material = Material::new(&case);
        let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); divisions.len()];
        for repeat in 1..=self.plan.repeats {
            let (warm, pass) = self.passes(&mut material, self.plan.spans)?;
            for (cores, samples) in divisions.iter().zip(&mut samples) {
                self.runtime = generator(cores)?;
                self.cores = cores.clone();
                let sample = self.measure((Server::Daemon, &[]), case, &warm, &pass)?;
                // Nobody has to watch.
                let _ = writeln!(
                    progress,
                    "{case}: {repeat} of {}: {:.0} spans/s on {} cores",
                    self.plan.repeats,
                    sample.spans_per_second(),
                    cores.server.len()
                );
                samples.push(sample);
            }
        }
        let rows = divisions.iter().zip(&samples).map(|(cores, of)| {
            let each = |figure: fn(&Sample) -> f64| Spread::of(of.iter().map(figure));
            let times = of.iter().zip(&samples[0]);
            let times = times.map(|(more, one)| more.spans_per_second() / one.spans_per_second());
            let (rate, busy) = (each(Sample::spans_per_second), each(Sample::cores_busy));
            (cores.clone(), [rate, Spread::of(times), busy, each(Sample::micros_per_span)])
        });
        report.add_scaling(case, rows.collect());
        Ok(())
    }
}
