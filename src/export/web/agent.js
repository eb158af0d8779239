// One agent: what is wrong, its history, its versions, its work, its sessions.
import {
  agentDetail,
  agentLink,
  agentTitle,
  ago,
  ask,
  byVersion,
  copy,
  counted,
  dollars,
  el,
  exactly,
  fold,
  foreign,
  isSame,
  number,
  percent,
  plain,
  score,
  seconds,
  severity,
  stateOf,
  table,
  tile,
  tiles,
  time,
  usual,
  when,
} from "./dom.js";
import { chart, sparkline } from "./chart.js";
import { alerts, alertsOf } from "./alerts.js";
import { drops } from "./drops.js";
import { worstLoop } from "./problems.js";
import { range, ranges } from "./range.js";
import { listState, listed, sessionTable } from "./sessions.js";

/** The most versions side by side, and the sessions whose tools and models are counted. */
const VERSIONS = 6,
  SAMPLE = 20;
/** New versions and deployments that are named below the charts. */
const MARKS = 3;
/** The newest sessions are requested again after this time. */
const STALE_MS = 20_000;
let sampled = { key: "", at: 0, sessions: [] };

export async function agent(view, query) {
  const names = exactly(query);
  const key = JSON.stringify(names);
  listState(key);
  const { agent_version: _, ...alike } = names;
  const reach = await range();
  const [found, past, list, kin, sample, raised, choices, wrong] = await Promise.all([
    ask("/api/v1/agents", { ...names, limit: 1 }, view.signal),
    ask("/api/v1/agents/history", { ...names, range: reach }, view.signal).catch((error) => {
      if (error.status === 404) return null;
      throw error;
    }),
    listed(names, view.signal),
    ask("/api/v1/fleet", { ...alike, limit: 1000 }, view.signal),
    newest(key, names, view.signal),
    alerts(view),
    ranges(view),
    ask("/api/v1/problems", {}, view.signal),
  ]);
  const one = found.agents[0];
  if (!one)
    throw Object.assign(new Error("No agent with exactly this name is known. Agents that are silent for long are forgotten."), {
      status: 404,
    });
  view.title([one.agent_name ?? one.service_name ?? "(unnamed agent)", one.agent_version].filter(Boolean).join(" "));
  view.concerns = (changed) => isSame(changed, names);
  const row = kin.agents.find((agent) => isSame(agent, names)) ?? {};
  const windows = Object.keys(one.windows).sort(byWidth);
  const verdict = one.drops.find((drop) => drop.stream === "verdict");
  return [
    el(
      "h1",
      {},
      foreign(agentTitle(one), 120),
      one.agent_version && [" ", foreign(one.agent_version, 40)],
      " ",
      copy(agentTitle(one), "the agent's name"),
    ),
    el("p", { class: "sub" }, foreign(agentDetail(one), 300), one.last_trace_unix_nano && ` · last trace ${ago(one.last_trace_unix_nano)}`),
    alertsOf(one, raised),
    await drops(view, one, names),
    tiles(
      tile(
        "Failing traces",
        percent(row.failure_ratio),
        `of the last ${counted(row.window_traces ?? 0, "trace")}; ${verdict?.against === "objective" ? `objective: at most ${percent(verdict.usual)}` : `usually ${percent(verdict?.usual)}`}`,
        "The same number as in the list of agents",
      ),
      tile(
        "State",
        verdict?.severity === "recovering" ? severity("recovering") : stateOf(row, worstLoop(row, wrong.problems)),
        verdict?.severity === "quiet" && evidence(verdict),
        "Whether it fails more than it usually does or, without a past, more than its objective allows, by all data so far",
      ),
      tile(
        "Sessions looping",
        row.sessions_looping > 0 ? el("span", { class: "mark bad" }, `↻ ${number(row.sessions_looping)}`) : "0",
        `now; ${counted(sum(Object.values(one.loops)), "loop")} found`,
      ),
      tile("Traces", number(one.traces), `in ${counted(one.sessions, "session")}`),
      tile(
        "Spent",
        dollars(one.cost_usd),
        one.tokens.input === null ? null : `${short(one.tokens.input)} tokens in, ${short(one.tokens.output)} out`,
      ),
    ),
    el("div", { class: "headed" }, el("h2", {}, "Over time"), choices),
    charts(past, one.deployments),
    versionTable(one, kin.agents, names, wrong.problems),
    failureTable(one),
    workTables(sample),
    parts(one),
    el("h2", {}, "Sessions"),
    sessionTable(view, list),
    el("h2", {}, "More numbers"),
    fold("agent-scores", false, "Scores by window", () => [
      el(
        "p",
        { class: "note" },
        "Reliability looks at the worst traces: it is 0 once some 15 % of traces fail, even if that is usual for the agent. Whether the agent got worse depends on the share of failing traces.",
      ),
      windowTable(one, windows),
      signalTable(one, windows),
    ]),
    successTable(one),
    aurocTable(one),
    runTable(one),
  ];
}

/** The work of the agents below it, and their share of its usage: of dollars if they are known, else of tokens. */
function parts(one) {
  if (one.sub_agents.length === 0) return null;
  const dollarsKnown = one.cost_usd > 0;
  const tokens = (part) => part.input_tokens + part.output_tokens;
  const all = dollarsKnown ? one.cost_usd : (one.tokens.input ?? 0) + (one.tokens.output ?? 0);
  const share = (part) => (all > 0 ? (dollarsKnown ? part.cost_usd : tokens(part)) / all : null);
  return [
    el("h2", {}, "Sub-agents"),
    el(
      "p",
      { class: "note" },
      `What its sub-agents did in done traces; all of it also counts as the agent's own. The share is of the ${dollarsKnown ? "dollars" : "tokens"} that the agent spent.`,
    ),
    table(
      "Sub-agents",
      [
        ["Agent"],
        ["Share", "number"],
        ["Spent", "number"],
        ["Tokens", "number wide"],
        ["Model calls", "number"],
        ["Tool calls", "number wide"],
        ["Failed", "number"],
        ["Loops", "number"],
      ],
      one.sub_agents
        .toSorted((a, b) => (share(b) ?? 0) - (share(a) ?? 0))
        .map((part) =>
          el(
            "tr",
            {},
            el("th", { scope: "row" }, foreign(part.name, 80)),
            el("td", { class: "number" }, percent(share(part))),
            el("td", { class: "number" }, dollars(part.cost_usd)),
            el("td", { class: "number wide" }, number(tokens(part))),
            el("td", { class: "number" }, number(part.model_calls)),
            el("td", { class: "number wide" }, number(part.tool_calls)),
            el("td", { class: "number" }, number(part.errors)),
            el("td", { class: "number" }, number(part.loops)),
          ),
        ),
    ),
  ];
}

const evidence = ({ evidence: found }) =>
  found < 0.1 ? "no sign of a drop" : `${percent(Math.min(1, found))} of the evidence that raises an alert`;
const sum = (values) => values.reduce((all, value) => all + value, 0);
const short = (value) => (value === null ? "–" : value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 }));

/** The newest sessions of an agent in full, not requested too often. */
async function newest(key, names, signal) {
  if (sampled.key !== key || Date.now() - sampled.at > STALE_MS) {
    const { sessions } = await ask("/api/v1/sessions", { ...names, sort: "recent", limit: SAMPLE }, signal);
    sampled = { key, at: Date.now(), sessions };
  }
  return sampled.sessions;
}

/** 5m, 1h, 24h, then last_50. */
function byWidth(a, b) {
  const width = (name) => (name.startsWith("last_") ? Infinity : parseFloat(name) * ({ s: 1, m: 60, h: 3600, d: 86400 }[name.at(-1)] ?? 1));
  return width(a) - width(b) || (a < b ? -1 : 1);
}

function charts(past, deployments) {
  if (!past || past.unix_nano.length < 2)
    return el("p", { class: "empty" }, "The charts begin with the second point; the daemon records one every few seconds.");
  const columns = past.failure_ratio;
  const last = Object.keys(columns).find((name) => name.startsWith("last_"));
  const others = Object.keys(columns)
    .filter((name) => name !== last && columns[name].some((value) => value !== null))
    .sort(byWidth)
    .slice(0, 1);
  const lines = [last, ...others].filter(Boolean).map((name) => [name.replace("last_", "last ").replace(/^(\d)/, "in $1"), columns[name]]);
  const times = past.unix_nano,
    step = past.step_seconds;
  const first = Number(BigInt(times[0]) / 1000000n);
  const announced = new Set(deployments.map((one) => one.agent_version));
  const seen = past.new_versions
    .filter((one) => !announced.has(one.agent_version))
    .map(({ agent_version: version, unix_nano: at }) => [at, version ?? "(no version)"]);
  const rolledOut = deployments.map(({ agent_version: version, name, unix_nano: at }) => [at, version || name || "deployment"]);
  const marks = [...seen, ...rolledOut].filter(([at]) => Number(BigInt(at) / 1000000n) >= first);
  const newMarks = marks.toSorted(([one], [other]) => (BigInt(other) > BigInt(one) ? 1 : -1)).slice(0, MARKS);
  return [
    el(
      "div",
      { class: "charts" },
      chart("Share of failing traces; shaded while it fails more than usual", times, [...lines, ["usual", past.usual]], {
        step,
        low: 0,
        share: true,
        states: past.state,
        marks,
      }),
      chart(
        "Sessions",
        times,
        [
          ["open", past.sessions_active],
          ["looping", past.sessions_looping],
        ],
        { step, marks },
      ),
      chart("Traces an hour", times, [["traces", hourly(times, past.traces)]], { step, marks }),
      past.cost_usd.some((value) => value !== null) &&
        chart("Dollars an hour", times, [["dollars", hourly(times, past.cost_usd)]], { step, unit: "$", marks }),
    ),
    marks.length > 0 &&
      el(
        "p",
        { class: "note" },
        "Dashed vertical lines: ",
        newMarks.map(([at, version], place) => [place > 0 && ", ", foreign(version, 30), " since ", when(at)]),
        marks.length > newMarks.length && ` and ${number(marks.length - newMarks.length)} earlier ones`,
        ".",
      ),
    deploymentList(deployments),
  ];
}

/** The reported deployments; the charts have a line at each. */
function deploymentList(deployments) {
  if (deployments.length === 0) return null;
  const one = ({ unix_nano, agent_version, name, accepted }) =>
    el(
      "li",
      {},
      when(unix_nano),
      " ",
      agent_version && ["version ", foreign(agent_version, 40), " "],
      name && foreign(name, 80),
      accepted && el("span", { class: "note" }, " accepted as the usual level"),
    );
  return fold("deployments", true, `Deployments (${number(deployments.length)})`, () => el("ul", {}, deployments.map(one)));
}

/** How fast a counter rose, per hour, over a twentieth of the range; null where it restarted. */
function hourly(times, values) {
  const apart = Math.max(1, Math.round(values.length / 20));
  return values.map((value, at) => {
    const from = at - apart;
    if (from < 0 || value === null || values[from] === null || value < values[from]) return null;
    return (3600 * (value - values[from])) / seconds(times[from], times[at]);
  });
}

/** This version, and the other versions of its agent beside it, the newest first. */
function versionTable(one, kin, names, problems) {
  const others = kin.filter((agent) =>
    ["service_name", "agent_name", "environment", "tenant"].every((name) => (agent[name] ?? "") === names[name]),
  );
  if (others.length < 2) return null;
  const last = (agent) => BigInt(agent.last_trace_unix_nano ?? 0);
  others.sort((a, b) => (last(b) > last(a) ? 1 : last(b) < last(a) ? -1 : byVersion(b, a)));
  const rank = (agent) => (isSame(agent, names) ? 0 : 1);
  const shown = others.toSorted((a, b) => rank(a) - rank(b)).slice(0, VERSIONS);
  const line = (title, of, tip = null) =>
    el(
      "tr",
      {},
      el("th", { scope: "row", title: tip }, title),
      shown.map((agent) => el("td", { class: isSame(agent, names) ? "number this" : "number" }, of(agent))),
    );
  const difference = (agent) => {
    const found = one.versions.find((version) => version.baseline === (agent.agent_version ?? ""));
    if (isSame(agent, names)) return "this one";
    if (!found) return "–";
    const own = [foreign(one.agent_version ?? "this one", 30), " is "];
    return !found.differs
      ? "not certain yet"
      : found.estimate < 0
        ? el("span", { class: "mark bad" }, "✗ ", own, "worse")
        : el("span", { class: "mark good" }, "✓ ", own, "better");
  };
  return [
    el("h2", {}, "Versions"),
    table(
      "Versions side by side",
      [
        ["Version"],
        ...shown.map((agent) => [el("a", { href: agentLink(agent) }, foreign(agent.agent_version ?? "(none sent)", 40)), "number"]),
      ],
      [
        line("State", (agent) => stateOf(agent, worstLoop(agent, problems))),
        line("Failing traces", (agent) => percent(agent.failure_ratio), "Of the last 50 at most"),
        line("Usually", usual, "In brackets the objective, while there is no past yet"),
        line("Failing, over time", (agent) => sparkline(agent.spark)),
        line("Compared", difference, "At 95 % confidence, valid whenever you look"),
        line("Dollars a trace", (agent) =>
          agent.cost_usd === null || !agent.traces ? "–" : `$${(agent.cost_usd / agent.traces).toFixed(4)}`,
        ),
        line("Loops found", (agent) => number(agent.loops)),
        line("Traces", (agent) => number(agent.traces)),
        line("Last trace", (agent) => (agent.last_trace_unix_nano ? ago(agent.last_trace_unix_nano) : "–")),
      ],
    ),
    others.length > shown.length &&
      el("p", { class: "note" }, `This one and the newest ${number(shown.length - 1)} of ${number(others.length - 1)} others.`),
  ];
}

/** Signals by the share of traces that fail by them. */
function failureTable(one) {
  const found = Object.entries(one.verdicts ?? {})
    .filter(([, counts]) => counts.pass + counts.fail > 0)
    .map(([name, counts]) => [name, counts, counts.fail / (counts.pass + counts.fail)]);
  if (found.length === 0) return null;
  const traces = Math.max(...found.map(([, counts]) => counts.pass + counts.fail));
  const bad = found.filter(([, counts]) => counts.fail > 0);
  if (bad.length === 0)
    return [el("h2", {}, "Why traces fail"), el("p", { class: "note" }, `None of its ${number(traces)} traces failed by any signal.`)];
  bad.sort((a, b) => (b[0] === "trace_risk") - (a[0] === "trace_risk") || b[2] - a[2]);
  const rest = found.filter(([, counts]) => counts.fail === 0).map(([name]) => name);
  return [
    el("h2", {}, "Why traces fail"),
    el(
      "p",
      { class: "note" },
      "Of all done traces since the daemon started, the share that fails by each signal.",
      rest.length > 0 && ` None fails by ${rest.join(", ")}.`,
    ),
    table(
      "Signals by share of failing traces",
      [["Signal"], ["Share", "bar-cell wide"], ["Failing", "number"], ["Traces", "number"]],
      bad.map(([name, counts, share]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name === "trace_risk" ? "Any of them" : foreign(name, 60)),
          el("td", { class: "wide" }, bar(share)),
          el("td", { class: "number" }, percent(share)),
          el("td", { class: "number" }, `${number(counts.fail)} of ${number(counts.pass + counts.fail)}`),
        ),
      ),
    ),
  ];
}

function bar(share) {
  const fill = el("div", { class: "fill" });
  fill.style.width = `${100 * share}%`;
  return el("div", { class: "track", "aria-hidden": "true" }, fill);
}

/** Tools and models, over the newest sessions. */
function workTables(sessions) {
  const traces = sessions.flatMap((session) => session.traces);
  const tools = new Map(),
    models = new Map();
  const entry = (map, name, make) => {
    if (!map.has(name)) map.set(name, make());
    return map.get(name);
  };
  for (const trace of traces) {
    for (const tool of trace.tools) {
      const counts = entry(tools, tool.name ?? "(unknown)", () => ({ calls: 0, failed: 0, seconds: 0 }));
      counts.calls += 1;
      counts.failed += tool.error ? 1 : 0;
      counts.seconds += Math.max(0, seconds(tool.start_unix_nano, tool.end_unix_nano));
    }
    const steps = trace.steps.filter((step) => step.kind === "model");
    const add = (name, calls, lasting, tokens, cost) => {
      // A value that was not sent stays unknown.
      const plus = (sum, more) => ((more ?? null) === null ? sum : (sum ?? 0) + more);
      const all = entry(models, name, () => ({ calls: 0, seconds: 0, input: null, output: null, cost: null }));
      all.calls += calls;
      all.seconds += lasting;
      all.input = plus(all.input, tokens.input);
      all.output = plus(all.output, tokens.output);
      all.cost = plus(all.cost, cost);
    };
    if (steps.length > 0)
      steps.forEach((step) =>
        add(step.name ?? "(unknown)", 1, seconds(step.start_unix_nano, step.end_unix_nano), step.tokens, step.cost_usd),
      );
    else if (trace.llm_calls > 0)
      add(trace.models.join(", ") || "(unknown)", trace.llm_calls, trace.model_seconds, trace.tokens, trace.cost_usd);
  }
  if (tools.size + models.size === 0) return null;
  const note = el(
    "p",
    { class: "note" },
    sessions.length === 1 ? "In its newest session." : `In its newest ${number(sessions.length)} sessions.`,
  );
  return [
    el("h2", {}, "What it does"),
    note,
    el(
      "div",
      { class: "pair" },
      tools.size > 0 &&
        table(
          "Tools",
          [["Tool"], ["Calls", "number"], ["Failed", "number"], ["Mean", "number", "Mean duration of a call"]],
          [...tools]
            .sort(([, a], [, b]) => b.failed - a.failed || b.calls - a.calls)
            .slice(0, 20)
            .map(([name, counts]) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, foreign(name, 60)),
                el("td", { class: "number" }, number(counts.calls)),
                el("td", { class: "number" }, counts.failed ? `${number(counts.failed)} (${percent(counts.failed / counts.calls)})` : "0"),
                el("td", { class: "number" }, time(counts.seconds / counts.calls)),
              ),
            ),
        ),
      models.size > 0 &&
        table(
          "Models",
          [
            ["Model"],
            ["Calls", "number"],
            ["Tokens in / out", "number wide"],
            ["Mean", "number", "Mean duration of a call"],
            ["Spent", "number"],
          ],
          [...models]
            .sort(([, a], [, b]) => (b.cost ?? 0) - (a.cost ?? 0))
            .slice(0, 20)
            .map(([name, all]) =>
              el(
                "tr",
                {},
                el("th", { scope: "row" }, foreign(name, 80)),
                el("td", { class: "number" }, number(all.calls)),
                el("td", { class: "number wide" }, `${short(all.input)} / ${short(all.output)}`),
                el("td", { class: "number" }, time(all.seconds / all.calls)),
                el("td", { class: "number" }, dollars(all.cost)),
              ),
            ),
        ),
    ),
  ];
}

function windowTable(one, names) {
  if (names.length === 0) return el("p", { class: "empty" }, "No trace is done yet.");
  return table(
    "Scores by window",
    [
      ["Window"],
      ["Failing traces", "number"],
      ["Reliability", "number"],
      ["Consistency", "number"],
      ["Greatest risk", "number"],
      ["Traces", "number"],
      ["Sessions", "number"],
    ],
    names.map((name) => {
      const window = one.windows[name];
      return el(
        "tr",
        {},
        el("th", { scope: "row" }, name.replace("last_", "last ")),
        el("td", { class: "number" }, percent(window.failure_ratio)),
        el("td", { class: "number" }, score(window.reliability)),
        el("td", { class: "number" }, score(window.consistency)),
        el("td", { class: "number" }, plain(window.max_risk)),
        el("td", { class: "number" }, number(window.traces)),
        el("td", { class: "number" }, name.startsWith("last_") ? "–" : number(window.sessions)),
      );
    }),
  );
}

function signalTable(one, every) {
  const names = every.filter((name) => Object.keys(one.windows[name].signals).length > 0);
  const all = [...new Set(names.flatMap((name) => Object.keys(one.windows[name].signals)))].sort();
  if (all.length === 0) return null;
  return [
    el("h3", {}, "Means of signals"),
    table(
      "Means of signals by window",
      [["Signal"], ...names.map((name) => [name.replace("last_", "last "), "number"])],
      all.map((signal) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, foreign(signal, 60)),
          names.map((name) => el("td", { class: "number" }, score(one.windows[name].signals[signal]))),
        ),
      ),
    ),
  ];
}

/** The share of sessions that succeed, where outcomes are known. */
function successTable(one) {
  const names = Object.keys(one.success).sort((a, b) => (a === "all" ? 1 : b === "all" ? -1 : byWidth(a, b)));
  if (names.length === 0) return null;
  return fold("agent-success", false, "Sessions that succeed", () => [
    el(
      "p",
      { class: "note" },
      "Estimated from the sessions whose outcome is known and from the effort of all sessions. If outcomes were reported only for hand-picked sessions, the estimate is biased towards these.",
    ),
    table(
      "Sessions that succeed",
      [
        ["Window"],
        ["Succeed", "number"],
        ["95 % interval from", "number"],
        ["to", "number"],
        ["Outcomes known", "number"],
        ["of them reported", "number wide", "Not from the judge's random sample: how these sessions were chosen is unknown"],
        ["Sessions", "number"],
      ],
      names.map((name) => {
        const success = one.success[name];
        return el(
          "tr",
          {},
          el("th", { scope: "row" }, name),
          ...[success.estimate, success.lower, success.upper].map((share) => el("td", { class: "number" }, percent(share))),
          el("td", { class: "number" }, number(success.told)),
          el("td", { class: "number wide" }, number(success.selected)),
          el("td", { class: "number" }, number(success.sessions)),
        );
      }),
    ),
  ]);
}

/** How well each number separates failed sessions from others, best first. */
function aurocTable(one) {
  const found = Object.entries(one.signal_auroc).sort(([, a], [, b]) => b.auroc - a.auroc);
  if (found.length === 0) return null;
  const error = one.calibration;
  return fold("agent-auroc", false, "Which numbers predict failed sessions", () => [
    el(
      "p",
      { class: "note" },
      "How often a failed session has a greater risk than a successful one: 1 is always, 0.5 is chance." +
        (error
          ? ` Predicted failures are off by ${error.brier.toFixed(2)} (mean square error; always predicting the share that fails is off by ${error.brier_of_base.toFixed(2)}).`
          : ""),
    ),
    table(
      "Which numbers predict failed sessions",
      [["Number"], ["AUROC", "number"], ["Sessions", "number"]],
      found.map(([name, { auroc, sessions }]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, foreign(name, 60)),
          el("td", { class: "number" }, plain(auroc)),
          el("td", { class: "number" }, number(sessions)),
        ),
      ),
    ),
  ]);
}

function runTable(one) {
  const scores = Object.entries(one.scores).filter(([, value]) => typeof value === "number");
  if (scores.length === 0) return null;
  return fold("agent-runs", false, "Scores over runs of tasks", () =>
    table(
      "Scores over runs",
      [["Score"], ["Value", "number"], ["Over", "number"]],
      scores.map(([name, value]) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, name.replaceAll("_", " ")),
          el("td", { class: "number" }, name.startsWith("ars") ? value.toFixed(1) : score(value)),
          el("td", { class: "number" }, number(one.score_samples[name])),
        ),
      ),
    ),
  );
}
