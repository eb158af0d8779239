//! Attributes of your own, mapped in the configuration; they go before every convention.

use std::collections::BTreeMap;

use super::lines::Says;

/// The concepts that attributes can be mapped to.
pub fn concepts() -> impl Iterator<Item = &'static str> {
    Says::ALL.iter().map(|says| says.name())
}

/// The mapped attributes, best first for each concept; the configuration is checked against [`concepts`] when it is
/// read.
pub(super) fn rules(mapping: &BTreeMap<String, Vec<String>>) -> impl Iterator<Item = (Says, &str)> {
    mapping.iter().flat_map(|(concept, keys)| {
        let says = Says::ALL.iter().find(|says| says.name() == concept);
        says.into_iter().flat_map(|says| keys.iter().map(|key| (*says, key.as_str())))
    })
}
