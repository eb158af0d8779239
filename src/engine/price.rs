//! What a model call costs where its span does not say: tokens by a table of prices.

use super::math::Quanta;
use super::math::glob::fits;
use super::options::{CostOptions, Price};
use super::span::{ModelFacts, Tokens};

/// Prices are per so many tokens.
const TOKENS: f64 = 1e6;

/// Prices by model, the first that fits holds.
#[derive(Clone, Debug, Default)]
pub struct Prices(Vec<Rate>);

/// A price in quanta (1e-12 USD) per token.
#[derive(Clone, Debug)]
struct Rate {
    model: String,
    input: i128,
    output: i128,
    cached: i128,
}

impl Prices {
    /// Reads the table.
    pub fn new(options: &CostOptions) -> Self {
        Self(options.prices.iter().map(Rate::new).collect())
    }

    /// What a call cost: what its span says, else its tokens at the first price that fits its model; `None` if no
    /// price does or the tokens are not known.
    pub fn cost(&self, call: &ModelFacts) -> Option<Quanta> {
        call.cost.or_else(|| self.of_tokens(call.model.as_deref()?, &call.tokens))
    }

    /// What tokens cost at the first price that fits the model; `None` if no price does or they are not known.
    pub fn of_tokens(&self, model: &str, tokens: &Tokens) -> Option<Quanta> {
        let rate = self.0.iter().find(|rate| fits(&rate.model, model))?;
        let (input, output) = (tokens.input?, tokens.output?);
        let cached = tokens.cached.unwrap_or(0).min(input);
        let cost = i128::from(input - cached) * rate.input
            + i128::from(cached) * rate.cached
            + i128::from(output) * rate.output;
        i64::try_from(cost).ok().map(Quanta)
    }
}

impl Rate {
    fn new(price: &Price) -> Self {
        // Invariant: prices are checked to be finite when they are read.
        let quanta =
            |dollars: f64| i128::from(Quanta::from_f64(dollars / TOKENS).unwrap_or_default().0);
        Self {
            model: price.model.clone(),
            input: quanta(price.input),
            output: quanta(price.output),
            cached: quanta(price.cached.unwrap_or(price.input)),
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
        };
        let options =
            CostOptions { prices: vec![price("gpt-4o*", 2.5, Some(1.25)), price("*", 1.0, None)] };
        let prices = Prices::new(&options);
        let mut call = ModelFacts {
            model: Some(Arc::from("gpt-4o-mini")),
            tokens: Tokens { input: Some(1000), cached: Some(400), output: Some(100) },
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
}
