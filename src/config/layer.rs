//! Reads file, environment and flags as leaves (key, value, origin), and merges them into the defaults.

use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use super::{Config, ConfigError, Origin, PREFIX};

/// Options that are tables, each of which is one value and replaces its default as a whole.
const FREE: &[&str] = &[
    "ars.optimum_loops_by_case",
    "ars.weights",
    "convention.attributes",
    "convention.score_names",
    "convention.score_ranges",
    "drop.objectives",
    "judge.agent_models",
    "judge.constraints",
    "judge.models",
    "judge.sample_rates",
    "kafka.tenants",
    "limits.agents",
    "loops.by_kind",
    "session.signal_thresholds",
    "session.signal_weights",
    "tasks.weights",
    "tenants.shares",
];

/// Options without a default, which the table of defaults lacks.
const UNSET: &[&str] = &[
    "ars.cost_ceiling_usd",
    "ars.fidelity_of_nothing",
    "ars.latency_ceiling_seconds",
    "ars.optimum_loops",
    "tls.cert_file",
    "tls.client_ca_file",
    "tls.key_file",
];

/// The least similarity to an unknown key, in `[0,1]`, that a known key needs to be suggested.
const MIN_SIMILARITY: f64 = 0.8;

/// The gain in similarity of a key if a part of the unknown key is its whole option.
const SAME_OPTION: f64 = 1.0;

/// The longest key that an error about TOML repeats.
const MAX_KEY_BYTES: usize = 128;

/// The prefix of variables that are meant for the daemon.
const NEAR_PREFIX: &str = "AGENTGAUGE_";

/// One value that was set somewhere.
#[derive(Clone, Debug)]
pub(super) struct Leaf {
    key: String,
    value: Value,
    origin: Origin,
}

/// The origins of the values that are not defaults, by dotted key.
pub(super) type Origins = BTreeMap<String, Origin>;

/// The leaves of a TOML file.
pub(super) fn file(path: &Path, text: &str) -> Result<Vec<Leaf>, ConfigError> {
    let at = |offset: usize| Origin::File { path: path.to_owned(), line: line_of(text, offset) };
    let syntax = |error: &toml::de::Error| {
        let offset = error.span().map_or(0, |span| span.start);
        let key = key_at(text, offset).map_or_else(String::new, |key| format!(" (`{key}`)"));
        ConfigError::Syntax { origin: at(offset), message: format!("{}{key}", error.message()) }
    };
    let spans = DeTable::parse(text).map_err(|error| syntax(&error))?;
    let values: Table = text.parse().map_err(|error| syntax(&error))?;
    let mut leaves = Vec::new();
    descend("", spans.get_ref(), &values, &mut |key, value, offset| {
        leaves.push(Leaf { key, value: value.clone(), origin: at(offset) });
    });
    Ok(leaves)
}

/// A variable that looks like an option but has the wrong underscores, and so sets nothing; and the name that does.
pub(super) fn misspelt(environment: &[(String, String)]) -> Option<(String, String)> {
    let letters = |name: &str| name.replace(['_', '.'], "").to_lowercase();
    let known: BTreeMap<String, String> =
        known_keys(&defaults()).into_iter().map(|key| (letters(&key), key)).collect();
    let names = environment.iter().map(|(name, _)| name);
    let near = names.filter(|name| !name.starts_with(PREFIX)).filter_map(|name| {
        let key = known.get(&letters(name.strip_prefix(NEAR_PREFIX)?))?;
        Some((name.clone(), format!("{PREFIX}{}", key.replace('.', "__").to_uppercase())))
    });
    near.min()
}

/// The leaves among environment variables. A value is read as TOML if the option is not a string; `__` stands for the dot.
pub(super) fn environment(variables: impl IntoIterator<Item = (String, String)>) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = variables
        .into_iter()
        .filter_map(|(name, text)| {
            let key = name.strip_prefix(PREFIX)?.to_lowercase().replace("__", ".");
            Some(Leaf { value: read(&key, &text), key, origin: Origin::Environment(name) })
        })
        .collect();
    // Environment variables have no order, and the first reported error should not depend on it.
    leaves.sort_by_cached_key(|leaf| (leaf.key.clone(), leaf.origin.to_string()));
    leaves
}

/// The leaf that a flag sets.
pub(super) fn flag(flag: &'static str, key: &str, text: &str) -> Leaf {
    Leaf { key: key.to_owned(), value: read(key, text), origin: Origin::Flag(flag) }
}

/// Merges the leaves into the defaults, the last one on top.
pub(super) fn lay(leaves: Vec<Leaf>) -> Result<(Config, Origins), ConfigError> {
    let defaults = defaults();
    let known = known_keys(&defaults);
    let mut table = defaults.clone();
    let mut origins = Origins::new();
    for Leaf { key, value, origin } in leaves {
        if !known.contains(&key) {
            let nearest = nearest(&key, &known);
            return Err(ConfigError::UnknownKey { key, origin, nearest });
        }
        // Only this leaf is merged into the defaults, so that an error is about it.
        let mut alone = defaults.clone();
        set(&mut alone, &key, value.clone());
        if let Err(error) = Config::deserialize_table(alone) {
            let message = in_plain_words(error.message().trim_end());
            return Err(ConfigError::Value { key, origin, message });
        }
        set(&mut table, &key, value);
        if let (Some(Origin::Environment(first)), Origin::Environment(second)) =
            (origins.get(&key), &origin)
            && first != second
        {
            let (first, second) = (first.clone(), second.clone());
            return Err(ConfigError::Twice { key, first, second });
        }
        origins.insert(key, origin);
    }
    let config = Config::deserialize_table(table).map_err(|error| ConfigError::Value {
        key: String::new(),
        origin: Origin::Default,
        message: error.message().to_owned(),
    })?;
    Ok((config, origins))
}

/// A message of serde about a value, in the words of TOML.
fn in_plain_words(message: &str) -> String {
    let words = [
        ("expected a string", "expected a text in quotes (a duration is one, like \"10s\")"),
        ("expected a sequence", "expected a list, like [\"a\", \"b\"]"),
        ("expected a map", "expected a table"),
        ("unit variant, expected string only", "expected a text in quotes"),
        ("expected f64", "expected a number"),
        ("expected i64", "expected a whole number"),
    ];
    let whole = ["usize", "u64", "u32", "u16", "u8"];
    let whole =
        whole.map(|kind| (format!("expected {kind}"), "expected a whole number, 0 or more"));
    let mut all = words
        .iter()
        .map(|(from, to)| (*from, *to))
        .chain(whole.iter().map(|(from, to)| (from.as_str(), *to)));
    let found = all.find(|(from, _)| message.ends_with(from));
    found.map_or_else(|| message.to_owned(), |(from, to)| message.replace(from, to))
}

impl Config {
    fn deserialize_table(table: Table) -> Result<Self, toml::de::Error> {
        table.try_into()
    }
}

/// The defaults as a table, which shows the known keys and the kinds of their values.
fn defaults() -> Table {
    // Invariant: every option is a string, number, list or table, so it serialises; a test
    // reads the result back.
    Table::try_from(Config::default()).unwrap_or_default()
}

/// All keys of options, dotted, in order.
fn known_keys(table: &Table) -> Vec<String> {
    let mut keys: Vec<String> = UNSET.iter().map(|key| (*key).to_owned()).collect();
    for (section, value) in table {
        if let Value::Table(options) = value {
            keys.extend(options.keys().map(|option| format!("{section}.{option}")));
        } else {
            keys.push(section.clone());
        }
    }
    keys.sort();
    keys
}

fn nearest(key: &str, known: &[String]) -> Option<String> {
    let similarity = |candidate: &String| {
        let option = candidate.rsplit('.').next();
        let is_same = key.split('.').any(|part| Some(part) == option);
        strsim::jaro_winkler(key, candidate) + if is_same { SAME_OPTION } else { 0.0 }
    };
    known
        .iter()
        .map(|candidate| (similarity(candidate), candidate))
        .filter(|(similarity, _)| *similarity >= MIN_SIMILARITY)
        .max_by(|a, b| a.0.total_cmp(&b.0).then_with(|| b.1.cmp(a.1)))
        .map(|(_, candidate)| candidate.clone())
}

/// Reads the text of a variable or flag as the kind of value that its option has.
fn read(key: &str, text: &str) -> Value {
    let string = || Value::String(text.to_owned());
    if matches!(get(&defaults(), key), Some(Value::String(_))) {
        return string();
    }
    // A text that is not TOML stays a string; if the option takes no string, the error names the key.
    format!("value = {text}")
        .parse::<Table>()
        .ok()
        .and_then(|mut table| table.remove("value").filter(|_| table.is_empty()))
        .unwrap_or_else(string)
}

fn get<'t>(table: &'t Table, key: &str) -> Option<&'t Value> {
    let (section, option) = key.split_once('.')?;
    table.get(section)?.get(option)
}

fn set(table: &mut Table, key: &str, value: Value) {
    let Some((section, option)) = key.split_once('.') else { return };
    if let Some(Value::Table(options)) = table.get_mut(section) {
        options.insert(option.to_owned(), value);
    }
}

fn descend(
    prefix: &str,
    spans: &DeTable<'_>,
    values: &Table,
    leaf: &mut impl FnMut(String, &Value, usize),
) {
    // Keys are in the order of the file, so that its first mistake is reported.
    let mut keys: Vec<_> = spans.iter().collect();
    keys.sort_by_key(|(key, _)| key.span().start);
    for (name, span) in keys {
        let key = match prefix {
            "" => name.get_ref().to_string(),
            _ => format!("{prefix}.{}", name.get_ref()),
        };
        let Some(value) = values.get(name.get_ref().as_ref()) else { continue };
        match (span.get_ref(), value) {
            (DeValue::Table(inner), Value::Table(table)) if !FREE.contains(&key.as_str()) => {
                if inner.is_empty() && !prefix.is_empty() {
                    leaf(key, value, name.span().start);
                } else {
                    descend(&key, inner, table, leaf);
                }
            }
            _ => leaf(key, value, name.span().start),
        }
    }
}

/// The dotted key that is set on the line of a byte of the file, even if the file is not TOML; `None` if that line sets none.
fn key_at(text: &str, offset: usize) -> Option<String> {
    let before = &text[..text.floor_char_boundary(offset)];
    let (above, _) = text.split_at(before.rfind('\n').map_or(0, |end| end + 1));
    let (name, _) = text[above.len()..].lines().next()?.split_once('=')?;
    let name = name.trim();
    let is_plain = |c: char| c.is_alphanumeric() || "_-.\"'".contains(c);
    if name.is_empty() || name.len() > MAX_KEY_BYTES || !name.chars().all(is_plain) {
        return None;
    }
    let header = |line: &str| {
        let header = line.trim_start().strip_prefix('[')?.trim_start_matches('[');
        header.split_once(']').map(|(section, _)| section.trim().to_owned())
    };
    let section = above.lines().rev().find_map(header);
    Some(section.map_or_else(|| name.to_owned(), |section| format!("{section}.{name}")))
}

fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_free_tables_are_options() {
        let known = known_keys(&defaults());
        for key in FREE {
            assert!(known.iter().any(|known| known == key), "{key}");
        }
    }

    #[test]
    fn every_option_is_in_a_section() {
        for key in known_keys(&defaults()) {
            assert_eq!(key.split('.').count(), 2, "{key}");
        }
    }

    #[test]
    fn an_empty_section_sets_nothing() {
        assert!(file(Path::new("x.toml"), "[assemble]\n").unwrap().is_empty());
    }

    #[test]
    fn an_error_about_toml_names_the_key_of_its_line() {
        for (text, key, line) in [
            ("[ingest]\nmax_request_bytes = 99999999999999999999\n", "ingest.max_request_bytes", 2),
            (
                "[assemble]\n\n[drop]\nfalse_pages_per_quarter = 1e400",
                "drop.false_pages_per_quarter",
                4,
            ),
            ("[log]\nlevel = info\n", "log.level", 2),
            ("[log]\nlevel = \"a\"\nlevel = \"b\"\n", "log.level", 3),
            ("log.level = info", "log.level", 1),
        ] {
            let error = file(Path::new("x.toml"), text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{key}`")), "{error}");
            assert!(error.contains("x.toml") && error.contains(&line.to_string()), "{error}");
        }
        let leaves = file(Path::new("x.toml"), "[log]\nlevel = [\"info\"]\n").unwrap();
        let error = lay(leaves).unwrap_err().to_string();
        assert!(error.contains("log.level") && error.contains("a text in quotes"), "{error}");
    }

    #[test]
    fn a_long_value_is_not_repeated_whole() {
        let long = "ä".repeat(10_000);
        for option in
            ["LISTEN__HTTP", "LOG__LEVEL", "INGEST__MAX_WAIT", "ENGINE__SHARDS", "JUDGE__A"]
        {
            let name = format!("AGENTGAUGE__{option}");
            let error = Config::load(None, [(name.clone(), long.clone())], &[]).unwrap_err();
            let error = error.to_string();
            assert!(error.contains(&name) && error.len() < 2_000, "{} bytes", error.len());
        }
        let name = format!("AGENTGAUGE__JUDGE__{}", "a".repeat(10_000));
        let error = Config::load(None, [(name, "1".to_owned())], &[]).unwrap_err().to_string();
        assert!(error.len() < 2_000, "{} bytes", error.len());
    }

    #[test]
    fn an_option_that_two_variables_set_is_refused() {
        let names = ["AGENTGAUGE__engine__shards", "AGENTGAUGE__ENGINE__SHARDS"];
        for order in [names, [names[1], names[0]]] {
            let leaves = environment(order.map(|name| (name.to_owned(), "3".to_owned())));
            let error = lay(leaves).unwrap_err().to_string();
            let expected = format!(
                "`engine.shards` is set by {} as well as by {}; only one of them may be set",
                names[1], names[0]
            );
            assert_eq!(error, expected);
        }
        let one = || (names[1].to_owned(), "3".to_owned());
        assert!(lay(environment([one(), one()])).is_ok());
    }

    #[test]
    fn a_variable_is_read_as_its_option_is_kept() {
        assert_eq!(read("log.level", "warn"), Value::String("warn".into()));
        assert_eq!(read("engine.shards", "3"), Value::Integer(3));
        assert_eq!(read("listen.http", "0"), Value::String("0".into()));
        assert!(read("session.signal_weights", "{ error = 2.0 }").is_table());
        assert_eq!(read("engine.shards", "3\nx = 1"), Value::String("3\nx = 1".into()));
    }
}
