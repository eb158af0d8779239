//! The series that a PromQL expression uses: its selectors and the labels that it groups by. Not a parser: promtool checks syntax.

use std::collections::{BTreeMap, BTreeSet};

/// One series: its name and labels.
pub(crate) type Series = (String, BTreeMap<String, String>);

/// One selector: the metric and its matchers as (label, operator, value).
#[derive(Debug)]
pub(crate) struct Selector {
    pub name: String,
    pub matchers: Vec<(String, String, String)>,
}

/// An expression taken apart.
#[derive(Debug, Default)]
pub(crate) struct Parsed {
    pub selectors: Vec<Selector>,
    /// Labels named by `by`, `without`, `on`, `ignoring`, `group_left`.
    pub grouping: BTreeSet<String>,
}

const GROUPING: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
const OPERATORS: [&str; 6] = ["and", "or", "unless", "offset", "bool", "atan2"];

/// Takes an expression apart.
pub(crate) fn parse(expr: &str) -> Parsed {
    let mut parsed = Parsed::default();
    let mut rest = expr;
    while let Some(at) = rest.find(|c: char| c.is_ascii_alphabetic() || "_\"[$".contains(c)) {
        rest = &rest[at..];
        match rest.as_bytes()[0] {
            b'"' => rest = &rest[1 + rest[1..].find('"').unwrap() + 1..],
            b'[' => rest = &rest[rest.find(']').unwrap() + 1..],
            b'$' => rest = rest[1..].trim_start_matches(word),
            _ => {
                let name = &rest[..rest.find(|c| !word(c)).unwrap_or(rest.len())];
                let follows = rest[name.len()..].trim_start();
                rest = follows;
                if GROUPING.contains(&name) {
                    if let Some(list) = follows.strip_prefix('(') {
                        let (list, after) = list.split_once(')').unwrap();
                        let labels = list.split(',').map(|label| label.trim().to_owned());
                        parsed.grouping.extend(labels.filter(|label| !label.is_empty()));
                        rest = after;
                    }
                } else if GROUPING.iter().any(|by| follows.starts_with(&format!("{by} "))) {
                    // `sum by (...)`: no metric.
                } else if !(follows.starts_with('(')
                    || OPERATORS.contains(&name)
                    || is_unit(expr, name))
                {
                    let (matchers, after) = matchers(follows);
                    parsed.selectors.push(Selector { name: name.to_owned(), matchers });
                    rest = after;
                }
            }
        }
    }
    parsed
}

/// `h` of `offset 1h`: letters right behind a digit.
fn is_unit(expr: &str, name: &str) -> bool {
    let at = name.as_ptr() as usize - expr.as_ptr() as usize;
    expr[..at].ends_with(|c: char| c.is_ascii_digit())
}

fn word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == ':'
}

fn matchers(text: &str) -> (Vec<(String, String, String)>, &str) {
    let Some(mut rest) = text.strip_prefix('{') else { return (Vec::new(), text) };
    let mut matchers = Vec::new();
    while !rest.trim_start().starts_with('}') {
        let (label, after) = rest.split_at(rest.find(['=', '!']).unwrap());
        let (operator, value) = after.split_once('"').unwrap();
        let (value, after) = value.split_once('"').unwrap();
        let label = label.trim().trim_start_matches(',').trim();
        matchers.push((label.to_owned(), operator.trim().to_owned(), value.to_owned()));
        rest = after.trim_start().trim_start_matches(',');
    }
    (matchers, rest.trim_start().strip_prefix('}').unwrap())
}

/// The series of a page in the text format.
pub(crate) fn series(page: &str) -> Vec<Series> {
    let lines = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines
        .map(|line| {
            let name = &line[..line.find(|c| !word(c)).unwrap()];
            let (matchers, _) = matchers(&line[name.len()..]);
            let labels = matchers.into_iter().map(|(label, _, value)| (label, value));
            (name.to_owned(), labels.collect())
        })
        .collect()
}

/// Whether a selector selects a series; a dashboard's variable may have any value.
pub(crate) fn is_selected(selector: &Selector, (name, labels): &Series) -> bool {
    *name == selector.name
        && selector.matchers.iter().all(|(label, operator, wanted)| {
            let value = labels.get(label).map_or("", String::as_str);
            let matches = wanted.contains('$')
                || wanted == ".*"
                || (wanted == ".+" && !value.is_empty())
                || wanted.split('|').any(|wanted| wanted == value);
            matches == operator.starts_with('=')
        })
}
