// One session, trace by trace, and why a trace has its score.
import { agentDetail, agentLink, agentTitle, ask, dollars, el, foreign, isSame, lasted, number, plain, score, sessionLink, severity, table, tile, tiles, traceLink, when } from "./dom.js";

/** Traces shown before one asks for more. */
const STEP = 50;
/** Calls of a trace that are shown. */
const CALLS = 60;
const state = { id: "", scope: null, tenant: "", shown: STEP, explained: new Map() };

/** What is shown of one session does not stay for another one. */
function begin(id, scope, tenant) {
  if (state.id !== id || state.scope !== scope || state.tenant !== tenant) Object.assign(state, { id, scope, tenant, shown: STEP, explained: new Map() });
}

export async function session(view, { id, scope, tenant }) {
  const one = await ask(`/api/v1/sessions/${encodeURIComponent(id)}`, { scope, tenant }, view.signal).catch((error) => error);
  if (one.scopes) return several(view, id, one.scopes, tenant);
  if (one instanceof Error) throw one;
  begin(id, one.scope, tenant);
  view.title(`Session ${id.slice(0, 40)}`);
  const names = Object.fromEntries(Object.entries(one.agent).map(([name, value]) => [name, value ?? ""]));
  view.concerns = (changed) => isSame(changed, names);
  const loops = one.traces.flatMap((trace) => trace.loops);
  const limits = [...(one.limits ?? []).map((limit) => ({ ...limit, trace: null })), ...one.traces.flatMap((trace) => (trace.limits ?? []).map((limit) => ({ ...limit, trace: trace.trace_id })))];
  const cost = one.traces.map((trace) => trace.cost_usd).filter((value) => value !== null);
  const shown = one.traces.slice(0, state.shown);
  return [
    el("h1", {}, "Session ", foreign(one.session_id, 120)),
    el("p", { class: "sub" }, "of ", el("a", { href: agentLink(one.agent) }, foreign(agentTitle(one.agent), 80)), " · ", foreign(agentDetail(one.agent), 120),
      " · named by ", foreign(one.session_source, 60), one.scope && [" · scope ", foreign(one.scope, 60)]),
    tiles(
      tile("Reliability", score(one.reliability), one.band), tile("Consistency", score(one.consistency)),
      one.traces_judged > 0 && tile("Judged reliability", score(one.judged_reliability), `over ${number(one.traces_judged)} judged traces`),
      one.prediction && tile("Chance that it failed", `${Math.round(100 * one.predicted_failure)} %`, effort(one)),
      tile("Traces", number(one.total_traces), one.flagged.length ? `⚑ ${number(one.flagged.length)} flagged` : "none flagged"),
      tile("Loops", number(loops.length), [...new Set(loops.map((loop) => loop.kind))].join(", ")),
      tile("Spent", cost.length ? dollars(cost.reduce((sum, value) => sum + value, 0)) : "–")),
    loops.length > 0 && [el("h2", {}, "Loops"), loopTable(loops)],
    limits.length > 0 && [el("h2", {}, "Over a limit"), limitTable(limits)],
    el("h2", {}, "Traces"),
    el("p", { class: "note" }, "In order. Bars are risk by signal, weight × (1 − score): striped over 0.5. Tool calls inside a loop have a thick border and ↻; failed ones are dashed and have ✗."),
    shown.map((trace, at) => turn(view, one, trace, at)),
    one.traces.length > shown.length && el("div", { class: "bar" },
      el("button", { type: "button", onclick: () => { state.shown += STEP; view.again(); } }, `Show more of ${number(one.traces.length)}`)),
  ];
}

/** The sessions of one id, by their scopes. */
function several(view, id, scopes, tenant) {
  view.title(`Sessions ${id.slice(0, 40)}`);
  const link = (scope) => `#/session/${encodeURIComponent(id)}?${new URLSearchParams({ scope, ...(tenant && { tenant }) })}`;
  return [el("h1", {}, "Sessions ", foreign(id, 120)), el("p", { class: "sub" }, "Several agents or services have a session of this id."),
    el("ul", {}, scopes.map((scope) => el("li", {}, el("a", { href: link(scope), "data-row": true }, scope ? foreign(scope, 60) : "without a scope"))))];
}

/** The measure in which it took most beside the agent's other sessions, and how many outcomes the chance is learned from. */
function effort(one) {
  const [name, share] = Object.entries(one.prediction.more_than).sort(([, a], [, b]) => b - a)[0];
  const known = one.prediction.outcomes_known;
  return `more ${name.replace("_", " ")} than ${Math.round(100 * share)} % of its agent's sessions; ${known ? `${number(known)} outcomes known` : "no outcome known"}`;
}

/** Finds the session of a trace and goes there. */
export async function trace(view, id, tenant) {
  const found = await ask(`/api/v1/traces/${encodeURIComponent(id)}`, { tenant }, view.signal);
  view.title(`Trace ${id.slice(0, 40)}`);
  begin(found.session_id, found.scope, tenant);
  return [el("h1", {}, "Trace ", foreign(found.trace.trace_id)),
    el("p", { class: "sub" }, "of session ", el("a", { href: sessionLink(found, tenant), "data-row": true }, foreign(found.session_id, 120))),
    turn(view, { flagged: found.now.trace_risk > 0.5 ? [found.trace.trace_id] : [], session_id: found.session_id, scope: found.scope }, found.trace, null, found)];
}

function loopTable(loops) {
  return table("Loops", [["Kind"], ["Severity"], ["Tools"], ["Times", "number"], ["Spent inside", "number"], ["Seen by", "wide"]],
    loops.map((loop) => el("tr", {}, el("th", { scope: "row" }, `↻ ${loop.kind}`), el("td", {}, severity(loop.severity)),
      el("td", { class: "tools" }, loop.tools.length ? loop.tools.map((tool, at) => [at > 0 && " → ", foreign(tool, 60)]) : "–"),
      el("td", { class: "number" }, number(loop.count)), el("td", { class: "number" }, dollars(loop.cost_usd)), el("td", { class: "wide" }, SEEN_BY[loop.evidence] ?? loop.evidence))));
}

function limitTable(limits) {
  const amount = ({ limit }, value) => limit === "cost_usd" ? dollars(value) : limit === "duration" ? `${number(Math.round(value))} s` : number(value);
  return table("Over a limit", [["Limit"], ["Of"], ["Used", "number"], ["Allowed", "number"]],
    limits.map((found) => el("tr", {}, el("th", { scope: "row" }, `▲ ${found.limit.replaceAll("_", " ")}`),
      el("td", {}, found.trace ? el("a", { href: traceLink(found.trace, state.tenant) }, `trace ${found.trace.slice(0, 8)}…`) : "the session"),
      el("td", { class: "number" }, amount(found, found.used)), el("td", { class: "number" }, amount(found, found.most)))));
}

const SEEN_BY = { names: "names alone: moves no score", results: "names, results", arguments: "names, arguments", full: "names, arguments, results", text: "texts" };

function turn(view, one, trace, at, explanation = state.explained.get(trace.trace_id)) {
  const flagged = one.flagged.includes(trace.trace_id);
  const id = `trace-${trace.trace_id}`;
  const why = el("div", { id: `${id}-why` });
  const button = el("button", { type: "button", "aria-expanded": String(Boolean(explanation)), "aria-controls": why.id, "data-row": true }, "Why this score?");
  button.addEventListener("click", async () => {
    if (why.firstChild) { why.replaceChildren(); state.explained.delete(trace.trace_id); button.setAttribute("aria-expanded", "false"); return; }
    try {
      // Not the view's signal: a change that comes meanwhile must not lose the answer.
      const { tenant } = state;
      const found = await ask(`/api/v1/traces/${trace.trace_id}`, { session: one.session_id, scope: one.scope, tenant });
      if (state.id !== one.session_id || state.scope !== one.scope || state.tenant !== tenant) return;
      state.explained.set(trace.trace_id, found);
      if (!why.isConnected) { view.again(); return; }
      why.replaceChildren(...explained(found));
      button.setAttribute("aria-expanded", "true");
    } catch (error) {
      why.replaceChildren(el("p", { class: "empty", role: "alert" }, error.message));
    }
  });
  if (explanation) why.append(...explained(explanation));
  return el("article", { class: `turn${flagged ? " flagged" : ""}`, "aria-labelledby": id },
    el("header", {}, el("h3", { id }, flagged && "⚑ ", at === null ? "Trace" : `Trace ${at + 1}`, flagged && el("span", { class: "hidden" }, " flagged")), el("code", {}, trace.trace_id),
      el("span", {}, when(trace.start_unix_nano)), el("span", {}, lasted(trace.start_unix_nano, trace.end_unix_nano)),
      trace.error && el("span", { class: "mark bad" }, "✗ error"), !trace.complete && el("span", { class: "mark fair" }, "! partial"),
      (trace.limits ?? []).map((found) => el("span", { class: "mark bad" }, `▲ over its limit of ${found.limit.replaceAll("_", " ")}`)),
      el("span", {}, `${number(trace.llm_calls)} model ${trace.llm_calls === 1 ? "call" : "calls"}`), trace.cost_usd !== null && el("span", {}, dollars(trace.cost_usd))),
    risks(trace), strip(trace), texts(trace),
    el("div", { class: "bar" }, button), why);
}

function risks(trace) {
  const entries = Object.entries(trace.risks).sort((a, b) => b[1] - a[1]);
  if (entries.length === 0) return el("p", { class: "note" }, "No signal with a weight was measured.");
  return el("div", { class: "risks" }, entries.map(([name, risk]) => {
    const fill = el("div", { class: `fill${risk > 0.5 ? " over" : ""}` });
    fill.style.width = `${Math.min(100, risk * 100)}%`;
    const signal = trace.signals[name];
    return [el("span", { class: "name" }, foreign(name, 60)),
      el("span", {}, `${plain(risk)}${risk > 0.5 ? " ⚑" : ""} `, el("small", { class: "none" }, signal ? `score ${plain(signal.score)}, ${signal.source}` : "")),
      el("div", { class: "track", "aria-hidden": "true" }, fill)];
  }));
}

function strip(trace) {
  if (trace.tools.length === 0) return null;
  const looped = new Set(trace.loops.flatMap((loop) => stretch(trace.tools, loop)));
  const calls = folded(trace.tools, (at) => looped.has(at));
  const rest = calls.length - CALLS;
  return el("ol", { class: "strip", "aria-label": "Tool calls in order" }, calls.slice(0, CALLS), rest > 0 && el("li", {}, `and ${number(rest)} more`));
}

/** Calls in order; equal ones that follow each other are one item that says how many. */
function folded(tools, isInside) {
  const items = [];
  tools.forEach((tool, at) => {
    const item = { tool, inside: isInside(at), count: 1, key: JSON.stringify([tool.name, tool.arguments, tool.error, isInside(at)]) };
    if (items.at(-1)?.key === item.key) items.at(-1).count += 1;
    else items.push(item);
  });
  return items.map(({ tool, inside, count }) => el("li", { class: [inside && "looped", tool.error && "failed"].filter(Boolean).join(" ") || null },
    inside && "↻ ", tool.error && "✗ ", foreign(tool.name ?? "(unknown tool)", 60),
    tool.arguments !== null && el("span", { class: "args" }, " ", foreign(JSON.stringify(tool.arguments), 60)),
    count > 1 && el("strong", {}, ` ×${number(count)}`),
    el("span", { class: "hidden" }, inside && " in a loop", tool.error && " failed")));
}

/** A line of evidence; a trace that it names is a link. */
function linked(line) {
  return line.split(/\b([0-9a-f]{32})\b/).map((part, at) => at % 2 ? el("a", { href: traceLink(part, state.tenant), title: part }, `${part.slice(0, 8)}…`) : foreign(part, 300));
}

/** Positions of the calls of a loop: the longest unbroken stretch of its tools; over several traces, all of them. */
function stretch(tools, loop) {
  const stretches = [[]];
  tools.forEach((tool, at) => {
    if (loop.tools.includes(tool.name)) stretches.at(-1).push(at);
    else if (stretches.at(-1).length) stretches.push([]);
  });
  if (loop.trace_ids.length > 1) return stretches.flat();
  return stretches.reduce((longest, other) => other.length > longest.length ? other : longest);
}

function texts(trace) {
  if (trace.content !== "kept") return null;
  const box = (title, text) => text === null ? null : el("div", {}, el("h4", { class: "hidden" }, title), el("small", { class: "none", "aria-hidden": "true" }, title), el("pre", { class: "text", dir: "auto", tabindex: "0", role: "region", "aria-label": title }, text.slice(0, 20000)));
  return el("div", { class: "texts" }, box("Input", trace.input), box("Output", trace.output));
}

function explained(found) {
  const outlook = (without) => [el("td", { class: "number" }, plain(without.trace_risk)), el("td", { class: "number" }, plain(without.session_reliability)), el("td", { class: "number wide" }, plain(without.session_consistency))];
  const columns = [["Without it: risk", "number"], ["session reliability", "number"], ["session consistency", "number wide"]];
  return [
    el("p", { class: "reason" }, found.reason, "."),
    el("p", { class: "note" }, `As it is: risk ${plain(found.now.trace_risk)}, session reliability ${plain(found.now.session_reliability)}, consistency ${plain(found.now.session_consistency)}.`),
    table("Signals of this trace", [["Signal"], ["Score", "number"], ["Weight", "number wide"], ["Risk", "number"], ["Source"], ["Evidence"], ...columns],
      found.signals.map((signal) => el("tr", {}, el("th", { scope: "row" }, signal.decides && "▸ ", foreign(signal.name, 60), signal.decides && el("small", {}, "decides")),
        el("td", { class: "number" }, score(signal.score)), el("td", { class: "number wide" }, plain(signal.weight)), el("td", { class: "number" }, plain(signal.risk)),
        el("td", {}, signal.source), el("td", { class: "evidence" }, el("ul", { class: "plain" }, signal.evidence.map((line) => el("li", {}, linked(line))))), outlook(signal.without)))),
    found.loops.map((loop) => [
      el("h4", {}, "↻ ", loop.kind, ", ", number(loop.count), " times ", severity(loop.severity)),
      el("p", { class: "note" }, `Without it: risk ${plain(loop.without.trace_risk)}, session reliability ${plain(loop.without.session_reliability)}, consistency ${plain(loop.without.session_consistency)}.`),
      loop.calls.length > 0 && el("ol", { class: "strip", "aria-label": "Calls of the loop" }, folded(loop.calls, () => false))]),
  ].flat(Infinity).filter(Boolean);
}
