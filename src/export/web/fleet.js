// The landing view: what is wrong now, then every agent, the worst first.
import {
  about,
  agentDetail,
  agentLink,
  agentTitle,
  ago,
  ask,
  byVersion,
  choice,
  counted,
  dollars,
  el,
  foreign,
  looping,
  number,
  pager,
  percent,
  stateOf,
  table,
  tile,
  tiles,
  toggle,
  usual,
} from "./dom.js";
import { sparkline } from "./chart.js";
import { alerts, otherAlerts } from "./alerts.js";
import { problems as problemCards, worstLoop } from "./problems.js";
import { range, ranges } from "./range.js";

/** The most agents on one page of the API, and the most pages of them that are read. */
const MOST = 1000,
  READ = 5;
const PAGE = 50;
/** Models without a price that are named. */
const MODELS = 20;
const state = { service: "", environment: "", version: "", bad: false, text: "", offset: 0, open: new Set() };

export async function fleet(view) {
  const [found, wrong, raised, reach] = await Promise.all([
    everyone(view.signal, await range()),
    ask("/api/v1/problems", {}, view.signal),
    alerts(view),
    ranges(view),
  ]);
  const { agents, total, totals, unpriced_models: unpriced } = found;
  view.title("All agents");
  // Many agents take their time.
  if (total > 300) view.pause = 10_000;
  if (total === 0) return empty(await about());
  const set = (change) => {
    Object.assign(state, { offset: 0 }, change);
    view.again();
  };
  const values = (name) => [...new Set(agents.map((agent) => agent[name]).filter(Boolean))].sort();
  const fits = (agent) =>
    (!state.service || agent.service_name === state.service) &&
    (!state.environment || agent.environment === state.environment) &&
    (!state.version || agent.agent_version === state.version);
  const groups = grouped(agents.filter(fits))
    .filter((group) => !state.bad || rank(group) > 0)
    .sort((one, other) => rank(other) - rank(one) || (other.first.failure_ratio ?? -1) - (one.first.failure_ratio ?? -1));
  const shown = groups.slice(state.offset, state.offset + PAGE);
  return [
    el("h1", {}, wrong.total > 0 ? `${counted(wrong.total, "problem")} now` : "All agents"),
    problemCards(view, wrong, raised),
    otherAlerts(raised, wrong.problems),
    tiles(
      tile("Agents", number(grouped(agents).length), `in ${counted(total, "agent version")}`),
      tile(
        "Failing more than usual",
        bad(totals.dropping),
        "agent versions",
        "A drop: more of its traces fail than usual, and not by chance",
      ),
      tile("Sessions looping", bad(totals.sessions_looping), "now", "Open sessions that make the same calls again and again"),
      totals.sessions_over_limit > 0 &&
        tile(
          "Sessions over a limit",
          bad(totals.sessions_over_limit),
          "now",
          "Open sessions that are over a configured limit, or have a trace that is",
        ),
      tile("Sessions open", number(totals.sessions_active), "now"),
      tile("Traces", number(totals.traces), "since the daemon started"),
      tile(
        "Spent",
        dollars(totals.cost_usd),
        "on those traces",
        "What the model calls cost, as sent in the spans or computed from the price table",
      ),
    ),
    el("h2", {}, "Agents"),
    el(
      "div",
      { class: "bar" },
      choice("Service", values("service_name"), state.service, (service) => set({ service })),
      choice("Environment", values("environment"), state.environment, (environment) => set({ environment })),
      choice("Version", values("agent_version"), state.version, (version) => set({ version })),
      toggle("Only with problems", state.bad, (bad) => set({ bad })),
      reach,
    ),
    groups.length === 0
      ? el("p", { class: "empty" }, "No agent matches these filters.")
      : table(
          "Agents",
          [
            ["Agent"],
            ["State"],
            [
              "Failing",
              "number",
              "Share of failing traces among the last 50 at most, of the version shown below the name: one with a problem, else the newest",
            ],
            [
              "Usually",
              "number wide",
              "The share of failing traces that is usual for the agent; in brackets its objective, while it has no past yet",
            ],
            ["Failing, over time", "wide"],
            ["Looping now", "number wide"],
            ["Open", "number wide", "Open sessions"],
            ["Traces", "number wide", "Done traces seen"],
            ["Spent", "number wide"],
          ],
          shown.flatMap((group) => rows(view, group, wrong.problems)),
        ),
    pager(state.offset, PAGE, groups.length, (offset) => {
      state.offset = offset;
      view.again();
    }),
    total > agents.length &&
      el(
        "p",
        { class: "note" },
        `These are the first ${number(agents.length)} of ${number(total)} agent versions, by name. Search for the others.`,
      ),
    Object.keys(unpriced).length > 0 &&
      el(
        "p",
        { class: "note" },
        "No price is known for ",
        Object.entries(unpriced)
          .sort(([, one], [, other]) => other - one)
          .slice(0, MODELS)
          .map(([model, calls], at) => [at > 0 && ", ", foreign(model, 60), ` (${counted(calls, "call")})`]),
        ", so “Spent” leaves them out. Set prices in ",
        el("code", {}, "cost.prices"),
        ".",
      ),
  ];
}

/** All agents, as far as they are read, and their totals. */
export async function everyone(signal, range = undefined) {
  const first = await ask("/api/v1/fleet", { limit: MOST, range }, signal);
  for (let page = 1; page < READ && first.agents.length < first.total; page += 1) {
    const { agents } = await ask("/api/v1/fleet", { limit: MOST, offset: page * MOST, range }, signal);
    if (agents.length === 0) break;
    first.agents.push(...agents);
  }
  return first;
}

const bad = (count) => (count > 0 ? el("span", { class: "mark bad" }, number(count)) : "0");
const RANK = { critical: 4, warning: 2 };
const trouble = (agent) =>
  (RANK[agent.drop] ?? 0) + (agent.sessions_looping > 0 || agent.sessions_over_limit > 0 ? 3 : 0) + (agent.traces_stalled > 0 ? 1 : 0);
const rank = (group) => Math.max(...group.versions.map(trouble));

/** Agents with all of their versions, those in trouble first, then the newest; the first version represents the agent. */
function grouped(agents) {
  const groups = new Map();
  for (const agent of agents) {
    const key = JSON.stringify([agent.tenant, agent.service_name, agent.agent_name, agent.environment]);
    if (!groups.has(key)) groups.set(key, { key, versions: [] });
    groups.get(key).versions.push(agent);
  }
  const last = (agent) => BigInt(agent.last_trace_unix_nano ?? 0);
  // Versions with data in the same second are ordered by their names: 1.10 is newer than 1.9.
  const second = (agent) => last(agent) / 1000000000n;
  const newer = (one, other) => (second(other) > second(one) ? 1 : second(other) < second(one) ? -1 : byVersion(other, one));
  for (const group of groups.values()) {
    group.versions.sort((one, other) => trouble(other) - trouble(one) || newer(one, other));
    group.first = group.versions[0];
  }
  return [...groups.values()];
}

function rows(view, group, problems) {
  const { first, versions } = group;
  const sum = (of) => versions.reduce((all, agent) => (all === null && of(agent) === null ? null : (all ?? 0) + (of(agent) ?? 0)), null);
  if (versions.length === 1) return [row(first, problems, true)];
  const whole = {
    ...first,
    sessions_looping: sum((agent) => agent.sessions_looping),
    sessions_over_limit: sum((agent) => agent.sessions_over_limit),
    traces_stalled: sum((agent) => agent.traces_stalled),
    sessions_active: sum((agent) => agent.sessions_active),
    traces: sum((agent) => agent.traces),
    cost_usd: sum((agent) => agent.cost_usd),
  };
  const open = state.open.has(group.key);
  const more = el(
    "button",
    {
      type: "button",
      class: "more",
      "aria-expanded": String(open),
      onclick: () => {
        if (open) state.open.delete(group.key);
        else state.open.add(group.key);
        view.again();
      },
    },
    `${open ? "▾" : "▸"} ${number(versions.length)} versions`,
  );
  return [row(whole, problems, true, more), open && versions.map((agent) => row(agent, problems, false))];
}

function row(agent, problems, isWhole, more = null) {
  return el(
    "tr",
    { class: isWhole ? null : "version" },
    el(
      "th",
      { scope: "row" },
      el(
        "a",
        { href: agentLink(agent), "data-row": true },
        foreign(isWhole ? agentTitle(agent) : `version ${agent.agent_version ?? "(none sent)"}`, 80),
      ),
      isWhole && el("small", {}, foreign(agentDetail(agent), 120)),
      more,
    ),
    el("td", {}, stateOf(agent, worstLoop(agent, problems))),
    el("td", { class: "number" }, percent(agent.failure_ratio)),
    el("td", { class: "number none wide" }, usual(agent)),
    el("td", { class: "wide" }, sparkline(agent.spark)),
    el("td", { class: "number wide" }, looping(agent.sessions_looping)),
    el("td", { class: "number wide" }, number(agent.sessions_active)),
    el(
      "td",
      { class: "number wide", title: agent.last_trace_unix_nano && `the last one came ${ago(agent.last_trace_unix_nano)}` },
      number(agent.traces),
    ),
    el("td", { class: "number wide" }, dollars(agent.cost_usd)),
  );
}

function empty({ otlp_http: address, needs_token: needsToken }) {
  const port = address?.split(":").at(-1) ?? "4318";
  const lines = [
    `export OTEL_EXPORTER_OTLP_ENDPOINT=${location.protocol}//${location.hostname}:${port}`,
    "export OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
    needsToken && 'export OTEL_EXPORTER_OTLP_HEADERS="Authorization=Bearer%20TOKEN"  # a token that may ingest',
  ];
  return [
    el("h1", {}, "All agents"),
    el(
      "div",
      { class: "empty" },
      el("p", {}, "No agent has sent a span yet. Point an OpenTelemetry SDK at this daemon:"),
      el("pre", { tabindex: "0" }, el("code", {}, lines.filter(Boolean).join("\n"))),
      el("p", {}, "This page fills in by itself."),
    ),
  ];
}
