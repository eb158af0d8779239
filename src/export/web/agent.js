// One agent: drops, scores over windows and time, signals, versions, sessions.
import { agentDetail, agentTitle, ask, dollars, el, exactly, foreign, isSame, lasted, looping, number, pager, percent, plain, score, sessionLink, table, tile, tiles, when } from "./dom.js";
import { chart } from "./chart.js";
import { drops } from "./drops.js";

const PAGE = 25;
const SORTS = [["reliability", "Worst score"], ["loops", "Most loops"], ["cost", "Costliest"], ["recent", "Newest"]];
const state = { key: "", sort: "reliability", offset: 0 };

export async function agent(view, query) {
  const names = exactly(query);
  const key = JSON.stringify(names);
  if (state.key !== key) Object.assign(state, { key, offset: 0 });
  const [found, past, list] = await Promise.all([
    ask("/api/v1/agents", { ...names, limit: 1 }, view.signal),
    ask("/api/v1/agents/history", names, view.signal).catch((error) => { if (error.status === 404) return null; throw error; }),
    ask("/api/v1/sessions", { ...names, detail: "row", sort: state.sort, limit: PAGE, offset: state.offset }, view.signal),
  ]);
  const one = found.agents[0];
  if (!one) throw Object.assign(new Error("No agent of exactly this name is held; it may have gone quiet."), { status: 404 });
  view.title(agentTitle(one));
  view.concerns = (changed) => isSame(changed, names);
  const windowNames = Object.keys(one.windows).sort(byWidth);
  // The newest share that there is.
  const newest = windowNames.find((name) => one.windows[name].failure_ratio !== null);
  const usual = one.drops.find((drop) => drop.stream === "verdict")?.usual;
  return [
    el("h1", {}, foreign(agentTitle(one), 120)),
    el("p", { class: "sub" }, foreign(agentDetail(one), 300)),
    drops(view, one, names),
    tiles(
      tile("Failing traces", percent(newest && one.windows[newest].failure_ratio), newest && `${newest}; usual: ${percent(usual)}`),
      tile("Reliability", score(one.reliability), `over all ${number(one.traces_evaluated)} traces`),
      tile("Consistency", score(one.consistency)),
      one.traces_stalled > 0 && tile("Stalled", el("span", { class: "mark bad" }, `✗ ${number(one.traces_stalled)}`), "open traces, silent for longer than is usual"),
      tile("Loops found", number(Object.values(one.loops).reduce((sum, count) => sum + count, 0)), Object.entries(one.loops).map(([kind, count]) => `${kind} ${count}`).join(", ")),
      tile("Spent", dollars(one.cost_usd), one.tokens.input === null ? null : `${number(one.tokens.input)} in, ${number(one.tokens.output)} out`)),
    el("h2", {}, "Over time"),
    over(past),
    el("h2", {}, "By window"),
    el("p", { class: "note" }, "Reliability is about the worst traces: it reads 0 from some 15 % of failing traces on. Whether the agent drops goes by the share of failing traces."),
    windows(one, windowNames),
    succeeded(one),
    el("h2", {}, "Signals by window"),
    signals(one, windowNames),
    told(one),
    versions(one),
    parts(one),
    runs(one),
    el("h2", {}, "Sessions"),
    sessions(view, list),
  ];
}

/** What the agents below it did, and their share of what it spent: of dollars where they are known, else of tokens. */
function parts(one) {
  if (one.sub_agents.length === 0) return null;
  const dollarsKnown = one.cost_usd > 0;
  const tokens = (part) => part.input_tokens + part.output_tokens;
  const all = dollarsKnown ? one.cost_usd : (one.tokens.input ?? 0) + (one.tokens.output ?? 0);
  const share = (part) => all > 0 ? (dollarsKnown ? part.cost_usd : tokens(part)) / all : null;
  return [el("h2", {}, "Sub-agents"),
    el("p", { class: "note" }, `What the agents below it did, of done traces; all of it counts as its own, too. The share is that of its ${dollarsKnown ? "dollars" : "tokens"}.`),
    table("Sub-agents", [["Agent"], ["Share", "number"], ["Spent", "number"], ["Tokens", "number wide"], ["Model calls", "number"], ["Tool calls", "number wide"], ["Failed", "number"], ["Loops", "number"]],
      one.sub_agents.toSorted((a, b) => (share(b) ?? 0) - (share(a) ?? 0)).map((part) => el("tr", {}, el("th", { scope: "row" }, foreign(part.name, 80)),
        el("td", { class: "number" }, percent(share(part))), el("td", { class: "number" }, dollars(part.cost_usd)), el("td", { class: "number wide" }, number(tokens(part))),
        el("td", { class: "number" }, number(part.model_calls)), el("td", { class: "number wide" }, number(part.tool_calls)),
        el("td", { class: "number" }, number(part.errors)), el("td", { class: "number" }, number(part.loops)))))];
}

/** 5m, 1h, 24h, then last_50. */
function byWidth(a, b) {
  const width = (name) => name.startsWith("last_") ? Infinity : parseFloat(name) * ({ s: 1, m: 60, h: 3600, d: 86400 }[name.at(-1)] ?? 1);
  return width(a) - width(b) || (a < b ? -1 : 1);
}

function over(past) {
  if (!past || past.unix_nano.length < 2) return el("p", { class: "empty" }, "The daemon notes a point every few seconds; the lines begin with the second one.");
  const lines = (columns) => Object.keys(columns).sort(byWidth).map((name) => [name, columns[name]]);
  return el("div", { class: "charts" },
    chart("Reliability by window", past.unix_nano, lines(past.reliability), { low: 0, high: 1 }),
    chart("Consistency by window", past.unix_nano, lines(past.consistency), { low: 0, high: 1 }),
    chart("Sessions", past.unix_nano, [["open", past.sessions_active], ["looping", past.sessions_looping]]),
    past.cost_usd.some((value) => value !== null) && chart("Dollars spent so far", past.unix_nano, [["dollars", past.cost_usd]], { unit: "$" }));
}

function windows(one, names) {
  if (names.length === 0) return el("p", { class: "empty" }, "No trace is done yet.");
  return table("Scores by window", [["Window"], ["Failing traces", "number"], ["Reliability", "number"], ["Consistency", "number"], ["Greatest risk", "number"], ["Traces", "number"], ["Sessions", "number"]],
    names.map((name) => {
      const window = one.windows[name];
      return el("tr", {}, el("th", { scope: "row" }, name),
        el("td", { class: "number" }, percent(window.failure_ratio)), el("td", { class: "number" }, score(window.reliability)), el("td", { class: "number" }, score(window.consistency)),
        el("td", { class: "number" }, plain(window.max_risk)), el("td", { class: "number" }, number(window.traces)), el("td", { class: "number" }, name.startsWith("last_") ? "–" : number(window.sessions)));
    }));
}

/** The share of sessions that succeed, where outcomes are known. */
function succeeded(one) {
  const names = Object.keys(one.success).sort((a, b) => a === "all" ? 1 : b === "all" ? -1 : byWidth(a, b));
  if (names.length === 0) return null;
  return [el("h2", {}, "Sessions that succeed"),
    el("p", { class: "note" }, "From the sessions whose outcome is known, and from the effort of all. Nobody knows why just these outcomes were told: if they were chosen, so is the share."),
    table("Sessions that succeed", [["Window"], ["Succeed", "number"], ["95 % from", "number"], ["to", "number"], ["Outcomes known", "number"], ["Sessions", "number"]],
      names.map((name) => {
        const success = one.success[name];
        return el("tr", {}, el("th", { scope: "row" }, name),
          ...[success.estimate, success.lower, success.upper].map((share) => el("td", { class: "number" }, percent(share))),
          ...[success.told, success.sessions].map((count) => el("td", { class: "number" }, number(count))));
      }))];
}

/** How well each number tells failed sessions from others, best first. */
function told(one) {
  const found = Object.entries(one.signal_auroc).sort(([, a], [, b]) => b.auroc - a.auroc);
  if (found.length === 0) return null;
  const error = one.calibration;
  return [el("h2", {}, "What tells its failures"),
    el("p", { class: "note" }, "The chance that of a failed session and one that succeeded the failed one has the greater risk: 1 is always, 0.5 is a coin's."
      + (error ? ` Predicted failures are off by ${error.brier.toFixed(3)} (mean square; the share that fails alone by ${error.brier_of_base.toFixed(3)}).` : "")),
    table("What tells its failures", [["Number"], ["AUROC", "number"], ["Sessions", "number"]],
      found.map(([name, { auroc, sessions }]) => el("tr", {}, el("th", { scope: "row" }, foreign(name, 60)),
        el("td", { class: "number" }, plain(auroc)), el("td", { class: "number" }, number(sessions)))))];
}

/** A heat map whose cells also say their number and their mark. */
function signals(one, every) {
  const names = every.filter((name) => Object.keys(one.windows[name].signals).length > 0);
  const all = [...new Set(names.flatMap((name) => Object.keys(one.windows[name].signals)))].sort();
  if (all.length === 0) return el("p", { class: "empty" }, "No signal was measured yet.");
  return table("Means of signals by window", [["Signal"], ...names.map((name) => [name, "heat"])],
    all.map((signal) => el("tr", {}, el("th", { scope: "row" }, foreign(signal, 60)),
      names.map((name) => el("td", { class: "heat" }, score(one.windows[name].signals[signal]))))));
}

function versions(one) {
  if (one.versions.length === 0) return null;
  return [el("h2", {}, "Compared with earlier versions"), table("Versions compared", [["Earlier version"], ["Difference", "number"], ["95 % from", "number"], ["to", "number"], ["Verdict"]],
    one.versions.map((version) => el("tr", {}, el("th", { scope: "row" }, foreign(version.baseline || "(none sent)", 60)),
      el("td", { class: "number" }, plain(version.estimate)), el("td", { class: "number" }, plain(version.lower)), el("td", { class: "number" }, plain(version.upper)),
      el("td", {}, !version.differs ? "no difference shown" : version.estimate < 0 ? el("span", { class: "mark bad" }, "✗ worse") : el("span", { class: "mark good" }, "✓ better")))))];
}

function runs(one) {
  const scores = Object.entries(one.scores).filter(([, value]) => typeof value === "number");
  if (scores.length === 0) return null;
  return [el("h2", {}, "Scores over runs of tasks"), table("Scores over runs", [["Score"], ["Value", "number"], ["Over", "number"]],
    scores.map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", { class: "number" }, name.startsWith("ars") ? value.toFixed(1) : score(value)), el("td", { class: "number" }, number(one.score_samples[name])))))];
}

function sessions(view, list) {
  const order = (sort) => { Object.assign(state, { sort, offset: 0 }); view.again(); };
  const turn = (offset) => { state.offset = offset; view.again(); };
  const buttons = el("div", { class: "bar", role: "group", "aria-label": "Order of sessions" },
    SORTS.map(([sort, title]) => el("button", { type: "button", "aria-pressed": String(sort === state.sort), onclick: () => order(sort) }, title)));
  if (list.total === 0) return [buttons, el("p", { class: "empty" }, "No session of this agent is held.")];
  return [buttons,
    table("Sessions", [["Session"], ["Reliability", "number"], ["Consistency", "number wide"], ["Loops", "number"], ["Flagged", "number"], ["Traces", "number wide"], ["Spent", "number"], ["Began", "wide"], ["Lasted", "number wide"], ["State", "wide"]],
      list.sessions.map((session) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: sessionLink(session, session.agent.tenant), "data-row": true }, foreign(session.session_id, 60))),
        el("td", { class: "number" }, score(session.reliability)), el("td", { class: "number wide" }, score(session.consistency)),
        el("td", { class: "number" }, looping(session.loops)), el("td", { class: "number" }, session.flagged ? `⚑ ${number(session.flagged)}` : "0"),
        el("td", { class: "number wide" }, number(session.total_traces)), el("td", { class: "number" }, dollars(session.cost_usd)),
        el("td", { class: "wide" }, when(session.start_unix_nano)), el("td", { class: "number wide" }, lasted(session.start_unix_nano, session.end_unix_nano)),
        el("td", { class: "wide" }, session.open ? "open" : "closed")))),
    pager(state.offset, PAGE, list.total, turn)];
}
