//! Memory of held data, under the daemon's allocator: see `support/held.rs`.
//!
//! Prints a table; `-- measure CASE CONTENT SESSIONS` prints one figure, `--test` runs all at a small size.

#[path = "support/held.rs"]
mod held;
mod support;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::io::Result<()> {
    held::run("mimalloc")
}
