//! The registry of the daemon's own metrics, which also lists families without series.

use std::sync::{Arc, Mutex, PoisonError};

use prometheus::core::{
    Atomic, Collector, Desc, GenericCounter, GenericCounterVec, GenericGauge, GenericGaugeVec,
};
use prometheus::proto::{MetricFamily, MetricType};
use prometheus::{Histogram, HistogramOpts, Opts};

/// A family of the daemon's own metrics.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct OwnFamily {
    /// Its name.
    pub name: String,
    /// `counter`, `gauge` or `histogram`.
    pub kind: &'static str,
    /// Its labels, sorted.
    pub labels: Vec<String>,
    /// Its help text.
    pub help: String,
}

/// Families that exist together.
#[derive(Clone, Debug)]
pub struct OwnFamilies {
    /// The option that enables them; empty: they always exist.
    pub with: &'static str,
    /// The families, sorted.
    pub families: Vec<OwnFamily>,
}

/// The families of the daemon's own metrics, including those without series.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    shown: prometheus::Registry,
    families: Arc<Mutex<Vec<OwnFamily>>>,
}

impl Registry {
    /// A registry without families.
    pub fn new() -> Self {
        Self::default()
    }

    /// Exports the families of this collector.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn register(&self, collector: Box<dyn Collector>) -> Result<(), prometheus::Error> {
        let mut families = Vec::new();
        // Both are in one order: a collector has one family or more, and a description of each.
        for (family, desc) in collector.collect().iter().zip(collector.desc()) {
            let kind = match family.get_field_type() {
                MetricType::COUNTER => "counter",
                MetricType::HISTOGRAM => "histogram",
                MetricType::GAUGE | MetricType::SUMMARY | MetricType::UNTYPED => "gauge",
            };
            families.push(OwnFamily {
                name: desc.fq_name.clone(),
                kind,
                labels: desc.variable_labels.clone(),
                help: desc.help.clone(),
            });
        }
        self.shown.register(collector)?;
        self.families.lock().unwrap_or_else(PoisonError::into_inner).extend(families);
        Ok(())
    }

    /// Registers a new family, and returns it.
    ///
    /// # Errors
    ///
    /// Fails if it could not be made, or a family with this name is registered already.
    pub fn add<C: Collector + Clone + 'static>(
        &self,
        family: Result<C, prometheus::Error>,
    ) -> Result<C, prometheus::Error> {
        let family = family?;
        self.register(Box::new(family.clone())).map(|()| family)
    }

    /// Registers a family that `look` sets at each scrape; it is exported if `look` returns true.
    ///
    /// # Errors
    ///
    /// Fails if it could not be made, or a family with this name is registered already.
    pub fn sampled<C: Collector + 'static>(
        &self,
        family: Result<C, prometheus::Error>,
        look: impl Fn(&C) -> bool + Send + Sync + 'static,
    ) -> Result<(), prometheus::Error> {
        self.register(Box::new(Sampled { family: family?, look }))
    }

    /// Registers a counter; its family is called `agentgauge_` followed by this name.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn counter<P: Atomic + 'static>(
        &self,
        name: &str,
        help: &str,
    ) -> Result<GenericCounter<P>, prometheus::Error> {
        self.add(GenericCounter::with_opts(opts(name, help)))
    }

    /// Registers counters with these labels; their family is called `agentgauge_` followed by this name.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn counters<P: Atomic + 'static>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GenericCounterVec<P>, prometheus::Error> {
        self.add(GenericCounterVec::new(opts(name, help), labels))
    }

    /// Registers a gauge; its family is called `agentgauge_` followed by this name.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn gauge<P: Atomic + 'static>(
        &self,
        name: &str,
        help: &str,
    ) -> Result<GenericGauge<P>, prometheus::Error> {
        self.add(GenericGauge::with_opts(opts(name, help)))
    }

    /// Registers gauges with these labels; their family is called `agentgauge_` followed by this name.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn gauges<P: Atomic + 'static>(
        &self,
        name: &str,
        help: &str,
        labels: &[&str],
    ) -> Result<GenericGaugeVec<P>, prometheus::Error> {
        self.add(GenericGaugeVec::new(opts(name, help), labels))
    }

    /// Registers a histogram with these upper bounds; its family is called `agentgauge_` followed by this name.
    ///
    /// # Errors
    ///
    /// Fails if a family with this name is registered already.
    pub fn histogram(
        &self,
        name: &str,
        help: &str,
        buckets: &[f64],
    ) -> Result<Histogram, prometheus::Error> {
        let opts = HistogramOpts::from(opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }

    /// The families that have series, with their series.
    pub fn gather(&self) -> Vec<MetricFamily> {
        self.shown.gather()
    }

    /// Takes the families that were registered since the last call, sorted.
    pub fn take_families(&self) -> Vec<OwnFamily> {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        let mut families = std::mem::take(&mut *families);
        families.sort();
        families
    }
}

/// A family that is set at each scrape.
struct Sampled<C, F> {
    family: C,
    look: F,
}

impl<C: Collector, F: Fn(&C) -> bool + Send + Sync> Collector for Sampled<C, F> {
    fn desc(&self) -> Vec<&Desc> {
        self.family.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        // An unknown value is not exported: absent is not zero.
        if (self.look)(&self.family) { self.family.collect() } else { Vec::new() }
    }
}

/// A struct of own metrics, one per row, and its `new`, which makes and registers them.
///
/// A row has the field and its type, and the call to the [`Registry`] that makes it:
///
/// ```ignore
/// metrics! {
///     /// The judge's own metrics.
///     pub struct Meter {
///         waiting: IntGauge = gauge("judge_queue_traces", "Traces waiting for the judge."),
///         calls: IntCounterVec = counters("judge_calls_total", "Calls to the judge, by outcome.", &["outcome"]),
///     }
/// }
/// ```
macro_rules! metrics {
    ($(#[$about:meta])* $vis:vis struct $name:ident {
        $($(#[$note:meta])* $seen:vis $field:ident: $metric:ty = $make:ident($($argument:expr),+),)+
    }) => {
        $(#[$about])*
        #[derive(Clone, Debug)]
        $vis struct $name {
            $($(#[$note])* $seen $field: $metric,)+
        }

        impl $name {
            /// Makes the metrics and registers them.
            ///
            /// # Errors
            ///
            /// Fails if the registry has one of them already.
            $vis fn new(registry: &$crate::registry::Registry) -> Result<Self, prometheus::Error> {
                Ok(Self { $($field: registry.$make($($argument),+)?,)+ })
            }
        }
    };
}
pub(crate) use metrics;

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("agentgauge_{name}"), help)
}
