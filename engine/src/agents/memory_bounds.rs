//! The bound on the memory of all agents' runs: `agents.max_run_bytes`.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Agents;
use super::agent::Agent;
use crate::facts::AgentKey;
use crate::tenants::{TenantHash, tenant_hash};

/// The fraction of the bound that is freed when it is exceeded, so that not every new run scans all agents.
const FREED: usize = 16;

impl Agents {
    /// Estimated bytes of memory that the runs of all agents take.
    pub fn run_bytes(&self) -> usize {
        self.run_bytes
    }

    /// If all runs take too many bytes, forgets the oldest ones of the agent whose runs take most, in the tenant whose runs take
    /// most relative to its share.
    pub(super) fn make_room_for_runs(&mut self) {
        let most = self.options.agents.max_run_bytes;
        if self.run_bytes <= most {
            return;
        }
        let step = (most / FREED).max(1);
        while self.run_bytes > most - most / FREED
            && let Some((key, bytes)) = self.largest()
        {
            let moment = self.shift.moment(self.now);
            let runs = self.agents.get_mut(&key).and_then(|agent| agent.runs.as_mut());
            let Some(runs) = runs else { return };
            runs.forget_to(bytes.saturating_sub(step), moment, &mut self.counts);
            self.run_bytes = self.run_bytes - bytes + runs.bytes();
            self.dirty.insert(key);
        }
    }

    /// The agent whose runs take most, in the tenant whose runs take most relative to its share, and the bytes that they take.
    fn largest(&self) -> Option<(AgentKey, usize)> {
        let held = || {
            let bytes = |agent: &Agent| agent.runs.as_ref().map_or(0, |runs| runs.bytes());
            self.agents.iter().map(move |(key, agent)| (key, bytes(agent)))
        };
        let tenant_of = |key: &AgentKey| tenant_hash(Some(&key.tenant));
        let mut by_tenant: BTreeMap<TenantHash, usize> = BTreeMap::new();
        for (key, bytes) in held() {
            *by_tenant.entry(tenant_of(key)).or_default() += bytes;
        }
        let tenant = self.options.shares.most_over_share(by_tenant.into_iter())?;
        let own = held().filter(|(key, bytes)| *bytes > 0 && tenant_of(key) == tenant);
        // Ties are broken by name.
        let largest = own.min_by_key(|(key, bytes)| (Reverse(*bytes), *key));
        largest.map(|(key, bytes)| (key.clone(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::facts::{AgentParts, RunTrace, SessionFacts};
    use crate::options::AgentOptions;
    use crate::pipeline::EngineOptions;
    use crate::span::{Attempt, Timestamp, TraceId};
    use crate::tenants::TenantOptions;

    fn key(tenant: &str, agent: &str) -> AgentKey {
        let (tenant, service_name) = (tenant.into(), agent.into());
        AgentParts { tenant, service_name, ..AgentParts::default() }.into()
    }

    /// An update with a run of this number, whose names take some kilobytes.
    fn update(agent: &AgentKey, number: u64) -> SessionFacts {
        let run = Arc::<str>::from(number.to_string());
        let attempt = Attempt { task: Some("t".into()), run: Some(run), ..Attempt::default() };
        let trace = RunTrace {
            trace_id: TraceId((u128::from(number) + 1).to_be_bytes()),
            attempt: Some(attempt),
            start_unix_nano: number,
            end_unix_nano: number,
            actions: vec![Arc::from("search"); 200],
            ..RunTrace::default()
        };
        SessionFacts {
            agent: Some(agent.clone()),
            run_traces: vec![trace],
            ..SessionFacts::default()
        }
    }

    fn runs(stage: &Agents, key: &AgentKey) -> usize {
        stage.agents[key].runs.as_ref().unwrap().len()
    }

    #[test]
    fn runs_take_no_more_bytes_than_they_may_and_the_largest_share_gives_way() {
        let agents = AgentOptions { max_run_bytes: 1 << 20, ..AgentOptions::default() };
        let shares = TenantOptions::default().shares(2);
        let options = || EngineOptions {
            agents: agents.clone(),
            shares: shares.clone(),
            ..EngineOptions::default()
        };
        let mut stage = Agents::new(Arc::new(options()));
        let [small, of_shop, bank] = [key("shop", "a"), key("shop", "b"), key("bank", "a")];
        for number in 0..10 {
            stage.handle(update(&small, number), Timestamp(number));
            stage.handle(update(&of_shop, number), Timestamp(number));
        }
        let mut most = 0;
        for number in 0..1_000 {
            stage.handle(update(&bank, number), Timestamp(number));
            most = most.max(runs(&stage, &bank));
            assert!(stage.run_bytes() <= 1 << 20);
        }
        assert_eq!((runs(&stage, &small), runs(&stage, &of_shop)), (10, 10));
        let left = runs(&stage, &bank);
        assert!(most > 80 && left > most / 2, "{left} of {most}");
        assert_eq!(stage.counts().get("runs", "forgotten"), 1_000 - left as u64);
        let held = stage.agents.values().map(|agent| agent.runs.as_ref().unwrap().bytes());
        assert_eq!(held.sum::<usize>(), stage.run_bytes());

        // A start with less room.
        let saved = rmp_serde::to_vec_named(&stage.save()).unwrap();
        let mut next = Agents::new(Arc::new(EngineOptions {
            agents: AgentOptions { max_run_bytes: 1 << 19, ..agents.clone() },
            ..options()
        }));
        next.restore(rmp_serde::from_slice(&saved).unwrap());
        assert!(next.run_bytes() <= 1 << 19 && runs(&next, &bank) < left);
        assert_eq!((runs(&next, &small), runs(&next, &of_shop)), (10, 10));
    }
}
