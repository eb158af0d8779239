//! Names that many traces have in common, by number.
//!
//! A name gets a number for good when it was met often among those that have none; ids, which are met once or a few times,
//! do not. There are at most so many.

use std::sync::Arc;

use crate::engine::bytes::{Reader, Writer};
use crate::engine::hash::FixedMap;

/// Names that have a number.
const MOST: usize = 4_096;

/// The longest of them, in bytes.
const LONGEST: usize = 128;

/// How often one has to be met, among so many that have none.
const OFTEN: u32 = 16;
const MET: usize = 8_192;

/// Names by number.
#[derive(Clone, Debug, Default)]
pub struct Names {
    numbers: FixedMap<Arc<str>, usize>,
    list: Vec<Arc<str>>,
    // How often others were met; forgotten when these are too many.
    met: FixedMap<Arc<str>, u32>,
}

impl Names {
    /// Writes a name: its number, or the name.
    pub(super) fn write(&mut self, name: &str, to: &mut Writer) {
        let number = self.numbers.get(name).copied().or_else(|| self.meet(name));
        match number {
            Some(number) => to.number((number as u64) << 1 | 1),
            None => {
                to.number((name.len() as u64) << 1);
                to.raw(name.as_bytes());
            }
        }
    }

    /// Reads it.
    pub(super) fn read<'a, 'b: 'a>(&'a self, from: &mut Reader<'b>) -> &'a str {
        let number = from.size();
        if number & 1 == 1 {
            return self.list.get(number >> 1).map_or("", AsRef::as_ref);
        }
        std::str::from_utf8(from.some(number >> 1)).unwrap_or_default()
    }

    /// Counts a name that has no number; returns the one that it gets.
    fn meet(&mut self, name: &str) -> Option<usize> {
        if self.list.len() >= MOST || name.len() > LONGEST {
            return None;
        }
        match self.met.get_mut(name) {
            Some(times) if *times + 1 < OFTEN => {
                *times += 1;
                None
            }
            Some(_) => {
                let (name, _) = self.met.remove_entry(name)?;
                self.list.push(Arc::clone(&name));
                self.numbers.insert(name, self.list.len() - 1);
                Some(self.list.len() - 1)
            }
            None => {
                if self.met.len() >= MET {
                    self.met.clear();
                }
                self.met.insert(Arc::from(name), 1);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_met_often_has_a_number_and_all_is_read_as_it_was() {
        let mut names = Names::default();
        let mut length = |name: &str| {
            let mut writer = Writer::default();
            names.write(name, &mut writer);
            assert_eq!(names.read(&mut Reader(&writer.0)), name);
            writer.0.len()
        };
        for number in 0..20_000 {
            length(&format!("id {number}"));
            length("common");
        }
        assert_eq!((length("common"), length("id 20000"), length("")), (1, 9, 1));
    }
}
