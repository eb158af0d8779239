//! Memory of held data, under the system's allocator: see `support/held.rs`.
//!
//! Prints a table; `-- measure CASE CONTENT SESSIONS` prints one figure, `--test` runs all at a small size.

#[path = "support/held.rs"]
mod held;
mod support;

fn main() -> std::io::Result<()> {
    held::run("the system's allocator")
}
