//! The cost of a model call whose span does not have it.

use super::loops::fits;
use crate::engine::math::Quanta;
use crate::engine::options::{CostOptions, Price};
use crate::engine::price::SHIPPED_TABLE;
use crate::engine::span::{ModelFacts, Tokens};

/// The cost in dollars: from its span, else its tokens at the price of its model.
pub(super) fn cost(call: &ModelFacts, options: &CostOptions) -> Option<f64> {
    if let Some(cost) = call.cost {
        return Some(cost.0 as f64 / 1e12);
    }
    let of_model = |model: &str| {
        let own = options.prices.iter().find(|price| fits(&price.model, model)).cloned();
        own.or_else(|| if options.shipped && !call.local { shipped(model) } else { None })
    };
    let asked = || of_model(call.requested.as_deref()?);
    let price = of_model(call.model.as_deref()?).or_else(asked)?;
    let Tokens { input, cached, cache_written, output } = call.tokens;
    let (input, output) = (input? as f64, output? as f64);
    let cached = (cached.unwrap_or(0) as f64).min(input);
    let written = (cache_written.unwrap_or(0) as f64).min(input - cached);
    let dollars = (input - cached - written) * price.input
        + cached * price.cached.unwrap_or(price.input)
        + written * price.cache_written.unwrap_or(price.input)
        + output * price.output;
    // The engine counts in whole quanta, and treats what exceeds them as unknown.
    Some(dollars / 1e6).filter(|dollars| Quanta::from_f64(*dollars).is_some())
}

/// The shipped price of a model, found by its name, also without the provider before it, and without the version, the date or
/// `latest` after it.
pub(super) fn shipped(model: &str) -> Option<Price> {
    let lower = model.to_ascii_lowercase();
    let short = lower.rsplit('/').next().unwrap_or_default();
    let own = short.rsplit("anthropic.").next().unwrap_or_default();
    let is_local = |part: &str| {
        let servers = ["hosted_vllm", "local", "localai", "ollama", "ollama_chat", "vllm"];
        let studios = ["lm-studio", "lm_studio", "lmstudio"];
        let llamas = ["llama.cpp", "llamacpp", "llamafile"];
        servers.contains(&part) || studios.contains(&part) || llamas.contains(&part)
    };
    let before: Vec<&str> = lower.split('/').collect();
    let tag = own.split(':').nth(1).unwrap_or_default();
    let is_other = before[..before.len() - 1].iter().any(|part| is_local(part))
        || tag.chars().any(|c| !c.is_ascii_digit());
    let own = own.split([':', '@']).next().unwrap_or_default();
    let without_version = |name: &str| match name.rsplit_once('-') {
        Some((before, last)) => {
            let digits = last.strip_prefix('v').unwrap_or(last);
            let number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit());
            let version = number && (last.starts_with('v') || digits.len() == 8);
            if version { before.to_owned() } else { name.to_owned() }
        }
        None => name.to_owned(),
    };
    let versioned = without_version(own);
    let dated = without_version(&versioned);
    let day = without_day(&dated);
    let latest = day.strip_suffix("-latest").unwrap_or(&day).to_owned();
    let of = |name: &str| {
        let mut lines = SHIPPED_TABLE.lines().filter(|line| !line.starts_with('#'));
        lines.find_map(|line| price_of_line(line).filter(|price| price.model == name))
    };
    if is_other {
        return of(model);
    }
    let names = [model, short, own, &versioned, &dated, &day, &latest];
    names.into_iter().find_map(of).or_else(|| {
        let dashed = names[1..].iter().map(|name| name.replace('.', "-"));
        dashed.into_iter().find_map(|name| of(&name))
    })
}

fn price_of_line(line: &str) -> Option<Price> {
    let fields: Vec<&str> = line.split(',').collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(Price {
        model: (*fields.first()?).to_owned(),
        input: number(1)?,
        output: number(2)?,
        cached: number(3),
        cache_written: number(4),
    })
}

/// The name without a trailing `-YYYY-MM-DD`.
fn without_day(name: &str) -> String {
    let parts: Vec<&str> = name.rsplitn(4, '-').collect();
    let is_number = |text: &str, digits: usize| {
        text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())
    };
    match parts[..] {
        [day, month, year, before]
            if is_number(day, 2) && is_number(month, 2) && is_number(year, 4) =>
        {
            before.to_owned()
        }
        _ => name.to_owned(),
    }
}
