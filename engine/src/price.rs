//! The cost of model calls whose spans do not report it: tokens multiplied by prices.

use std::sync::LazyLock;

use super::hash::FixedMap;
use super::math::Quanta;
use super::math::glob::fits;
use super::options::{CostOptions, Price};
use super::span::{ModelFacts, Tokens};

/// Number of tokens that a price is for.
const TOKENS: f64 = 1e6;

/// Prices by model.
#[derive(Clone, Debug, Default)]
pub struct Prices {
    // By pattern of models' names; the first match is used.
    configured: Vec<(String, Rate)>,
    shipped: bool,
}

/// A price in quanta (1e-12 USD) per token.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Rate {
    input: i128,
    output: i128,
    cached: i128,
    cache_written: i128,
}

/// The prices that ship: lines of `model,input,output,cache_read,cache_write`, models in lower case, dollars per million tokens;
/// the last two may be empty. `deploy/prices.py` generates the table.
pub const SHIPPED_TABLE: &str = include_str!("prices.csv");

static SHIPPED: LazyLock<FixedMap<&'static str, Rate>> = LazyLock::new(|| {
    let lines = SHIPPED_TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(rate_of_line).collect()
});

fn rate_of_line(line: &'static str) -> Option<(&'static str, Rate)> {
    let mut fields = line.split(',');
    let model = fields.next()?;
    let mut price = || fields.next().map(|field| field.parse().ok());
    let (input, output) = (price()??, price()??);
    Some((model, Rate::new(input, output, price()?, price()?)))
}

impl Prices {
    /// The prices of the options.
    pub fn new(options: &CostOptions) -> Self {
        let rate = |price: &Price| {
            let Price { model, input, output, cached, cache_written } = price;
            (model.clone(), Rate::new(*input, *output, *cached, *cache_written))
        };
        Self { configured: options.prices.iter().map(rate).collect(), shipped: options.shipped }
    }

    /// The cost of a call: as its span says, else its tokens at the price of the responding model or, if that has none, of the
    /// requested one; `None` if there is no price or the tokens are not known.
    pub fn cost(&self, call: &ModelFacts) -> Option<Quanta> {
        let mut names = [&call.model, &call.requested].into_iter().flatten();
        let shipped = |name: &str| shipped(name).filter(|_| !call.local);
        call.cost
            .or_else(|| names.find_map(|name| self.of_model(name, shipped(name), &call.tokens)))
    }

    /// The cost of tokens at the price of a model; `None` if there is no price or the tokens are not known.
    pub fn of_tokens(&self, model: &str, tokens: &Tokens) -> Option<Quanta> {
        Self::at(
            self.configured(model).or_else(|| shipped(model).filter(|_| self.shipped))?,
            tokens,
        )
    }

    /// The cost of tokens at the price of a model whose shipped price has been looked up already; `None` if there is no price or
    /// the tokens are not known.
    pub fn of_model(
        &self,
        model: &str,
        shipped: Option<&'static Rate>,
        tokens: &Tokens,
    ) -> Option<Quanta> {
        Self::at(self.configured(model).or_else(|| shipped.filter(|_| self.shipped))?, tokens)
    }

    /// Whether the shipped table is in use, and neither it nor the options have a price for this model.
    pub fn lacks(&self, model: &str, shipped: Option<&'static Rate>) -> bool {
        self.shipped && shipped.is_none() && self.configured(model).is_none()
    }

    fn at(rate: &Rate, tokens: &Tokens) -> Option<Quanta> {
        let (input, output) = (tokens.input?, tokens.output?);
        let cached = tokens.cached.unwrap_or(0).min(input);
        let written = tokens.cache_written.unwrap_or(0).min(input - cached);
        let mut cost =
            i128::from(input - cached - written) * rate.input + i128::from(output) * rate.output;
        if cached | written > 0 {
            cost += i128::from(cached) * rate.cached + i128::from(written) * rate.cache_written;
        }
        i64::try_from(cost).ok().map(Quanta)
    }

    fn configured(&self, model: &str) -> Option<&Rate> {
        self.configured.iter().find(|(pattern, _)| fits(pattern, model)).map(|(_, rate)| rate)
    }
}

/// The shipped price of a model, under any of its names: as sent, without the provider before it (`models/`, `openai/`,
/// `us.anthropic.`), without the date or version after it, and with dashes for the dots of its version. A model with a tag (`:7b`,
/// `:free`), or behind the name of a self-hosted server (`ollama/`), has none. A model never gets the price of one that merely
/// shares a prefix with its name.
pub fn shipped(model: &str) -> Option<&'static Rate> {
    if let Some(rate) = SHIPPED.get(model) {
        return Some(rate);
    }
    let lower = model.to_ascii_lowercase();
    if lower.split('/').rev().skip(1).any(|part| LOCAL.contains(&part)) {
        return None;
    }
    let short = lower.rsplit('/').next().unwrap_or_default();
    let own = short.rsplit_once("anthropic.").map_or(short, |(_, own)| own);
    let (own, tag) = own.split_once(':').unwrap_or((own, ""));
    // A numeric tag is Bedrock's; any other tag (`:7b`, `:free`) is another model, or another service, than the vendor's.
    if !tag.split(':').next().is_some_and(|tag| tag.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let own = own.split('@').next().unwrap_or_default();
    let version = |(before, last): (&'_ str, &str)| {
        let digits = last.strip_prefix('v').unwrap_or(last);
        let is_version = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        (is_version && (last.starts_with('v') || digits.len() == 8)).then_some(before.len())
    };
    let versioned = own.rsplit_once('-').and_then(version).map_or(own, |end| &own[..end]);
    let dated =
        versioned.rsplit_once('-').and_then(version).map_or(versioned, |end| &versioned[..end]);
    let day = dash_date(dated).map_or(dated, |end| &dated[..end]);
    let latest = day.strip_suffix("-latest").unwrap_or(day);
    let names = [short, own, versioned, dated, day, latest];
    names.iter().find_map(|name| SHIPPED.get(*name)).or_else(|| {
        // Gateways write versions with a dot, vendors with a dash.
        let dashed = names.map(|name| name.replace('.', "-"));
        dashed.iter().find_map(|name| SHIPPED.get(name.as_str()))
    })
}

/// Prefixes of model names that mean a self-hosted server: no shipped price applies.
const LOCAL: [&str; 12] = [
    "hosted_vllm",
    "llama.cpp",
    "llamacpp",
    "llamafile",
    "lm-studio",
    "lm_studio",
    "lmstudio",
    "local",
    "localai",
    "ollama",
    "ollama_chat",
    "vllm",
];

/// Whether a provider of this name is a self-hosted server: `ollama`, `ollama.chat`, `vLLM`.
pub fn is_local(provider: &[u8]) -> bool {
    let of_list =
        |name: &[u8]| LOCAL.iter().any(|local| local.as_bytes().eq_ignore_ascii_case(name));
    let server = provider.iter().position(|byte| *byte == b'.').map(|end| &provider[..end]);
    of_list(provider) || server.is_some_and(of_list)
}

/// The place where the `-YYYY-MM-DD` at the end of a name begins.
fn dash_date(name: &str) -> Option<usize> {
    let begin = name.len().checked_sub("-YYYY-MM-DD".len())?;
    let date = name.as_bytes().get(begin..)?;
    let is_date = date.iter().zip(b"-0000-00-00").all(|(byte, like)| match like {
        b'-' => byte == like,
        _ => byte.is_ascii_digit(),
    });
    is_date.then_some(begin)
}

impl Rate {
    fn new(input: f64, output: f64, cached: Option<f64>, cache_written: Option<f64>) -> Self {
        // Invariant: prices are checked to be finite when they are read.
        let quanta =
            |dollars: f64| i128::from(Quanta::from_f64(dollars / TOKENS).unwrap_or_default().0);
        Self {
            input: quanta(input),
            output: quanta(output),
            cached: quanta(cached.unwrap_or(input)),
            cache_written: quanta(cache_written.unwrap_or(input)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_call_costs_its_tokens_unless_its_span_says() {
        let price = |model: &str, input, cached| Price {
            model: model.to_owned(),
            input,
            output: 10.0,
            cached,
            cache_written: None,
        };
        let prices = vec![price("gpt-4o*", 2.5, Some(1.25)), price("*", 1.0, None)];
        let options = CostOptions { prices, shipped: false };
        let prices = Prices::new(&options);
        let mut call = ModelFacts {
            model: Some(Arc::from("gpt-4o-mini")),
            tokens: Tokens {
                input: Some(1000),
                cached: Some(400),
                output: Some(100),
                ..Tokens::default()
            },
            ..ModelFacts::default()
        };
        // 600 * 2.5 + 400 * 1.25 + 100 * 10 dollars a million tokens.
        assert_eq!(prices.cost(&call), Quanta::from_f64(0.003));
        call.model = Some(Arc::from("other"));
        assert_eq!(prices.cost(&call), Quanta::from_f64(0.002));
        call.tokens.output = None;
        assert_eq!(prices.cost(&call), None);
        call.cost = Some(Quanta(7));
        assert_eq!(prices.cost(&call), Some(Quanta(7)));
        assert_eq!(Prices::default().cost(&ModelFacts::default()), None);
    }

    #[test]
    fn a_call_of_a_model_without_a_price_costs_what_the_model_that_was_asked_would() {
        let prices = Prices::new(&CostOptions::default());
        let tokens = Tokens { input: Some(1000), output: Some(100), ..Tokens::default() };
        let cost = |model: &str, requested: Option<&str>| {
            prices.cost(&ModelFacts {
                model: Some(Arc::from(model)),
                requested: requested.map(Arc::from),
                tokens,
                ..ModelFacts::default()
            })
        };
        assert_eq!(cost("gpt-of-ours", None), None);
        assert!(cost("gpt-of-ours", Some("gpt-4o")).is_some());
        assert_eq!(cost("gpt-of-ours", Some("gpt-4o")), cost("gpt-4o", Some("gpt-4o-mini")));
    }

    #[test]
    fn every_line_of_the_table_is_a_price() {
        let lines = include_str!("prices.csv").lines().filter(|line| !line.starts_with('#'));
        assert_eq!(lines.clone().count(), SHIPPED.len());
        assert!(SHIPPED.len() > 200);
        assert!(lines.into_iter().all(|line| line == line.to_ascii_lowercase()));
    }

    #[test]
    fn what_is_read_from_a_cache_and_put_into_one_has_its_own_price() {
        let prices = Prices::new(&CostOptions::default());
        let cost = |model: &str, cached, cache_written| {
            let tokens = Tokens { input: Some(10_000), cached, cache_written, output: Some(1_000) };
            prices.of_tokens(model, &tokens)
        };
        // By hand, in millionths of a dollar: 2,000 x 3 + 5,000 x 0.30 + 3,000 x 3.75 + 1,000 x 15.
        let claude = cost("claude-sonnet-4-5-20250929", Some(5_000), Some(3_000));
        assert_eq!(claude, Some(Quanta(33_750_000_000)));
        // 6,000 x 2.50 + 4,000 x 1.25 + 1,000 x 10.
        assert_eq!(cost("gpt-4o-2024-08-06", Some(4_000), None), Some(Quanta(30_000_000_000)));
        // 6,000 x 0.30 + 4,000 x 0.03 + 1,000 x 2.50.
        assert_eq!(cost("gemini-2.5-flash", Some(4_000), None), Some(Quanta(4_420_000_000)));
    }

    #[test]
    fn a_model_is_found_by_its_own_name_and_never_by_another_that_begins_alike() {
        let prices = Prices::new(&CostOptions::default());
        let tokens = Tokens { input: Some(1), output: Some(1), ..Tokens::default() };
        let cost = |model: &str| prices.of_tokens(model, &tokens);
        let same = [
            ["claude-sonnet-4-5", "us.anthropic.claude-sonnet-4-5-20250929-v1:0"],
            ["claude-sonnet-4-5", "anthropic/claude-sonnet-4-5@20250929"],
            ["gpt-4o-mini", "openai/gpt-4o-mini"],
            ["gpt-4o-mini", "GPT-4o-mini-2031-01-01"],
            ["gemini-2.5-pro", "models/gemini-2.5-pro"],
            ["claude-haiku-4-5", "claude-haiku-4-5-latest"],
            ["claude-sonnet-4-5", "anthropic/claude-sonnet-4.5"],
            ["claude-haiku-4-5", "openrouter/anthropic/claude-haiku-4.5"],
            ["gemini-2.5-pro", "google/gemini-2.5-pro"],
        ];
        for [name, other] in same {
            assert!(cost(name).is_some(), "{name}");
            assert_eq!(cost(name), cost(other), "{other}");
        }
        // A tag makes it another model, or another service; a self-hosted model has no price.
        let own = ["deepseek-r1:7b", "deepseek-r1:latest", "ollama/deepseek-r1", "vllm/org/gpt-4o"];
        for other in own.into_iter().chain(["deepseek/deepseek-r1:free", "claude-sonnet-4-5:x"]) {
            assert_eq!(cost(other), None, "{other}");
        }
        let call = |local| {
            let model = Some(Arc::from("deepseek-r1"));
            prices.cost(&ModelFacts { model, tokens, local, ..ModelFacts::default() })
        };
        assert!(call(false).is_some() && call(true).is_none());
        for unknown in ["gpt-4o-mini-of-ours", "gpt", "", "claude-sonnet-4-5-turbo", "-20250929"] {
            assert_eq!(cost(unknown), None, "{unknown}");
        }
        let none = Prices::new(&CostOptions { shipped: false, ..CostOptions::default() });
        assert_eq!(none.of_tokens("gpt-4o", &tokens), None);
    }
}
