//! What packed sessions share: names that are written as numbers, and what follows from the options.

use std::borrow::Cow;
use std::hash::Hash;
use std::sync::Arc;

use super::key::Agent;
use super::pane::{PaneKey, keys_of, mask_of};
use crate::engine::bytes::{Reader, Writer};
use crate::engine::hash::FixedMap;
use crate::engine::span::Timestamp;
use crate::engine::update::AgentKey;

/// Names that have a number, for good. Beyond these a name is written out wherever it is.
const MOST: usize = 4_096;

/// The longest name that has a number, in bytes.
const LONGEST: usize = 128;

/// What many traces have in common, likewise; and words.
const MOST_SHAPES: usize = 16_384;
const LONGEST_SHAPE: usize = 256;
const MOST_WORDS: usize = 65_536;

/// What sessions are packed with.
#[derive(Clone, Debug)]
pub(super) struct Codec {
    names: Table<Arc<str>>,
    agents: Table<Agent>,
    shapes: Table<Arc<[u8]>>,
    // Hashes of words.
    words: Table<u64>,
    widths: Arc<[u64]>,
}

/// Things by number, first come.
#[derive(Clone, Debug)]
struct Table<T> {
    numbers: FixedMap<T, usize>,
    list: Vec<T>,
    most: usize,
}

impl Codec {
    /// Nothing has a number yet.
    pub(super) fn new(widths: Arc<[u64]>) -> Self {
        let names = Table::new(MOST);
        let (agents, shapes) = (Table::new(MOST), Table::new(MOST_SHAPES));
        Self { names, agents, shapes, words: Table::new(MOST_WORDS), widths }
    }

    /// Writes a name: its number, or zero and the name.
    pub(super) fn name(&mut self, name: &str, to: &mut Writer) {
        let known = self.names.numbers.get(name).copied();
        let new = || (name.len() <= LONGEST).then(|| Arc::from(name));
        match known.or_else(|| self.names.add(new()?)) {
            Some(number) => to.number(number as u64 + 1),
            None => {
                to.number(0);
                to.bytes(name.as_bytes());
            }
        }
    }

    /// Reads a name.
    pub(super) fn read_name(&self, from: &mut Reader<'_>) -> String {
        self.look_at_name(from).into_owned()
    }

    /// Reads a name that is kept by nobody.
    pub(super) fn look_at_name<'b, 'r: 'b>(&'b self, from: &mut Reader<'r>) -> Cow<'b, str> {
        match from.size().checked_sub(1) {
            Some(number) => Cow::Borrowed(self.names.list.get(number).map_or("", AsRef::as_ref)),
            None => from.text(),
        }
    }

    /// Writes an agent likewise.
    pub(super) fn agent(&mut self, agent: &Agent, to: &mut Writer) {
        let known = self.agents.numbers.get(agent).copied();
        match known.or_else(|| self.agents.add(agent.clone())) {
            Some(number) => to.number(number as u64 + 1),
            None => {
                to.number(0);
                let AgentKey { tenant, service_name, agent_name, agent_version, environment } =
                    agent.key();
                for part in [tenant, service_name, agent_name, agent_version, environment] {
                    to.bytes(part.as_bytes());
                }
            }
        }
    }

    /// Reads an agent.
    pub(super) fn read_agent(&self, from: &mut Reader<'_>) -> Agent {
        if let Some(number) = from.size().checked_sub(1) {
            return self.agents.list.get(number).cloned().unwrap_or_else(Agent::overflow);
        }
        let mut part = || from.text().into_owned();
        Agent::from(AgentKey {
            tenant: part(),
            service_name: part(),
            agent_name: part(),
            agent_version: part(),
            environment: part(),
        })
    }

    /// Writes bytes that many have in common likewise.
    pub(super) fn shape(&mut self, shape: &[u8], to: &mut Writer) {
        let known = self.shapes.numbers.get(shape).copied();
        let new = || (shape.len() <= LONGEST_SHAPE).then(|| Arc::from(shape));
        match known.or_else(|| self.shapes.add(new()?)) {
            Some(number) => to.number(number as u64 + 1),
            None => {
                to.number(0);
                to.bytes(shape);
            }
        }
    }

    /// Reads such bytes.
    pub(super) fn read_shape(&self, from: &mut Reader<'_>) -> Arc<[u8]> {
        match from.size().checked_sub(1) {
            Some(number) => self.shapes.list.get(number).map(Arc::clone),
            None => Some(Arc::from(from.bytes())),
        }
        .unwrap_or_default()
    }

    /// The number of a word, if it has one or can have one.
    pub(super) fn word(&mut self, hash: u64) -> Option<u64> {
        let known = self.words.numbers.get(&hash).copied();
        known.or_else(|| self.words.add(hash)).map(|number| number as u64)
    }

    /// The word of a number.
    pub(super) fn read_word(&self, number: usize) -> u64 {
        self.words.list.get(number).copied().unwrap_or_default()
    }

    /// Panes as a bit each; `None` if these are not panes of this end.
    pub(super) fn panes(&self, panes: &[PaneKey], end: Timestamp) -> Option<u64> {
        let mask = mask_of(&self.widths, panes, end)?;
        (self.read_panes(mask, end) == panes).then_some(mask)
    }

    /// The panes of these bits.
    pub(super) fn read_panes(&self, mask: u64, end: Timestamp) -> Vec<PaneKey> {
        keys_of(&self.widths, mask, end)
    }
}

impl<T: Clone + Eq + Hash> Table<T> {
    fn new(most: usize) -> Self {
        Self { numbers: FixedMap::default(), list: Vec::new(), most }
    }

    /// Gives something new a number, if there is one left.
    fn add(&mut self, item: T) -> Option<usize> {
        let number = self.list.len();
        (number < self.most).then(|| {
            self.numbers.insert(item.clone(), number);
            self.list.push(item);
            number
        })
    }
}
