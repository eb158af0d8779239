//! The runbook, where the links in alerts lead: one section for each alert.

/// The section of an alert, as Markdown, without the headings below it; `None` if there is none.
pub(super) fn section(alert: &str) -> Option<&'static str> {
    let mut sections = RUNBOOK.split("\n## ");
    let found = sections.find(|section| section.split('\n').next() == Some(alert))?;
    found.split_once("\n\n").map(|(_, text)| text.trim_end())
}

const RUNBOOK: &str = include_str!("../../docs/runbook.md");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_that_of_its_heading() {
        let text = section("AgentgaugeAbsent").unwrap();
        assert!(text.starts_with("**First: ") && text.ends_with("says where."));
        assert_eq!(section("Agentgauge"), None);
        assert_eq!(section(""), None);
    }
}
