//! The cores on which the generator and the servers run.
//!
//! A process inherits the cores of the thread that starts it, so a server is pinned before its first instruction, and the daemon's
//! runtime sees as many cores as it has.

use std::collections::BTreeSet;

use serde::Serialize;

/// A division of the machine.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub(crate) struct Cores {
    /// The cores of the generator; empty if it is not pinned.
    pub(crate) generator: Vec<usize>,
    /// The cores of the server; empty if it is not pinned.
    pub(crate) server: Vec<usize>,
}

impl Cores {
    /// Divides the cores as `asked`, or else gives the last one to the server and all but the first of the others to the generator;
    /// also returns a note if that is not possible. `available` are the cores that this process may use.
    pub(super) fn divide(available: &[usize], asked: Option<&Self>) -> (Self, Option<String>) {
        if let Some(asked) = asked {
            let wanted: BTreeSet<_> = asked.generator.iter().chain(&asked.server).collect();
            return if wanted.iter().all(|core| available.contains(core)) {
                (asked.clone(), None)
            } else {
                let note = format!(
                    "cores {wanted:?} were asked for and {available:?} are there: nothing is pinned"
                );
                (Self::default(), Some(note))
            };
        }
        match available {
            [] | [_] => {
                let note = "fewer than two cores to divide: nothing is pinned";
                (Self::default(), Some(note.to_owned()))
            }
            // The first core is left to the rest of the system if three others remain.
            [_, generator @ .., server] if generator.len() >= 2 => {
                (Self { generator: generator.to_vec(), server: vec![*server] }, None)
            }
            [generator @ .., server] => {
                (Self { generator: generator.to_vec(), server: vec![*server] }, None)
            }
        }
    }

    /// Divisions that give the server the last core, the last two, and so on.
    pub(super) fn growing(available: &[usize]) -> Vec<Self> {
        let divide = |first: usize| {
            let (left, server) = available.split_at(first);
            let generator = if left.is_empty() { available } else { left };
            Self { generator: generator.to_vec(), server: server.to_vec() }
        };
        (0..available.len()).rev().map(divide).collect()
    }

    /// Parses `1-2/3`: the generator's cores, then the server's.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let example = "write the generator's cores and the server's, such as 1-2/3";
        let (generator, server) = text.split_once('/').ok_or(example)?;
        let list = |text| list(text).filter(|list| !list.is_empty()).ok_or(example);
        Ok(Self { generator: list(generator)?, server: list(server)? })
    }
}

/// A list such as `0,2-3`.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= MAX_CORES || first > last {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// The number of cores in the kernel's set.
const MAX_CORES: usize = 1024;

/// The cores that this thread may use; none if that is unknown.
#[cfg(target_os = "linux")]
pub(super) fn available() -> Vec<usize> {
    let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
    (0..MAX_CORES).filter(|core| set.is_set(*core)).collect()
}

/// Pins this thread, and threads and processes that it starts afterwards, to `cores`; an empty list changes nothing.
#[cfg(target_os = "linux")]
pub(super) fn pin(cores: &[usize]) -> std::io::Result<()> {
    if cores.is_empty() {
        return Ok(());
    }
    let mut set = rustix::thread::CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(rustix::thread::sched_setaffinity(None, &set)?)
}

/// The cores that this thread may use; none, as that is unknown here.
#[cfg(not(target_os = "linux"))]
pub(super) fn available() -> Vec<usize> {
    Vec::new()
}

/// Does nothing, as threads are not pinned here.
#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_: &[usize]) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_is_read_as_it_is_written() {
        let cores = Cores::parse("0,2-3/5").unwrap();
        assert_eq!((cores.generator, cores.server), (vec![0, 2, 3], vec![5]));
        for wrong in ["", "1", "1/", "/1", "a/b", "3-1/2", "1/5000"] {
            assert!(Cores::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_server_has_a_core_of_its_own() {
        let divided = |available: &[usize]| {
            let (cores, note) = Cores::divide(available, None);
            (cores.generator, cores.server, note.is_some())
        };
        assert_eq!(divided(&[0, 1, 2, 3]), (vec![1, 2], vec![3], false));
        assert_eq!(divided(&[0, 1]), (vec![0], vec![1], false));
        assert_eq!(divided(&[0]), (vec![], vec![], true));
    }

    #[test]
    fn the_generator_has_what_the_server_leaves() {
        let growing: Vec<_> = Cores::growing(&[0, 1, 2])
            .into_iter()
            .map(|cores| (cores.generator, cores.server))
            .collect();
        assert_eq!(
            growing,
            [(vec![0, 1], vec![2]), (vec![0], vec![1, 2]), (vec![0, 1, 2], vec![0, 1, 2])]
        );
    }

    #[test]
    fn where_cores_are_missing_nothing_is_pinned() {
        let asked = Cores::parse("1-2/9").unwrap();
        let (cores, note) = Cores::divide(&[0, 1, 2], Some(&asked));
        assert_eq!(cores, Cores::default());
        assert!(note.is_some_and(|note| note.contains('9')));
        assert_eq!(Cores::divide(&[1, 2, 9], Some(&asked)), (asked.clone(), None));
    }
}
