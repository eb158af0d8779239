//! The history of the board for a week, in a file: rows of agents at three steps. Each archive is a ring, whose oldest row is
//! overwritten.
//!
//! ```text
//! history:  slots of SLOT bytes, one for each agent
//! slot:     a head (magic, CRC-32C, length, names), then the rows of each archive
//! row:      time and values, then their CRC-32C; a torn row counts as none
//! ```
//!
//! The position of a row follows from its time, so rows are neither moved nor searched. Rows are not synced: after a power failure
//! the last minutes may be missing.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crc32c::crc32c;

use super::history::{Archive, Row};
use crate::engine::facts::{AgentKey, AgentParts};
use crate::engine::span::Timestamp;
use crate::engine::tenants::{Shares, TenantCounts, TenantHash, tenant_hash};
use crate::store::{Disk, Folder};

/// The file, and the slot of each agent.
pub struct KeptHistory {
    disk: Arc<dyn Disk>,
    max_agents: usize,
    shares: Shares,
    slots: Mutex<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    of: BTreeMap<AgentKey, Slot>,
    /// The number of slots of each tenant.
    tenants: TenantCounts,
    /// The number of slots in the file.
    count: u64,
    /// The number of agents that lost their slot to others since this number was last taken.
    displaced: usize,
    /// Tenants for whose new agents there was no slot in this second: slots are not searched again for each of these agents.
    refused: (u32, BTreeSet<TenantHash>),
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    number: u64,
    /// When the first row was written.
    began: Timestamp,
    /// The time of the last row, in seconds.
    last: u32,
}

/// Why an agent's row was not written, for a counter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NotKept {
    /// All slots that it could get belong to agents with a row in the last minute.
    NoSlot,
    /// The agent's names are too long for a head.
    Names,
    /// The disk failed.
    Disk,
}

impl NotKept {
    /// The name as a label value.
    pub fn name(self) -> &'static str {
        match self {
            Self::NoSlot => "history_agents",
            Self::Names => "history_names",
            Self::Disk => "history_disk",
        }
    }
}

impl KeptHistory {
    /// Opens or creates the history in a directory, with room for `max_agents`, which tenants share. Agents beyond that lose their
    /// slots.
    ///
    /// # Errors
    ///
    /// Fails if the directory or the file cannot be created, read, or written.
    pub fn open(directory: &Path, max_agents: usize, shares: Shares) -> io::Result<Self> {
        Self::on(Arc::new(Folder::new(directory)?), max_agents, shares)
    }

    fn on(disk: Arc<dyn Disk>, max_agents: usize, shares: Shares) -> io::Result<Self> {
        let found = disk.list()?.into_iter().find(|(name, _)| name == FILE);
        let bytes = match found {
            Some((_, bytes)) => bytes,
            None => disk.create(FILE).map(|_| 0)?,
        };
        let kept = Self { disk, max_agents, shares, slots: Mutex::default() };
        let mut slots = Slots { count: bytes.div_ceil(SLOT), ..Slots::default() };
        for number in 0..slots.count {
            let head = kept.disk.read_at(FILE, number * SLOT, HEAD).ok();
            if let Some((agent, began)) = head.as_deref().and_then(read_head) {
                let rows = kept.rows(number, Archive::HalfHours);
                let last = rows.iter().map(|row| row.at).max().unwrap_or(0);
                slots.insert(agent, Slot { number, began, last });
            }
        }
        kept.make_room(&mut slots)?;
        *kept.slots() = slots;
        Ok(kept)
    }

    /// Takes away the slots of agents over the bound, and truncates the file after the last used slot.
    fn make_room(&self, slots: &mut Slots) -> io::Result<()> {
        while slots.of.len() > self.max_agents
            && let Some(tenant) = slots.tenants.most_over_share(&self.shares)
            && let Some((agent, slot)) = slots.quietest_of(tenant)
        {
            self.disk.write_at(FILE, slot.number * SLOT, &[0; HEAD])?;
            slots.remove(&agent);
            slots.displaced += 1;
        }
        let taken = slots.of.values().map(|slot| slot.number + 1).max().unwrap_or(0);
        if taken < slots.count {
            self.disk.truncate(FILE, taken * SLOT)?;
            slots.count = taken;
        }
        Ok(())
    }

    /// Writes a row of an agent to each archive.
    ///
    /// # Errors
    ///
    /// Fails with the reason why the row was not written.
    pub(super) fn note(&self, agent: &AgentKey, row: Row) -> Result<(), NotKept> {
        let slots = &mut *self.slots();
        let number = match slots.of.get_mut(agent) {
            Some(slot) => {
                slot.last = row.at;
                slot.number
            }
            None => self.claim(slots, agent, row.at)?,
        };
        let written = Archive::ALL.into_iter().try_for_each(|archive| {
            let at = place(number, archive, row.at);
            let before = self.disk.read_at(FILE, at, ROW).ok();
            let before = before.as_deref().and_then(Row::read);
            self.disk.write_at(FILE, at, &row.after(before, archive).bytes())
        });
        written.map_err(|_| NotKept::Disk)
    }

    /// Takes a slot for a new agent: a free or new one, or that of the agent without a row for longest, of the tenant that would
    /// hold the most relative to its share, else of the agent's own tenant.
    fn claim(&self, slots: &mut Slots, agent: &AgentKey, at: u32) -> Result<u64, NotKept> {
        let began = Timestamp(u64::from(at) * 1_000_000_000);
        let head = head(agent, began).ok_or(NotKept::Names)?;
        let (number, displaced) = if slots.of.len() < self.max_agents {
            let taken: BTreeSet<u64> = slots.of.values().map(|slot| slot.number).collect();
            let free = (0..=slots.count).find(|number| !taken.contains(number));
            (free.unwrap_or(slots.count), None)
        } else {
            if slots.refused.0 != at {
                slots.refused = (at, BTreeSet::new());
            }
            let own = tenant(agent);
            let is_refused = slots.refused.1.contains(&own);
            let quietest = if is_refused { None } else { self.quietest(slots, agent, at) };
            let Some((other, slot)) = quietest else {
                slots.refused.1.insert(own);
                return Err(NotKept::NoSlot);
            };
            (slot.number, Some(other))
        };
        // The rows of the slot's earlier agent are cleared before the new names are written.
        let blank = vec![0; usize::try_from(SLOT).unwrap_or_default()];
        let write = |bytes: &[u8]| {
            self.disk.write_at(FILE, number * SLOT, bytes).map_err(|_| NotKept::Disk)
        };
        write(&blank)?;
        if let Some(other) = displaced {
            slots.remove(&other);
            slots.displaced += 1;
        }
        write(&head)?;
        slots.count = slots.count.max(number + 1);
        slots.insert(agent.clone(), Slot { number, began, last: at });
        Ok(number)
    }

    /// The agent that makes room for a new one, with its slot.
    fn quietest(&self, slots: &Slots, new: &AgentKey, at: u32) -> Option<(AgentKey, Slot)> {
        let is_quiet = |(_, slot): &(AgentKey, Slot)| slot.last + Archive::Minutes.step() < at;
        let quietest = |tenant| slots.quietest_of(tenant).filter(is_quiet);
        let most_over_share = slots.tenants.greediest_with(&self.shares, tenant(new))?;
        quietest(most_over_share).or_else(|| quietest(tenant(new)))
    }

    /// The rows of an agent from the second `since` on, the oldest first; empty if there are none.
    pub(super) fn read(&self, agent: &AgentKey, archive: Archive, since: u32) -> Vec<Row> {
        let number = || self.slots().of.get(agent).map(|slot| slot.number);
        let Some(own) = number() else { return Vec::new() };
        let mut rows = self.rows(own, archive);
        // Another agent may have got the slot while it was read.
        if number() != Some(own) {
            return Vec::new();
        }
        rows.retain(|row| row.at >= since);
        rows.sort_by_key(|row| row.at);
        rows
    }

    fn rows(&self, number: u64, archive: Archive) -> Vec<Row> {
        let bytes = self.disk.read_at(FILE, place(number, archive, 0), ROW * archive.rows());
        // The last slot of a truncated file has fewer rows.
        bytes.unwrap_or_default().chunks_exact(ROW).filter_map(Row::read).collect()
    }

    /// The number of agents that lost their slot to others since the last call.
    pub(super) fn take_displaced(&self) -> usize {
        std::mem::take(&mut self.slots().displaced)
    }

    /// The time of an agent's first row.
    pub(super) fn began(&self, agent: &AgentKey) -> Option<Timestamp> {
        self.slots().of.get(agent).map(|slot| slot.began)
    }

    fn slots(&self) -> std::sync::MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slots {
    fn insert(&mut self, agent: AgentKey, slot: Slot) {
        self.tenants.add(tenant(&agent));
        self.of.insert(agent, slot);
    }

    fn remove(&mut self, agent: &AgentKey) {
        if self.of.remove(agent).is_some() {
            self.tenants.remove(tenant(agent));
        }
    }

    /// The agent of a tenant without a row for longest, with its slot.
    fn quietest_of(&self, of: TenantHash) -> Option<(AgentKey, Slot)> {
        let own = self.of.iter().filter(|(agent, _)| tenant(agent) == of);
        own.min_by_key(|(_, slot)| slot.last).map(|(agent, slot)| (agent.clone(), *slot))
    }
}

fn tenant(agent: &AgentKey) -> TenantHash {
    tenant_hash(Some(&agent.tenant))
}

impl std::fmt::Debug for KeptHistory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeptHistory").field("max_agents", &self.max_agents).finish_non_exhaustive()
    }
}

/// The position in the file of the row for a time.
fn place(number: u64, archive: Archive, at: u32) -> u64 {
    let before: usize =
        Archive::ALL.into_iter().take_while(|other| *other != archive).map(Archive::rows).sum();
    let row = before as u64 + u64::from(at / archive.step()) % archive.rows() as u64;
    number * SLOT + HEAD as u64 + row * ROW as u64
}

fn head(agent: &AgentKey, began: Timestamp) -> Option<Vec<u8>> {
    let mut body = began.0.to_le_bytes().to_vec();
    for name in agent.texts() {
        body.extend(u16::try_from(name.len()).ok()?.to_le_bytes());
        body.extend(name.as_bytes());
    }
    body.resize(HEAD.checked_sub(8).filter(|room| body.len() <= *room)?, 0);
    Some([MAGIC.as_slice(), &crc32c(&body).to_le_bytes(), &body].concat())
}

fn read_head(head: &[u8]) -> Option<(AgentKey, Timestamp)> {
    let body = head.strip_prefix(MAGIC)?;
    let (sum, body) = body.split_first_chunk::<4>()?;
    let sound = crc32c(body).to_le_bytes() == *sum;
    let (began, mut rest) = body.split_first_chunk::<8>().filter(|_| sound)?;
    let mut name = || {
        let (bytes, after) = rest.split_first_chunk::<2>()?;
        let (name, after) = after.split_at_checked(usize::from(u16::from_le_bytes(*bytes)))?;
        rest = after;
        std::str::from_utf8(name).ok().map(Arc::from)
    };
    let (tenant, service_name, agent_name) = (name()?, name()?, name()?);
    let (agent_version, environment) = (name()?, name()?);
    let agent = AgentParts { tenant, service_name, agent_name, agent_version, environment };
    Some((agent.into(), Timestamp(u64::from_le_bytes(*began))))
}

const FILE: &str = "history";
const MAGIC: &[u8; 4] = b"agh1";
const HEAD: usize = 1_024;
/// The bytes of a row.
pub(super) const ROW: usize = 48;
/// The bytes of a slot: a head and the rows of three archives.
const SLOT: u64 = (HEAD + ROW * Archive::all_rows()) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests::simulated::Simulated;

    fn agent(name: &str) -> AgentKey {
        AgentParts { agent_name: name.into(), ..AgentParts::default() }.into()
    }

    fn row(at: u32, failing: u16) -> Row {
        Row::failing(at, failing)
    }

    fn open(directory: &tempfile::TempDir, max_agents: usize) -> KeptHistory {
        KeptHistory::open(directory.path(), max_agents, Shares::default()).unwrap()
    }

    fn failing(kept: &KeptHistory, name: &str, archive: Archive) -> Vec<(u32, u16)> {
        let rows = kept.read(&agent(name), archive, 0);
        rows.into_iter().map(|row| (row.at, row.failing)).collect()
    }

    #[test]
    fn rows_outlive_the_process_and_a_torn_one_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let kept = open(&directory, 2);
        for (minute, share) in [(0, 1), (1, 2), (2, 3)] {
            kept.note(&agent("a"), row(60 * minute, share)).unwrap();
        }
        kept.note(&agent("b"), row(60, 9)).unwrap();
        drop(kept);
        let kept = open(&directory, 2);
        assert_eq!(failing(&kept, "a", Archive::Minutes), [(0, 1), (60, 2), (120, 3)]);
        // In a longer step the last row counts.
        assert_eq!(failing(&kept, "a", Archive::HalfHours), [(120, 3)]);
        assert_eq!(failing(&kept, "b", Archive::Minutes), [(60, 9)]);
        assert_eq!(kept.began(&agent("b")), Some(Timestamp(60_000_000_000)));
        let disk = Folder::new(directory.path()).unwrap();
        disk.write_at(FILE, place(0, Archive::Minutes, 60) + 5, &[0xff]).unwrap();
        assert_eq!(failing(&kept, "a", Archive::Minutes), [(0, 1), (120, 3)]);
    }

    #[test]
    fn the_agent_that_was_quiet_for_longest_makes_room() {
        let directory = tempfile::tempdir().unwrap();
        let kept = open(&directory, 2);
        for (name, at) in [("a", 0), ("b", 60), ("b", 600)] {
            kept.note(&agent(name), row(at, 1)).unwrap();
        }
        kept.note(&agent("c"), row(600, 5)).unwrap();
        assert_eq!(failing(&kept, "c", Archive::Minutes), [(600, 5)]);
        assert_eq!((kept.take_displaced(), kept.take_displaced()), (1, 0));
        assert!(failing(&kept, "a", Archive::Minutes).is_empty());
        // Both have rows of this minute.
        assert_eq!(kept.note(&agent("d"), row(600, 1)), Err(NotKept::NoSlot));
        assert_eq!(kept.note(&agent(&"x".repeat(2_000)), row(900, 1)), Err(NotKept::Names));
    }

    #[test]
    fn a_tenant_whose_versions_change_takes_no_slot_of_another() {
        let directory = tempfile::tempdir().unwrap();
        let kept = open(&directory, 3);
        let of = |tenant: &str, name: &str| -> AgentKey {
            AgentParts { tenant: tenant.into(), agent_name: name.into(), ..AgentParts::default() }
                .into()
        };
        kept.note(&of("quiet", "a"), row(0, 1)).unwrap();
        for build in 1..10 {
            kept.note(&of("flood", &build.to_string()), row(600 * build, 1)).unwrap();
        }
        assert_eq!(kept.read(&of("quiet", "a"), Archive::Minutes, 0).len(), 1);
        assert_eq!(kept.take_displaced(), 7);
    }

    #[test]
    fn with_a_lower_bound_the_quietest_lose_their_slots_and_the_file_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let kept = open(&directory, 3);
        for (name, at) in [("a", 600), ("b", 0), ("c", 60)] {
            kept.note(&agent(name), row(at, 1)).unwrap();
        }
        drop(kept);
        let kept = open(&directory, 1);
        let known = ["a", "b", "c"].map(|name| kept.began(&agent(name)).is_some());
        assert_eq!((known, kept.take_displaced()), ([true, false, false], 2));
        assert_eq!(failing(&kept, "a", Archive::Minutes), [(600, 1)]);
        let files = Folder::new(directory.path()).unwrap().list().unwrap();
        assert_eq!(files, [(FILE.to_owned(), SLOT)]);
        drop(kept);
        let kept = open(&directory, 3);
        assert!(kept.began(&agent("b")).is_none());
    }

    #[test]
    fn on_a_disk_that_fails_nobody_loses_a_slot() {
        let disk = Arc::new(Simulated::default());
        let kept =
            KeptHistory::on(Arc::clone(&disk) as Arc<dyn Disk>, 1, Shares::default()).unwrap();
        kept.note(&agent("a"), row(0, 1)).unwrap();
        disk.limit(Some(0));
        assert_eq!(kept.note(&agent("b"), row(600, 1)), Err(NotKept::Disk));
        assert!(kept.began(&agent("a")).is_some() && kept.began(&agent("b")).is_none());
        assert_eq!(kept.take_displaced(), 0);
    }

    #[test]
    fn a_week_goes_round() {
        let directory = tempfile::tempdir().unwrap();
        let kept = open(&directory, 1);
        for hour in 0..200 {
            kept.note(&agent("a"), row(3_600 * hour, 1)).unwrap();
        }
        let week = failing(&kept, "a", Archive::HalfHours);
        assert_eq!((week.len(), week[0].0), (168, 3_600 * 32));
    }
}
