//! The store against a disk that forgets: acknowledged records are recovered, in their order.

mod commit;
pub(crate) mod simulated;

use std::sync::Arc;

use bytes::Bytes;

use self::simulated::{Dice, Simulated};
use super::record::FILE_HEAD;
use super::*;
use crate::engine::span::Timestamp;

/// The content of the store according to the model: the payloads by sequence number, from 1.
type Payloads = Vec<Vec<u8>>;

fn options() -> StoreOptions {
    StoreOptions {
        durability: Durability::Fsync,
        segment_bytes: 400,
        max_bytes: 1 << 20,
        ..StoreOptions::default()
    }
}

fn open(disk: &Simulated, options: &StoreOptions) -> Result<(Opened, Payloads), StoreError> {
    let opened = Opened::open(Arc::new(disk.clone()), options)?;
    let mut payloads = Payloads::new();
    let mut expected = 1;
    if let Some(snapshot) = &opened.recovery.snapshot {
        let state = &snapshot.sections["state"];
        payloads = state.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        payloads.pop();
        assert_eq!(payloads.len() as u64, snapshot.seq);
        expected = snapshot.seq + 1;
    }
    for found in opened.recovery.replay(disk) {
        let (seq, record) = found?;
        if opened.recovery.found.lost_records == 0 {
            assert_eq!(seq, expected, "records come in order and without gaps");
        }
        expected = seq + 1;
        payloads.push(record.payload.to_vec());
    }
    Ok((opened, payloads))
}

fn record(payload: &[u8]) -> Record {
    let payload = Bytes::copy_from_slice(payload);
    Record { arrival: Timestamp(5), kind: Kind::Request, payload }
}

fn group(dice: &mut Dice) -> Payloads {
    (0..=dice.roll(4))
        .map(|_| (0..dice.roll(90)).map(|_| b'a' + u8::try_from(dice.roll(20)).unwrap()).collect())
        .collect()
}

fn append(log: &mut Log, payloads: &Payloads) -> Result<u64, Refused> {
    log.commit(&payloads.iter().map(|payload| record(payload)).collect::<Vec<_>>())
}

/// Writes a snapshot of everything that is held, and releases the log that it makes superfluous.
fn snap(disk: &Simulated, budget: &Arc<Budget>, log: &mut Log, held: &Payloads) -> bool {
    let seq = held.len() as u64;
    let mut state = held.join(&b'\n');
    if !held.is_empty() {
        state.push(b'\n');
    }
    let written = SnapshotWriter::begin(Arc::new(disk.clone()), Arc::clone(budget), seq).and_then(
        |mut writer| {
            writer.section(&Section { name: "state".to_owned(), bytes: state })?;
            writer.finish(2)
        },
    );
    written.is_ok_and(|seq| log.release(seq).is_ok())
}

/// One life of the store: appends and snapshots until the disk fails or it has done enough. Returns the group that was under way at
/// the end.
fn live(disk: &Simulated, dice: &mut Dice, opened: Opened, held: &mut Payloads) -> Payloads {
    let budget = Arc::clone(opened.budget());
    let mut log = opened.into_log();
    for _ in 0..dice.roll(30) {
        if dice.roll(8) == 0 {
            let safe = snap(disk, &budget, &mut log, held);
            if !safe && disk.list().is_err() {
                return Payloads::new();
            }
            continue;
        }
        let group = group(dice);
        let next = log.next();
        match append(&mut log, &group) {
            Ok(first) => {
                assert_eq!((first, first), (next, held.len() as u64 + 1));
                held.extend(group);
            }
            Err(Refused::Disk) if disk.list().is_ok() => disk.limit(None),
            Err(_) => return group,
        }
    }
    Payloads::new()
}

/// Starts again until it succeeds; the machine may crash while it does.
fn restart(disk: &Simulated, dice: &mut Dice, options: &StoreOptions) -> (Opened, Payloads) {
    loop {
        disk.power_loss(dice);
        let files = disk.list().unwrap();
        let used = files.iter().map(|(_, bytes)| bytes).sum::<u64>();
        // A new store takes some room.
        let is_full = dice.roll(5) == 0 && files.iter().any(|(name, _)| name == "end.marks");
        disk.limit(is_full.then(|| usize::try_from(used).unwrap()));
        let crashes = dice.roll(3) == 0;
        disk.crash_after(crashes.then(|| 1 + dice.roll(12)));
        match open(disk, options) {
            Ok(found) => {
                disk.crash_after(None);
                if disk.list().is_ok() {
                    return found;
                }
            }
            Err(error) => assert!(crashes, "it does not start: {error}"),
        }
    }
}

fn check(seed: u64) {
    let mut dice = Dice::new(seed);
    let disk = Simulated::default();
    let mut held = Payloads::new();
    let mut under_way = Payloads::new();
    for _ in 0..4 {
        let (opened, found) = restart(&disk, &mut dice, &options());
        assert_eq!(opened.recovery.found.lost_records, 0, "seed {seed}");
        let acknowledged = held.len();
        assert!(found.len() >= acknowledged, "seed {seed}: acknowledged records are missing");
        assert_eq!(found[..acknowledged], held, "seed {seed}");
        let more = &found[acknowledged..];
        assert!(under_way.starts_with(more), "seed {seed}: it has what nobody sent");
        held = found;
        let crash = dice.roll(120);
        disk.crash_after((dice.roll(5) > 0).then_some(1 + crash));
        disk.limit((dice.roll(4) == 0).then(|| 300 + dice.size(3000)));
        under_way = live(&disk, &mut dice, opened, &mut held);
    }
}

/// The environment can raise it, for machines that have more time.
fn number(name: &str, default: u64) -> u64 {
    std::env::vars()
        .find(|(key, _)| key == name)
        .map_or(default, |(_, value)| value.parse().unwrap())
}

#[test]
fn a_loss_of_power_at_any_moment_loses_nothing_acknowledged() {
    let first = number("AGENTGAUGE_STORE_SEED", 0);
    for seed in first..first + number("AGENTGAUGE_STORE_SEEDS", 500) {
        check(seed);
    }
}

/// Appends, rolls, a snapshot, more; until the machine crashes.
fn script(disk: &Simulated, held: &mut Payloads) -> Option<Payloads> {
    let mut dice = Dice::new(1);
    let Ok((opened, found)) = open(disk, &options()) else { return Some(Payloads::new()) };
    assert_eq!(found, *held);
    let budget = Arc::clone(opened.budget());
    let mut log = opened.into_log();
    for round in 0..24 {
        let group = group(&mut dice);
        match append(&mut log, &group) {
            Ok(_) => held.extend(group),
            Err(_) => return Some(group),
        }
        if round % 7 == 6 && !snap(disk, &budget, &mut log, held) {
            return Some(Payloads::new());
        }
    }
    None
}

#[test]
fn a_crash_at_every_single_call_loses_nothing_acknowledged() {
    let clean = Simulated::default();
    assert!(script(&clean, &mut Payloads::new()).is_none());
    for call in 1..=clean.calls() {
        for seed in 0..number("AGENTGAUGE_STORE_CRASHES", 5) {
            let disk = Simulated::default();
            disk.crash_after(Some(call));
            let mut held = Payloads::new();
            let under_way = script(&disk, &mut held).unwrap_or_default();
            let mut dice = Dice::new(seed);
            let (_, found) = restart(&disk, &mut dice, &options());
            assert_eq!(found[..held.len()], held, "call {call}, seed {seed}");
            assert!(under_way.starts_with(&found[held.len()..]), "call {call}, seed {seed}");
        }
    }
}

/// A log of a few segments without snapshots, cleanly on disk.
fn written(groups: usize) -> (Simulated, Payloads) {
    let (disk, mut held, mut dice) = (Simulated::default(), Payloads::new(), Dice::new(3));
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut log = opened.into_log();
    for _ in 0..groups {
        let group = group(&mut dice);
        append(&mut log, &group).unwrap();
        held.extend(group);
    }
    (disk, held)
}

/// The files of the log.
fn logs(disk: &Simulated) -> Vec<(String, u64)> {
    let files = disk.list().unwrap().into_iter();
    files.filter(|(name, _)| name.starts_with("log-")).collect()
}

/// Returns whether `some` are of `all`, in order.
fn is_part(some: &Payloads, all: &Payloads) -> bool {
    let mut all = all.iter();
    some.iter().all(|one| all.any(|other| other == one))
}

#[test]
fn a_flipped_bit_or_a_lost_end_costs_only_the_records_it_hits() {
    let groups = usize::try_from(number("AGENTGAUGE_STORE_GROUPS", 12)).unwrap();
    let (disk, held) = written(groups);
    let skip = StoreOptions { damaged_records: DamagedRecords::Skip, ..options() };
    let files = logs(&disk);
    let last = &files.last().unwrap().0;
    for (file, bytes) in &files {
        for at in 0..usize::try_from(*bytes).unwrap() {
            let damaged = disk.copy();
            damaged.damage(file, |bytes| bytes[at] ^= 1 << (at % 8));
            let (opened, found) = open(&damaged.copy(), &skip).unwrap();
            let missing = held.len() - found.len();
            assert!(is_part(&found, &held) && missing <= 1 || file == last, "{file} at {at}");
            let counted = opened.recovery.found;
            assert!(missing == 0 || counted.lost_records + counted.cut_bytes > 0, "{file} {at}");
            match open(&damaged, &options()) {
                Ok((_, found)) => assert!(held.starts_with(&found), "{file} at {at}"),
                Err(error) => {
                    let text = error.to_string();
                    assert!(
                        text.contains(file) && text.contains("store.damaged_records"),
                        "{text}"
                    );
                    assert!(missing == 1, "{file} at {at}: {text}");
                }
            }
            if file == last {
                let cut = disk.copy();
                cut.damage(file, |bytes| bytes.truncate(at));
                let whole = open(&cut.copy(), &options()).is_ok_and(|(_, found)| found == held);
                let (opened, found) = open(&cut, &skip).unwrap();
                let missing = (held.len() - found.len()) as u64;
                assert!(held.starts_with(&found), "{file} cut at {at}");
                assert_eq!((whole, opened.recovery.found.lost_records), (missing == 0, missing));
            }
        }
    }
}

#[test]
fn a_segment_that_is_gone_is_missed_and_named() {
    let (disk, held) = written(12);
    let files = logs(&disk);
    let gone = disk.copy();
    gone.remove(&files[1].0).unwrap();
    let error = open(&gone, &options()).err().unwrap().to_string();
    assert!(error.contains(&files[2].0) && error.contains("records"), "{error}");
    let skip = StoreOptions { damaged_records: DamagedRecords::Skip, ..options() };
    let (opened, found) = open(&gone, &skip).unwrap();
    let lost = usize::try_from(opened.recovery.found.lost_records).unwrap();
    assert_eq!(found.len() + lost, held.len());
}

#[test]
fn an_end_that_is_gone_is_missed_and_counted_once() {
    let ends_with_records =
        |(disk, _): &(Simulated, Payloads)| logs(disk).pop().unwrap().1 > 2 * FILE_HEAD as u64;
    let (disk, held) = (8..20).map(written).find(ends_with_records).unwrap();
    let (file, bytes) = logs(&disk).pop().unwrap();
    let half = usize::try_from(bytes / 2).unwrap();
    let skip = StoreOptions { damaged_records: DamagedRecords::Skip, ..options() };
    for removed in [false, true] {
        let harmed = disk.copy();
        if removed {
            harmed.remove(&file).unwrap();
        } else {
            harmed.damage(&file, |bytes| bytes[half..].fill(0));
        }
        let error = open(&harmed.copy(), &options()).err().unwrap().to_string();
        assert!(error.contains("acknowledged and cannot be read"), "{error}");
        let (opened, found) = open(&harmed, &skip).unwrap();
        let missing = (held.len() - found.len()) as u64;
        assert!(held.starts_with(&found) && missing > 0);
        assert_eq!(opened.recovery.found.lost_records, missing);
        drop(opened);
        // It is known what is left, and that is complete.
        let (opened, again) = open(&harmed, &options()).unwrap();
        assert_eq!((opened.recovery.found.lost_records, again), (0, found));
    }
}

#[test]
fn a_directory_that_is_renamed_or_replaced_takes_nothing_until_it_is_back() {
    let parent = tempfile::tempdir().unwrap();
    let [store, away, other] = ["store", "away", "other"].map(|name| parent.path().join(name));
    let folder = || Arc::new(Folder::new(&store).unwrap());
    let opened = Opened::open(folder(), &options()).unwrap();
    let (disk, budget) = (Arc::clone(opened.disk()), Arc::clone(opened.budget()));
    let mut log = opened.into_log();
    let mut held = vec![b"first".to_vec()];
    append(&mut log, &held).unwrap();
    std::fs::rename(&store, &away).unwrap();
    let refuses = |log: &mut Log| {
        assert_eq!(append(log, &vec![b"refused".to_vec()]), Err(Refused::Directory));
        assert_eq!(log.probe(1), Err(Refused::Directory));
        assert!(SnapshotWriter::begin(Arc::clone(&disk), Arc::clone(&budget), 1).is_err());
    };
    refuses(&mut log);
    std::fs::create_dir(&store).unwrap();
    refuses(&mut log);
    assert_eq!(std::fs::read_dir(&store).unwrap().count(), 0, "it belongs to somebody else");
    std::fs::rename(&store, &other).unwrap();
    std::fs::rename(&away, &store).unwrap();
    append(&mut log, &vec![b"second".to_vec()]).unwrap();
    held.push(b"second".to_vec());
    drop(log);
    let opened = Opened::open(folder(), &options()).unwrap();
    let found = opened.recovery.replay(opened.disk().as_ref());
    let found: Payloads = found.map(|it| it.unwrap().1.payload.to_vec()).collect();
    assert_eq!(found, held);
}

#[test]
fn marks_that_are_gone_are_missed_and_made_anew() {
    let (disk, held) = written(12);
    let skip = StoreOptions { damaged_records: DamagedRecords::Skip, ..options() };
    let lose: [fn(&Simulated); 3] = [
        |disk| disk.remove("end.marks").unwrap(),
        |disk| disk.damage("end.marks", Vec::clear),
        |disk| disk.damage("end.marks", |bytes| bytes.fill(0)),
    ];
    for lose in lose {
        lose(&disk);
        let error = open(&disk, &options()).err().unwrap().to_string();
        assert!(error.contains("end.marks") && error.contains("store.damaged_records"), "{error}");
        let (opened, found) = open(&disk, &skip).unwrap();
        let Found { lost_records, lost_marks, .. } = opened.recovery.found;
        assert_eq!((found, lost_records, lost_marks), (held.clone(), 0, 1));
        drop(opened);
        let (opened, found) = open(&disk, &options()).unwrap();
        assert_eq!((found, opened.recovery.found), (held.clone(), Found::default()));
    }
}

#[test]
fn the_marks_of_a_long_log_are_few_and_the_last_is_there() {
    let (disk, mut held) = (Simulated::default(), Payloads::new());
    let mut log = open(&disk, &options()).unwrap().0.into_log();
    for _ in 0..1_000 {
        append(&mut log, &vec![b"x".to_vec()]).unwrap();
        held.push(b"x".to_vec());
        let marks = disk.list().unwrap().into_iter().find(|(name, _)| name == "end.marks");
        assert!(marks.is_some_and(|(_, bytes)| (12..=4_200).contains(&bytes)));
    }
    disk.remove(&logs(&disk).pop().unwrap().0).unwrap();
    assert!(open(&disk, &options()).is_err());
}

#[test]
fn a_snapshot_that_is_not_whole_is_left_for_the_one_before_it() {
    let disk = Simulated::default();
    let mut held = Payloads::new();
    assert!(script(&disk, &mut held).is_none());
    let snapshots: Vec<String> = disk
        .list()
        .unwrap()
        .into_iter()
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("snapshot"))
        .collect();
    assert_eq!(snapshots.len(), 2);
    disk.damage(&snapshots[1], |bytes| *bytes.last_mut().unwrap() ^= 1);
    let (opened, found) = open(&disk, &options()).unwrap();
    assert_eq!((opened.recovery.found.bad_snapshots, found), (1, held.clone()));
    disk.damage(&snapshots[0], |bytes| bytes.truncate(25));
    let error = open(&disk, &options()).err().unwrap().to_string();
    assert!(error.contains("acknowledged and cannot be read"), "{error}");
}

/// The numbers of the existing snapshots.
fn snapshots(disk: &Simulated) -> Vec<u64> {
    let names = disk.list().unwrap().into_iter().map(|(name, _)| name);
    names.filter_map(|name| name.strip_prefix("snapshot-")?.parse().ok()).collect()
}

#[test]
fn a_snapshot_that_is_not_whole_is_none_of_those_that_are_kept() {
    let disk = Simulated::default();
    let mut held = Payloads::new();
    assert!(script(&disk, &mut held).is_none());
    let [whole, bad] = snapshots(&disk)[..] else { panic!("two are kept") };
    disk.damage(&snapshot::name(bad), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let (opened, found) = open(&disk, &options()).unwrap();
    assert_eq!((opened.recovery.found.bad_snapshots, &found), (1, &held));
    assert_eq!(snapshots(&disk), [whole], "the bad one is gone");
    let budget = Arc::clone(opened.budget());
    let mut log = opened.into_log();
    append(&mut log, &vec![b"more".to_vec()]).unwrap();
    held.push(b"more".to_vec());
    assert!(snap(&disk, &budget, &mut log, &held));
    drop(log);
    // The new one is damaged as well: there is still a second source.
    let newest = held.len() as u64;
    assert_eq!(snapshots(&disk), [whole, newest]);
    disk.damage(&snapshot::name(newest), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let (opened, found) = open(&disk, &options()).unwrap();
    assert_eq!((opened.recovery.found.bad_snapshots, found), (1, held));
}

#[test]
fn a_snapshot_is_not_removed_in_favour_of_a_bad_one_with_a_higher_number() {
    let disk = Simulated::default();
    let mut held = Payloads::new();
    assert!(script(&disk, &mut held).is_none());
    // A log that ends early because it lost records.
    disk.rename(&snapshot::name(snapshots(&disk)[1]), &snapshot::name(1_000)).unwrap();
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut writer = SnapshotWriter::begin(
        Arc::new(disk.clone()),
        Arc::clone(opened.budget()),
        held.len() as u64,
    )
    .unwrap();
    writer.section(&Section { name: "state".to_owned(), bytes: b"\n".to_vec() }).unwrap();
    writer.finish(1).unwrap();
    assert_eq!(snapshots(&disk), [held.len() as u64]);
}

#[test]
fn a_full_disk_refuses_and_goes_on_when_there_is_room() {
    let (disk, mut held) = written(3);
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut log = opened.into_log();
    let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
    disk.limit(Some(usize::try_from(used).unwrap() + 70));
    let refused = append(&mut log, &vec![vec![b'x'; 60]; 3]);
    assert_eq!((refused, log.has_stopped()), (Err(Refused::Disk), false));
    disk.limit(None);
    append(&mut log, &vec![b"y".to_vec()]).unwrap();
    held.push(b"y".to_vec());
    assert_eq!(open(&disk, &options()).unwrap().1, held);
}

#[test]
fn a_probe_needs_the_room_of_a_record_and_leaves_nothing() {
    let (disk, mut held) = written(3);
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut log = opened.into_log();
    let used = || disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>();
    let before = used();
    disk.limit(Some(usize::try_from(before).unwrap() + 70));
    // A small record would find room.
    assert_eq!((log.probe(60), log.probe(71)), (Ok(()), Err(Refused::Disk)));
    assert_eq!((used(), log.has_stopped()), (before, false));
    disk.limit(None);
    assert_eq!(log.probe(10_000), Ok(()));
    assert_eq!(used(), before);
    append(&mut log, &vec![b"y".to_vec()]).unwrap();
    held.push(b"y".to_vec());
    assert_eq!(open(&disk, &options()).unwrap().1, held);
}

#[test]
fn over_the_budget_nothing_is_taken_until_a_snapshot_frees_some() {
    let disk = Simulated::default();
    let small = StoreOptions { max_bytes: 1500, ..options() };
    let (opened, mut held) = open(&disk, &small).unwrap();
    let budget = Arc::clone(opened.budget());
    let mut log = opened.into_log();
    while append(&mut log, &vec![vec![b'x'; 60]]).is_ok() {
        held.push(vec![b'x'; 60]);
    }
    assert_eq!(append(&mut log, &vec![vec![b'x'; 60]]), Err(Refused::Budget));
    // A third is left to the first snapshot.
    assert!((850..=1000).contains(&budget.log()), "{}", budget.log());
    let seq = held.len() as u64;
    let mut writer = SnapshotWriter::begin(Arc::new(disk.clone()), budget, seq).unwrap();
    writer.section(&Section { name: "state".to_owned(), bytes: b"\n".to_vec() }).unwrap();
    let seq = writer.finish(1).unwrap();
    log.release(seq).unwrap();
    assert!(append(&mut log, &vec![vec![b'x'; 60]]).is_ok());
}

#[test]
fn after_a_sync_that_failed_nothing_is_taken_any_more() {
    let (disk, held) = written(3);
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut log = opened.into_log();
    disk.fail_syncs();
    assert_eq!(append(&mut log, &vec![b"x".to_vec()]), Err(Refused::Stopped));
    assert_eq!(append(&mut log, &vec![b"y".to_vec()]), Err(Refused::Stopped));
    assert!(log.has_stopped());
    disk.power_loss(&mut Dice::new(1));
    assert_eq!(open(&disk, &options()).unwrap().1[..held.len()], held);
}

#[test]
fn another_format_is_refused_with_the_setting_that_helps() {
    for kind in ["log", "snapshot"] {
        let disk = Simulated::default();
        assert!(script(&disk, &mut Payloads::new()).is_none());
        let files = disk.list().unwrap();
        let name = &files.iter().rev().find(|(name, _)| name.starts_with(kind)).unwrap().0;
        disk.damage(name, |bytes| {
            bytes[6] += 1;
            let sum = crc32c::crc32c(&bytes[..16]);
            bytes[16..20].copy_from_slice(&sum.to_le_bytes());
        });
        let error = open(&disk, &options()).err().unwrap().to_string();
        assert!(error.contains(name) && error.contains("store.directory"), "{error}");
    }
}

#[test]
fn a_start_on_a_disk_that_the_store_has_filled_lets_go_of_what_is_not_needed() {
    let disk = Simulated::default();
    let (opened, _) = open(&disk, &options()).unwrap();
    let budget = Arc::clone(opened.budget());
    let (mut log, mut held) = (opened.into_log(), Payloads::new());
    for round in 0..3 {
        for _ in 0..10 {
            let group = vec![vec![b'a' + round; 60]];
            append(&mut log, &group).unwrap();
            held.extend(group);
        }
        if round < 2 {
            assert!(snap(&disk, &budget, &mut log, &held));
        }
    }
    drop(log);
    // The machine had no time to remove the file that it was writing.
    let mut part = disk.create("snapshot-00000000000000000030.part").unwrap();
    std::io::Write::write_all(&mut part, &[0; 500]).unwrap();
    let used = || disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum::<u64>();
    disk.limit(Some(usize::try_from(used()).unwrap()));
    let (opened, found) = open(&disk, &options()).unwrap();
    assert_eq!(found, held);
    drop(opened);
    // If that is missing, too, the older snapshot and the log before the newest one are removed. The empty end of the log is begun
    // again.
    disk.limit(Some(usize::try_from(used()).unwrap() - FILE_HEAD + 4));
    let (opened, found) = open(&disk, &options()).unwrap();
    assert_eq!(found, held);
    let snapshots: Vec<u64> = disk
        .list()
        .unwrap()
        .into_iter()
        .filter_map(|(name, bytes)| name.starts_with("snapshot-").then_some(bytes))
        .collect();
    assert_eq!(snapshots, [opened.budget().snapshots()]);
}

#[test]
fn a_start_on_a_disk_without_a_single_byte_succeeds_and_takes_records_once_there_is_room() {
    let (disk, mut held) = written(12);
    let used: u64 = disk.list().unwrap().iter().map(|(_, bytes)| bytes).sum();
    let used = usize::try_from(used).unwrap();
    disk.limit(Some(used));
    let mut log = None;
    for _ in 0..3 {
        let (opened, found) = open(&disk, &options()).unwrap();
        assert!(found == held && opened.is_full);
        let budget = Arc::clone(opened.budget());
        let mut opened = opened.into_log();
        assert_eq!(append(&mut opened, &vec![b"refused".to_vec()]), Err(Refused::Disk));
        assert!(!snap(&disk, &budget, &mut opened, &held));
        assert!(disk.list().unwrap().iter().all(|(name, _)| !name.starts_with("snapshot-")));
        log = Some((opened, budget));
    }
    let (mut log, budget) = log.unwrap();
    // There is room for snapshots alone, which make all of the log superfluous.
    let state = held.iter().map(|payload| payload.len() + 1).sum::<usize>() + 100;
    disk.limit(Some(used + 2 * state));
    assert!(snap(&disk, &budget, &mut log, &held) && log.release(held.len() as u64).is_ok());
    assert_eq!((logs(&disk), budget.log()), (Vec::new(), 0));
    append(&mut log, &vec![b"taken".to_vec()]).unwrap();
    held.push(b"taken".to_vec());
    drop(log);
    disk.limit(None);
    let (opened, found) = open(&disk, &options()).unwrap();
    assert!(found == held && !opened.is_full);
}

#[test]
fn bytes_of_a_frame_in_a_request_are_not_taken_for_one() {
    let disk = Simulated::default();
    let (opened, _) = open(&disk, &options()).unwrap();
    let mut log = opened.into_log();
    let mut forged = Vec::new();
    record(b"forged").encode(0, 99, 98, &mut forged);
    append(&mut log, &vec![b"one".to_vec(), forged.repeat(3)]).unwrap();
    disk.damage(&logs(&disk)[0].0, |bytes| bytes[FRAME_OF_SECOND] ^= 1);
    let skip = StoreOptions { damaged_records: DamagedRecords::Skip, ..options() };
    let (opened, found) = open(&disk, &skip).unwrap();
    assert_eq!((found, opened.recovery.found.lost_records), (vec![b"one".to_vec()], 1));
}

/// Where the head of the second frame is in the test above: after the file's head and a frame of three bytes.
const FRAME_OF_SECOND: usize = 20 + 44 + 3 + 10;
