//! The runbook, which the links in alerts lead to: one section for each alert, which begins with the first step.

/// A section, such as that of an alert: its heading, and its text as Markdown; `None` if there is none. Its name is the
/// heading, or, as in links of the runbook, the heading's anchor.
pub(crate) fn section(name: &str) -> Option<(&'static str, &'static str)> {
    let sections = RUNBOOK.split("\n## ").filter_map(|section| section.split_once("\n\n"));
    let mut named = sections.filter(|(heading, _)| *heading == name || anchor(heading) == name);
    named.next().map(|(heading, text)| (heading, text.trim_end()))
}

/// The first step for an alert: the first sentence of its section, as plain text.
pub(crate) fn first_step(alert: &str) -> Option<String> {
    let (_, text) = section(alert)?;
    let (first, _) = text.strip_prefix("**First: ")?.split_once("**")?;
    let mut plain = without_links(&first.replace('\n', " "));
    plain.get_mut(..1)?.make_ascii_uppercase();
    Some(plain)
}

/// A Markdown text with the names of links in place of the links.
fn without_links(text: &str) -> String {
    let mut parts = text.split('[');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let link =
            part.split_once("](").and_then(|(name, rest)| Some((name, rest.split_once(')')?)));
        match link {
            Some((name, (_, after))) => plain.extend([name, after]),
            None => plain.extend(["[", part]),
        }
    }
    plain
}

/// The anchor of a heading in Markdown.
fn anchor(heading: &str) -> String {
    heading.to_lowercase().replace(' ', "-")
}

const RUNBOOK: &str = include_str!("../docs/runbook.md");

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
    fn each_section_of_an_alert_begins_with_what_to_do_first() {
        for section in RUNBOOK.split("\n## Agent").skip(1) {
            let alert = format!("Agent{}", section.lines().next().unwrap());
            let step = first_step(&alert).unwrap_or_else(|| panic!("{alert}"));
            assert!(
                step.ends_with(['.', '?']) && !step.contains("](") && !step.contains(['\n', '{']),
                "{step}"
            );
        }
        let spend = first_step("AgentgaugeInstanceDown").unwrap();
        assert!(spend.starts_with("Is the host or the pod gone, or only unreachable? Then the"));
        assert_eq!(first_step("The webhook for runaway sessions"), None);
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
