//! No bytes may break what `fuzz/checks.rs` says: what the fuzz targets found or start from, what this code writes, and both changed at
//! random, by fixed seeds. `AGENTGAUGE_FUZZ_CASES` changes of each target for more than 300.

#[path = "../../../fuzz/checks.rs"]
mod checks;
mod seeds;

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use checks::{asked, stored};

/// The most bytes of an input.
const MAX_BYTES: usize = 1 << 16;

/// Random numbers: SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.roll() % most.max(1) as u64).unwrap()
    }

    fn of<'t, T>(&mut self, things: &'t [T]) -> &'t T {
        &things[self.below(things.len())]
    }
}

/// What parsers stumble over.
const TOKENS: [&[u8]; 18] = [
    b"\0",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"%00",
    b"%ff",
    b"\\ud800",
    b"[[",
    b"}}",
    b"null",
    b"-1",
    b"1e999",
    b"NaN",
    b"18446744073709551616",
    b"\"",
    b"\xdf\x7f\xff\xff\xff",
    b"&limit=",
];

/// One of these with a few changes.
fn changed(all: &[Vec<u8>], dice: &mut Dice) -> Vec<u8> {
    let mut bytes = dice.of(all).clone();
    for _ in 0..=dice.below(4) {
        let (from, to) = (dice.below(bytes.len()), dice.below(bytes.len()));
        let part = from.min(to)..from.max(to);
        match dice.below(8) {
            0 => bytes.iter_mut().skip(from).take(1).for_each(|byte| *byte ^= 1 << (to % 8)),
            1 => bytes
                .iter_mut()
                .skip(from)
                .take(1)
                .for_each(|byte| *byte = dice.roll().to_le_bytes()[0]),
            2 => drop(bytes.drain(part)),
            3 => bytes.truncate(from),
            4 => bytes.extend_from_within(part),
            5 => drop(bytes.splice(from..from, dice.of(&TOKENS).iter().copied())),
            6 => bytes[part].fill(0),
            _ => {
                let other = dice.of(all);
                let at = dice.below(other.len());
                drop(bytes.splice(from.., other[at..].iter().copied()));
            }
        }
        bytes.truncate(MAX_BYTES);
    }
    bytes
}

/// Tries all that is known of a target, and changes of it. `seeds` go to where `fuzz/run` begins with them, too.
fn holds(target: &str, seeds: Vec<Vec<u8>>, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut all: Vec<_> = paths(&folder).into_iter().map(|path| fs::read(path).unwrap()).collect();
    let written = Path::new(env!("CARGO_TARGET_TMPDIR")).join("fuzz").join(target);
    fs::create_dir_all(&written).unwrap();
    for (number, seed) in seeds.iter().enumerate() {
        fs::write(written.join(format!("seed-{number}")), seed).unwrap();
    }
    all.extend(seeds);
    assert!(!all.is_empty(), "nothing to begin with for {target}");
    let broken = |name: String, bytes: &[u8]| {
        if catch_unwind(|| check(bytes)).is_err() {
            let path = written.with_file_name(format!("{target}-{name}"));
            fs::write(&path, bytes).unwrap();
            panic!("{} breaks the check", path.display());
        }
    };
    all.iter().enumerate().for_each(|(number, bytes)| broken(format!("known-{number}"), bytes));
    let asked = std::env::vars_os().find(|(key, _)| key == "AGENTGAUGE_FUZZ_CASES");
    let cases = asked.map_or(300, |(_, value)| value.to_str().unwrap().parse().unwrap());
    for case in 0..cases {
        broken(format!("case-{case}"), &changed(&all, &mut Dice(case)));
    }
}

fn paths(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

#[test]
fn the_walk_decodes_what_was_counted() {
    holds("walk", Vec::new(), checks::walk);
}

#[test]
fn the_prescan_keeps_its_bounds() {
    holds("prescan", Vec::new(), checks::prescan);
}

#[test]
fn json_is_read_or_refused() {
    holds("json", Vec::new(), checks::json);
}

#[test]
fn what_was_compressed_is_what_it_was() {
    holds("inflate", Vec::new(), checks::inflate);
}

#[test]
fn a_damaged_store_is_read_or_refused() {
    holds("log", seeds::store(), stored::log);
}

#[test]
fn damaged_state_is_read_or_refused() {
    holds("saved", seeds::states(), stored::saved);
}

#[test]
fn records_between_stages_are_read_or_refused() {
    holds("record", seeds::records(), stored::record);
}

#[test]
fn what_a_judge_says_is_read_or_refused() {
    holds("judged", seeds::replies(), asked::judged);
}

#[test]
fn a_configuration_is_read_or_refused() {
    holds("config", seeds::configs(), asked::config);
}

#[test]
fn whatever_is_asked_for_is_answered_or_refused() {
    holds("query", seeds::queries(), asked::query);
}

#[test]
fn bodies_of_reports_are_read_or_refused() {
    holds("report", seeds::reports(), asked::report);
}
