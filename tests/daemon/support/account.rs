//! What became of spans that a test sent: each was taken, or its sender was told, or it was counted as dropped.

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
    /// Holds it against what the daemon counted: a page of metrics from before any of this, or nothing, and one from after all was applied.
    pub(crate) fn adds_up(self, before: &str, after: &str) {
        let counted =
            |family: &str, label: &str| sum(after, family, label) - sum(before, family, label);
        let Self { sent, refused, rejected, held } = self;
        let received = counted("agentgauge_spans_received_total", "");
        assert_eq!(received, sent - refused, "spans came that nobody sent, or did not: {self:?}");
        let told = counted("agentgauge_spans_rejected_total", "");
        assert_eq!(
            told, rejected,
            "what is counted as rejected is not what senders were told: {self:?}"
        );
        let late = counted("agentgauge_late_spans_total", "outcome=\"dropped\"");
        let twice = counted("agentgauge_duplicates_total", "what=\"spans\"");
        let dropped = late + twice;
        assert_eq!(
            held + refused + rejected + dropped,
            sent,
            "a 200 that nothing explains: {dropped} dropped of {self:?}"
        );
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
