//! Any bytes, by what `checks::asked::report` says.
#![no_main]

#[path = "../checks.rs"]
#[expect(dead_code, reason = "each target uses one check")]
mod checks;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| checks::asked::report(bytes));
