// One session: all of its turns on one screen, then turn by turn, and why a turn has its score.
import {
  about,
  agentDetail,
  agentLink,
  agentTitle,
  ask,
  copy,
  counted,
  dollars,
  el,
  firstLetters,
  fold,
  foreign,
  foreignId,
  forgetFolds,
  isSame,
  lasted,
  number,
  outward,
  percent,
  plain,
  score,
  sessionLink,
  severity,
  table,
  tile,
  tiles,
  traceLink,
  unfold,
  when,
} from "./dom.js";
import { limitName, loopName } from "./problems.js";
import { howToKeep, waterfall } from "./timeline.js";

/** Bad turns that are open from the start; the others are a line, and so are this many successive good ones. */
const OPEN = 3,
  ALIKE = 4;
const state = { id: "", scope: null, tenant: "", explained: new Map(), at: -1, stretches: [] };

/** The state of one session is not kept for another one. */
function begin(id, scope, tenant) {
  if (state.id === id && state.scope === scope && state.tenant === tenant) return;
  forgetFolds();
  Object.assign(state, { id, scope, tenant, explained: new Map(), at: -1, stretches: [] });
}

export async function session(view, { id, scope, tenant }) {
  const [one, { trace_link: link }] = await Promise.all([
    ask("/api/v1/session", { id, scope, tenant }, view.signal).catch((error) => error),
    about(),
  ]);
  if (one.scopes) return several(view, id, one.scopes, tenant);
  if (one instanceof Error) throw one;
  begin(id, one.scope, tenant);
  view.title(`Session ${firstLetters(id, 40)}`);
  const names = Object.fromEntries(Object.entries(one.agent).map(([name, value]) => [name, value ?? ""]));
  view.concerns = (changed) => isSame(changed, names);
  const { traces } = one;
  const bad = traces.map((trace, at) => ({ trace, at })).filter(({ trace }) => isBad(one, trace));
  const openFirst = new Set(bad.slice(0, OPEN).map(({ at }) => at));
  if (bad.length === 0 && traces.length > 0) openFirst.add(traces.length - 1);
  const loops = traces.flatMap((trace) => trace.loops);
  const cost = traces.map((trace) => trace.cost_usd).filter((value) => value !== null);
  const end = traces.reduce(
    (last, trace) => (BigInt(trace.end_unix_nano) > BigInt(last) ? trace.end_unix_nano : last),
    traces[0]?.end_unix_nano ?? "0",
  );
  view.next = () => next(view, bad);
  const user = traces.find((trace) => trace.user)?.user;
  const limits = [
    ...(one.limits ?? []).map((limit) => ({ ...limit, trace: null })),
    ...one.traces.flatMap((trace) => (trace.limits ?? []).map((limit) => ({ ...limit, trace: trace.trace_id }))),
  ];
  return [
    el("h1", {}, "Session ", foreign(one.session_id, 120), " ", copy(one.session_id, "the session id")),
    el(
      "p",
      { class: "sub" },
      "of ",
      el("a", { href: agentLink(one.agent) }, foreign(agentTitle(one.agent), 80)),
      " · ",
      foreign(agentDetail(one.agent), 120),
      user && [" · user ", foreign(user, 60)],
      el("span", { title: `Named by ${one.session_source}` }, traces.length > 0 && [" · began ", when(traces[0].start_unix_nano)]),
      one.scope && [" · scope ", foreign(one.scope, 60)],
      one.previous_session_id && [
        " · continues ",
        el("a", { href: sessionLink({ session_id: one.previous_session_id }, tenant) }, foreignId(one.previous_session_id)),
      ],
    ),
    tiles(
      tile(
        "Failing turns",
        one.flagged.length ? el("span", { class: "mark bad" }, `✗ ${number(one.flagged.length)}`) : "0",
        `of ${number(one.total_traces)}`,
      ),
      tile("Loops", number(loops.length), [...new Set(loops.map((loop) => loop.kind.replaceAll("_", " ")))].join(", ")),
      tile(
        "Spent",
        cost.length ? dollars(cost.reduce((sum, value) => sum + value, 0)) : "–",
        loops.some((loop) => loop.cost_usd)
          ? `${dollars(loops.reduce((sum, loop) => sum + (loop.cost_usd ?? 0), 0))} of it in loops`
          : null,
      ),
      tile("Lasted", traces.length ? lasted(traces[0].start_unix_nano, end) : "–"),
      tile("Reliability", score(one.reliability), one.band, "1 is best: 1 minus the risk of its worst turns"),
      one.traces_judged > 0 && tile("Judged reliability", score(one.judged_reliability), `over ${number(one.traces_judged)} judged traces`),
      // Effort is that of done turns: without any it says nothing. With a known outcome there is nothing to predict, and without the outcome of
      // any other run nothing to predict from.
      one.prediction?.outcomes_known > 0 &&
        one.reliability !== null &&
        !traces.some((trace) => isKnown(trace.signals.outcome)) &&
        tile("Chance that it failed", percent(one.predicted_failure), effort(one)),
    ),
    overview(view, one, bad),
    loops.length > 0 && [el("h2", {}, "Loops"), loopTable(view, traces)],
    limits.length > 0 && [el("h2", {}, "Over a limit"), limitTable(limits)],
    el("h2", {}, "Turns"),
    stretches(one, openFirst).map((turns) => {
      const drawn = () => turns.map(({ trace, at }) => turn(view, one, { trace, at }, openFirst.has(at), link));
      return turns.length < ALIKE ? drawn() : fold(`turns-${turns[0].at}`, false, whole(turns), drawn, "turns");
    }),
  ];
}

/** Turns in order; successive good ones are together. */
function stretches(one, open) {
  const found = [];
  let good = false;
  one.traces.forEach((trace, at) => {
    const isGood = !isBad(one, trace) && trace.complete && !open.has(at);
    if (good && isGood) found.at(-1).push({ trace, at });
    else found.push([{ trace, at }]);
    good = isGood;
  });
  state.stretches = found;
  return found;
}

/** A stretch of good turns in a line. */
function whole(turns) {
  const sum = (of) => turns.reduce((all, { trace }) => all + (of(trace) ?? 0), 0);
  const first = turns[0],
    last = turns.at(-1);
  return [
    el("h3", {}, `Turns ${number(first.at + 1)} to ${number(last.at + 1)}`),
    el(
      "span",
      { class: "facts-line" },
      `no problems · ${number(sum((trace) => trace.llm_calls))} model and ${number(sum((trace) => trace.tools.length))} tool calls · ${dollars(sum((trace) => trace.cost_usd))} · `,
      when(first.trace.start_unix_nano, true),
      " to ",
      when(last.trace.end_unix_nano, true),
    ),
  ];
}

const isBad = (one, trace) =>
  one.flagged.includes(trace.trace_id) || trace.error || trace.loops.length > 0 || (trace.limits ?? []).length > 0;

/** A block for each turn; a click leads to the turn. */
function overview(view, one, bad) {
  const blocks = one.traces.map((trace, at) => {
    const [kind, word] = one.flagged.includes(trace.trace_id)
      ? ["bad", "fails"]
      : trace.loops.length > 0
        ? ["looping", "loops"]
        : trace.error
          ? ["fair", "ended in an error"]
          : !trace.complete
            ? ["open", "still runs, or was cut off"]
            : ["well", "no problem"];
    const text = `Turn ${at + 1}: ${word}`;
    return el(
      "button",
      { type: "button", class: `block ${kind}`, title: text, "aria-label": text, onclick: () => reach(view, at) },
      kind === "bad" ? "✗" : kind === "looping" ? "↻" : kind === "fair" ? "!" : "",
    );
  });
  return el(
    "div",
    { class: "overview" },
    el("div", { class: "blocks", role: "group", "aria-label": "Turns in order" }, blocks),
    bad.length > 0 &&
      one.traces.length > 1 &&
      el("button", { type: "button", onclick: view.next }, `Next bad turn (${number(bad.length)}) `, el("kbd", {}, "n")),
  );
}

function next(view, bad) {
  if (bad.length === 0) return;
  const found = bad.find(({ at }) => at > state.at) ?? bad[0];
  state.at = found.at;
  reach(view, found.at);
}

/** Opens a turn and goes there. */
function reach(view, at) {
  unfold(`turn-${at}`);
  const around = state.stretches.find((turns) => turns.some((turn) => turn.at === at));
  const outer = document.querySelector(`[data-fold="turns-${around?.[0].at}"]`);
  if (outer && !outer.open) {
    outer.fill();
    outer.open = true;
  }
  const box = document.querySelector(`[data-fold="turn-${at}"]`);
  if (!box) return;
  box.fill();
  box.open = true;
  box.scrollIntoView({ block: "start", behavior: "auto" });
  box.querySelector("summary").focus({ preventScroll: true });
}

/** The sessions of one id, by their scopes. */
function several(view, id, scopes, tenant) {
  view.title(`Sessions ${firstLetters(id, 40)}`);
  const link = (scope) => `#/session/${encodeURIComponent(id)}?${new URLSearchParams({ scope, ...(tenant && { tenant }) })}`;
  return [
    el("h1", {}, "Sessions ", foreign(id, 120)),
    el("p", { class: "sub" }, "Several agents or services have a session with this id."),
    el(
      "ul",
      {},
      scopes.map((scope) => el("li", {}, el("a", { href: link(scope), "data-row": true }, scope ? foreign(scope, 60) : "without a scope"))),
    ),
  ];
}

/** Whether the outcome was reported, or judged. */
const isKnown = (outcome) => Number.isFinite(outcome?.score);

/** The measure that was highest compared with the agent's other sessions, and how many outcomes the chance is learned from. */
function effort(one) {
  const [name, share] = Object.entries(one.prediction.more_than).sort(([, a], [, b]) => b - a)[0];
  const known = one.prediction.outcomes_known;
  const more =
    share < 0.5
      ? "less effort than most of its agent's sessions"
      : `${name === "longest_call" ? "a longer single call" : `more ${name.replace("_", " ")}`} than ${Math.round(100 * share)} % of its agent's sessions`;
  return `${more}; ${counted(known, "known outcome")}`;
}

/** Finds the session of a trace and goes there. */
export async function trace(view, id, tenant) {
  const [found, { trace_link: link }] = await Promise.all([
    ask(`/api/v1/traces/${encodeURIComponent(id)}`, { tenant }, view.signal),
    about(),
  ]);
  view.title(`Trace ${firstLetters(id, 40)}`);
  // A search for an id alone does not name the tenant.
  tenant ??= found.tenant;
  begin(found.session_id, found.scope, tenant);
  if (!state.explained.has(found.trace.trace_id)) state.explained.set(found.trace.trace_id, found);
  const one = { flagged: found.now.trace_risk > 0.5 ? [found.trace.trace_id] : [], session_id: found.session_id, scope: found.scope };
  return [
    el("h1", {}, "Trace ", foreign(found.trace.trace_id), " ", copy(found.trace.trace_id, "the trace id")),
    el(
      "p",
      { class: "sub" },
      "of session ",
      el("a", { href: sessionLink(found, tenant), "data-row": true }, foreign(found.session_id, 120)),
    ),
    turn(view, one, { trace: found.trace, at: null }, true, link),
  ];
}

/** Loops that are alike, and their turns. */
function loopTable(view, traces) {
  const groups = new Map();
  traces.forEach((trace, at) =>
    trace.loops.forEach((loop) => {
      const key = JSON.stringify([loop.kind, loop.tools, loop.evidence]);
      if (!groups.has(key)) groups.set(key, { loop, severity: loop.severity, count: 0, cost: null, turns: new Set() });
      const group = groups.get(key);
      if (loop.severity === "critical") group.severity = "critical";
      group.count += loop.count;
      if (loop.cost_usd !== null) group.cost = (group.cost ?? 0) + loop.cost_usd;
      group.turns.add(at);
    }),
  );
  return table(
    "Loops",
    [
      ["Loop"],
      ["Severity"],
      ["Tools"],
      ["Times", "number wide"],
      ["Spent in the loop", "number wide"],
      ["In turns"],
      ["Evidence", "wide", "How much of the calls was sent: the more, the surer the loop"],
    ],
    [...groups.values()].map((group) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, "↻ ", loopName(group.loop.kind)),
        el("td", {}, severity(group.severity)),
        el(
          "td",
          { class: "tools" },
          group.loop.tools.length ? group.loop.tools.map((tool, at) => [at > 0 && " → ", foreign(tool, 60)]) : "–",
        ),
        el("td", { class: "number wide" }, number(group.count)),
        el("td", { class: "number wide" }, dollars(group.cost)),
        el(
          "td",
          {},
          [...group.turns]
            .slice(0, 12)
            .map((at) => el("button", { type: "button", class: "small", onclick: () => reach(view, at) }, number(at + 1))),
          group.turns.size > 12 && ` and ${number(group.turns.size - 12)} more`,
        ),
        el("td", { class: "wide" }, SEEN_BY[group.loop.evidence] ?? group.loop.evidence),
      ),
    ),
  );
}

function limitTable(limits) {
  const amount = ({ limit }, value) =>
    limit === "cost_usd" ? dollars(value) : limit === "duration" ? `${number(Math.round(value))} s` : number(value);
  return table(
    "Over a limit",
    [["Limit"], ["Of"], ["Used", "number"], ["Allowed", "number"]],
    limits.map((found) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, `▲ ${limitName(found.limit)}`),
        el(
          "td",
          {},
          found.trace ? el("a", { href: traceLink(found.trace, state.tenant) }, `trace ${found.trace.slice(0, 8)}…`) : "the session",
        ),
        el("td", { class: "number" }, amount(found, found.used)),
        el("td", { class: "number" }, amount(found, found.most)),
      ),
    ),
  );
}

const SEEN_BY = {
  names: "names only: changes no score",
  results: "names, results",
  arguments: "names, arguments",
  full: "names, arguments, results",
  text: "texts",
};

function turn(view, one, { trace, at }, isOpen, link) {
  const flagged = one.flagged.includes(trace.trace_id);
  const kind = flagged ? "flagged" : trace.loops.length > 0 ? "looping" : "";
  const summary = [
    el(at === null ? "h2" : "h3", {}, at === null ? "Trace" : `Turn ${number(at + 1)}`),
    flagged && el("span", { class: "mark bad" }, "✗ fails"),
    trace.error && el("span", { class: "mark bad" }, "error", trace.error_type !== undefined && [": ", foreign(trace.error_type, 60)]),
    trace.loops.length > 0 && el("span", { class: "mark bad" }, "↻ loops"),
    (trace.limits ?? []).map((found) => el("span", { class: "mark bad" }, `▲ over the limit on ${limitName(found.limit)}`)),
    trace.waits_since_unix_nano
      ? el(
          "span",
          { class: "mark calm", title: "The agent says that it has paused" },
          "waiting for a person since ",
          when(trace.waits_since_unix_nano, true),
        )
      : !trace.complete &&
        el("span", { class: "mark calm", title: "No root span has arrived: the turn still runs, or was cut off" }, "no end yet"),
    el(
      "span",
      { class: "facts-line" },
      when(trace.start_unix_nano, true),
      " · ",
      lasted(trace.start_unix_nano, trace.end_unix_nano),
      ` · ${number(trace.llm_calls)} model and ${number(trace.tools.length)} tool calls`,
      trace.cost_usd !== null && ` · ${dollars(trace.cost_usd)}`,
    ),
    trace.input && el("span", { class: "asked" }, foreign(trace.input, 90)),
  ];
  return fold(at === null ? `turn-${trace.trace_id}` : `turn-${at}`, isOpen, summary, () => inside(view, one, trace, link), `turn ${kind}`);
}

function inside(view, one, trace, link) {
  const why = el("div", { id: `why-${trace.trace_id}` });
  const explanation = state.explained.get(trace.trace_id);
  const button = el(
    "button",
    { type: "button", "aria-expanded": String(Boolean(explanation)), "aria-controls": why.id, "data-row": true },
    "Why this score?",
  );
  button.addEventListener("click", async () => {
    if (why.firstChild) {
      why.replaceChildren();
      state.explained.delete(trace.trace_id);
      button.setAttribute("aria-expanded", "false");
      return;
    }
    try {
      // Not the view's signal: a change meanwhile must not lose the answer.
      const { tenant } = state;
      const found = await ask(`/api/v1/traces/${trace.trace_id}`, { session: one.session_id, scope: one.scope, tenant });
      if (state.id !== one.session_id || state.scope !== one.scope || state.tenant !== tenant) return;
      state.explained.set(trace.trace_id, found);
      if (!why.isConnected) {
        view.again();
        return;
      }
      why.replaceChildren(...explained(found));
      button.setAttribute("aria-expanded", "true");
    } catch (error) {
      why.replaceChildren(el("p", { class: "empty", role: "alert" }, error.message));
    }
  });
  if (explanation) why.append(...explained(explanation));
  return [
    texts(trace),
    waterfall(trace, trace.trace_id),
    remarks(trace),
    risks(trace),
    el(
      "div",
      { class: "bar" },
      button,
      el("code", { class: "id" }, trace.trace_id),
      copy(trace.trace_id, "the trace id"),
      outward(link, trace.sent_trace_id ?? trace.trace_id),
    ),
    why,
  ];
}

/** The decisions of guardrails and people. */
function remarks(trace) {
  const edits = [
    trace.accepted_edits > 0 && `${number(trace.accepted_edits)} accepted`,
    trace.rejected_edits > 0 && `${number(trace.rejected_edits)} rejected`,
  ].filter(Boolean);
  const decided = (trace.guardrails ?? []).map(({ name, result }, at) => [
    at > 0 && ", ",
    foreign(name ?? "(unnamed)", 60),
    result !== null && [": ", el("b", {}, foreign(result, 60))],
  ]);
  return [
    decided.length > 0 && el("p", { class: "note" }, "Guardrails: ", decided, "."),
    edits.length > 0 && el("p", { class: "note" }, `Edits: ${edits.join(", ")}.`),
  ];
}

function risks(trace) {
  const entries = Object.entries(trace.risks).sort((a, b) => b[1] - a[1]);
  if (entries.length === 0) return el("p", { class: "note" }, "No signal with a weight was measured.");
  return [
    el("p", { class: "note" }, "Risk by signal"),
    el(
      "div",
      { class: "risks", title: "The weight of a signal times (1 minus its score); over 0.5 the turn fails" },
      entries.map(([name, risk]) => {
        const fill = el("div", { class: `fill${risk > 0.5 ? " over" : ""}` });
        fill.style.width = `${Math.min(100, risk * 100)}%`;
        const signal = trace.signals[name];
        return [
          el("span", { class: "name" }, foreign(name, 60)),
          el(
            "span",
            {},
            `${plain(risk)}${risk > 0.5 ? " ⚑" : ""} `,
            el("small", { class: "none" }, signal ? `score ${plain(signal.score)}, ${signal.source}` : ""),
          ),
          el("div", { class: "track", "aria-hidden": "true" }, fill),
        ];
      }),
    ),
  ];
}

/** A line of evidence; a trace that it names is a link. */
function linked(line) {
  return line
    .split(/\b([0-9a-f]{32})\b/)
    .map((part, at) =>
      at % 2 ? el("a", { href: traceLink(part, state.tenant), title: part }, `${part.slice(0, 8)}…`) : foreign(part, 300),
    );
}

function texts(trace) {
  if (trace.content !== "kept") return trace.tools.length > 0 ? null : el("p", { class: "note" }, howToKeep(trace));
  const box = (title, text) =>
    text === null
      ? null
      : el(
          "div",
          {},
          el("small", { class: "none", "aria-hidden": "true" }, title),
          el("pre", { class: "text", dir: "auto", tabindex: "0", role: "group", "aria-label": title }, firstLetters(text, 20000)),
        );
  return el("div", { class: "texts" }, box("Input", trace.input), box("Output", trace.output));
}

function explained(found) {
  const outlook = (without) => [
    el("td", { class: "number wide" }, plain(without.trace_risk)),
    el("td", { class: "number wide" }, plain(without.session_reliability)),
    el("td", { class: "number wide" }, plain(without.session_consistency)),
  ];
  const columns = [
    ["Without it: risk", "number wide"],
    ["session reliability", "number wide"],
    ["session consistency", "number wide"],
  ];
  return [
    el(
      "p",
      { class: "reason" },
      found.reason.replace(/risk is (\d+(?:\.\d+)?)/, (_, risk) => `risk is ${plain(Number(risk))}`),
      ".",
    ),
    el(
      "p",
      { class: "note" },
      `Current: risk ${plain(found.now.trace_risk)}, session reliability ${plain(found.now.session_reliability)}, consistency ${plain(found.now.session_consistency)}.`,
    ),
    found.prediction && !isKnown(found.signals.find((signal) => signal.name === "outcome")) && el("p", { class: "note" }, carried(found)),
    table(
      "Signals of this trace",
      [["Signal"], ["Score", "number wide"], ["Weight", "number wide"], ["Risk", "number"], ["Source", "wide"], ["Evidence"], ...columns],
      found.signals.map((signal) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, signal.decides && "▸ ", foreign(signal.name, 60), signal.decides && el("small", {}, "decides")),
          el("td", { class: "number wide" }, score(signal.score)),
          el("td", { class: "number wide" }, plain(signal.weight)),
          el("td", { class: "number" }, plain(signal.risk)),
          el("td", { class: "wide" }, signal.source),
          el(
            "td",
            { class: "evidence" },
            el(
              "ul",
              { class: "plain" },
              signal.evidence.map((line) => el("li", {}, linked(line))),
            ),
          ),
          outlook(signal.without),
        ),
      ),
    ),
    found.loops.map((loop) => [
      el("p", { class: "reason" }, "↻ ", loopName(loop.kind), ", ", number(loop.count), " times ", severity(loop.severity)),
      el(
        "p",
        { class: "note" },
        `Without it: risk ${plain(loop.without.trace_risk)}, session reliability ${plain(loop.without.session_reliability)}, consistency ${plain(loop.without.session_consistency)}.`,
      ),
      loop.calls.length > 0 && el("ol", { class: "strip", "aria-label": "Calls of the loop" }, folded(loop.calls)),
    ]),
  ]
    .flat(Infinity)
    .filter(Boolean);
}

/** How likely the run failed, by this turn alone, and the strongest evidence for or against it. */
function carried({ trace, prediction }) {
  const parts = Object.entries(prediction.carried_by).filter(([name, odds]) => name !== "base" && Math.abs(odds) >= 0.05);
  const words = parts
    .sort(([, a], [, b]) => Math.abs(b) - Math.abs(a))
    .slice(0, 3)
    .map(([name, odds]) => `${name.replaceAll("_", " ")} ${odds > 0 ? "+" : "−"}${Math.abs(odds).toFixed(1)}`);
  const known = prediction.outcomes_known;
  return `By this turn alone, the chance that the run failed is ${percent(trace.predicted_failure)}${words.length ? ` (log-odds: ${words.join(", ")})` : ""}, learned from ${known ? counted(known, "known outcome") : "effort alone, as no outcome is known"}.`;
}

/** Calls in order; successive equal ones are one item with their number. */
function folded(calls) {
  const items = [];
  for (const call of calls) {
    const key = JSON.stringify([call.name, call.arguments, call.error, call.error_type]);
    if (items.at(-1)?.key === key) items.at(-1).count += 1;
    else items.push({ call, key, count: 1 });
  }
  return items.map(({ call, count }) =>
    el(
      "li",
      { class: call.error ? "failed" : null },
      call.error && "✗ ",
      foreign(call.name ?? "(unknown tool)", 60),
      call.arguments !== null && el("span", { class: "args" }, " ", foreign(JSON.stringify(call.arguments), 60)),
      call.error_type !== undefined && [": ", foreign(call.error_type, 60)],
      count > 1 && el("strong", {}, ` ×${number(count)}`),
      el("span", { class: "hidden" }, call.error && " failed"),
    ),
  );
}
