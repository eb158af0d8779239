//! The runbook, where the links in alerts lead: one section for each alert.

/// A section, such as that of an alert: its heading, and its text as Markdown; `None` if there is none. Its name is the
/// heading, or, as in links of the runbook, the heading's anchor.
pub(super) fn section(name: &str) -> Option<(&'static str, &'static str)> {
    let sections = RUNBOOK.split("\n## ").filter_map(|section| section.split_once("\n\n"));
    let mut named = sections.filter(|(heading, _)| *heading == name || anchor(heading) == name);
    named.next().map(|(heading, text)| (heading, text.trim_end()))
}

/// The anchor of a heading in Markdown.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

const RUNBOOK: &str = include_str!("../../docs/runbook.md");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_that_of_its_heading() {
        let (heading, text) = section("AgentgaugeAbsent").unwrap();
        assert_eq!(heading, "AgentgaugeAbsent");
        assert!(text.starts_with("**First: ") && text.ends_with("says where."));
        assert_eq!(section("Agentgauge"), None);
        assert_eq!(section(""), None);
    }

    #[test]
    fn every_link_to_a_section_leads_to_one() {
        let links = RUNBOOK.split("](#").skip(1).map(|rest| rest.split(')').next().unwrap());
        let links: Vec<&str> = links.collect();
        assert!(links.contains(&"the-webhook-for-runaway-sessions"), "{links:?}");
        for link in links {
            assert!(section(link).is_some(), "{link}");
        }
    }
}
