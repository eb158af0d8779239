//! What the fuzz targets found, or start from, replayed: no bytes may break what `fuzz/checks.rs` says.
#![expect(
    clippy::print_stdout,
    reason = "a test whose set-up fails has failed; the output names the input"
)]

#[path = "../../fuzz/checks.rs"]
mod checks;

use std::fs;
use std::path::Path;

fn replay(target: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "no corpus for {target}");
    for path in paths {
        println!("{}", path.display());
        check(&fs::read(path).unwrap());
    }
}

#[test]
fn the_walk_decodes_what_was_counted() {
    replay("walk", checks::walk);
}

#[test]
fn the_prescan_keeps_its_bounds() {
    replay("prescan", checks::prescan);
}

#[test]
fn json_is_read_or_refused() {
    replay("json", checks::json);
}

#[test]
fn what_was_compressed_is_what_it_was() {
    replay("inflate", checks::inflate);
}
