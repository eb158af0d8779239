//! The outcome of a test's spans: each was accepted, or its sender got an error, or it was counted as dropped.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

use super::daemon::comes_true;

/// Spans, as their senders saw them go.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Account {
    /// All of them.
    pub(crate) sent: u64,
    /// In requests that were refused as a whole.
    pub(crate) refused: u64,
    /// Named as rejected in answers to requests that were taken.
    pub(crate) rejected: u64,
    /// That the daemon shows, in whatever the test counts them by.
    pub(crate) held: u64,
}

impl Account {
    /// Adds a request and the status that it was answered with.
    pub(crate) fn answered(&mut self, body: &[u8], status: u16) {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        let scopes = request.resource_spans.iter().flat_map(|resource| &resource.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len() as u64).sum::<u64>();
        self.sent += spans;
        self.refused += if status == 200 { 0 } else { spans };
    }

    /// Waits until it adds up, as it does once all has been applied; `held` is what a page shows.
    pub(crate) fn comes_to_add_up(self, page: impl Fn() -> String, held: impl Fn(&str) -> u64) {
        let mut last = String::new();
        let adds_up = comes_true(|| {
            last = page();
            Self { held: held(&last), ..self }.check("", &last).is_ok()
        });
        if !adds_up {
            Self { held: held(&last), ..self }.adds_up("", &last);
        }
    }

    /// Holds it against what the daemon counted: a page of metrics from before any of this, or nothing, and one from after all was applied.
    pub(crate) fn adds_up(self, before: &str, after: &str) {
        self.check(before, after).unwrap_or_else(|problem| panic!("{problem}: {self:?}"));
    }

    fn check(self, before: &str, after: &str) -> Result<(), String> {
        let counted =
            |family: &str, label: &str| sum(after, family, label) - sum(before, family, label);
        let Self { sent, refused, rejected, held } = self;
        let received = counted("agentgauge_spans_received_total", "");
        if received != sent - refused {
            return Err(format!("{received} spans came, which are others than were sent"));
        }
        let told = counted("agentgauge_spans_rejected_total", "");
        if told != rejected {
            return Err(format!("{told} are counted as rejected, senders were told of others"));
        }
        let late = counted("agentgauge_late_spans_total", "outcome=\"dropped\"");
        let twice = counted("agentgauge_duplicates_total", "what=\"spans\"");
        if held + refused + rejected + late + twice != sent {
            return Err(format!("a 200 that nothing explains: {late} late, {twice} twice"));
        }
        Ok(())
    }
}

/// The sum of the values of a family that have this label.
pub(crate) fn sum(page: &str, family: &str, label: &str) -> u64 {
    let is_of = |line: &&str| {
        line.strip_prefix(family).is_some_and(|rest| rest.starts_with(['{', ' ']))
            && line.contains(label)
    };
    let values = page.lines().filter(is_of).map(|line| line.rsplit(' ').next());
    values.map(|value| value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0)).sum()
}
