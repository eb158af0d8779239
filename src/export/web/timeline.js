// What a turn did: its calls as a waterfall. Calls of a loop are one line until it is opened.
import { counted, dollars, el, fold, foreign, number, seconds, time } from "./dom.js";
import { loopName } from "./problems.js";

/** The most rows of a turn that are drawn. */
const ROWS = 200;
const KINDS = { model: ["M", "model"], tool: ["T", "tool"], agent: ["A", "sub-agent"] };

/** The steps of a turn: all of them if content is kept, else its tool calls. */
export function stepsOf(trace) {
  if (trace.steps.length > 0) return trace.steps;
  return trace.tools.map((tool) => ({
    ...tool,
    kind: "tool",
    span_id: "",
    tokens: { input: null, output: null },
    cost_usd: null,
    result: null,
  }));
}

/** The steps inside loops, each with its loop: by span if loops name spans, else by the index among tool calls. */
export function looped(trace, steps) {
  const inside = new Map();
  const tools = steps.map((step, at) => [step, at]).filter(([step]) => step.kind === "tool");
  for (const loop of trace.loops) {
    const spans = new Set(loop.span_ids);
    let first = steps.length,
      last = -1;
    tools.forEach(([step, at], place) => {
      const isIn =
        loop.first !== null
          ? place >= loop.first && place <= loop.last
          : spans.size > 0
            ? spans.has(step.span_id)
            : loop.tools.includes(step.name);
      if (isIn) {
        first = Math.min(first, at);
        last = Math.max(last, at);
      }
    });
    // Time between its calls belongs to the loop, too.
    for (let at = first; at <= last; at += 1) inside.set(at, loop);
    if (first > 0 && first < steps.length && steps[first - 1].kind === "model") inside.set(first - 1, loop);
  }
  return inside;
}

export function waterfall(trace, key) {
  const steps = stepsOf(trace);
  if (steps.length === 0)
    return trace.llm_calls > 0
      ? el("p", { class: "note" }, `${counted(trace.llm_calls, "model call")}, no tool calls. `, howToKeep(trace))
      : null;
  const inside = looped(trace, steps);
  const start = trace.start_unix_nano,
    whole = Math.max(1e-6, seconds(start, trace.end_unix_nano), ...steps.map((step) => seconds(start, step.end_unix_nano)));
  const scale = { start, whole };
  const groups = [];
  steps.forEach((step, at) => {
    const loop = inside.get(at) ?? null;
    if (loop && groups.at(-1)?.loop === loop) groups.at(-1).steps.push(step);
    else groups.push({ loop, steps: [step], at });
  });
  const rows = groups
    .slice(0, ROWS)
    .map((group) =>
      group.loop ? loopRow(group, scale, `${key}-loop-${group.at}`) : stepRow(group.steps[0], scale, `${key}-step-${group.at}`),
    );
  return [
    el(
      "div",
      { class: "waterfall", role: "list", "aria-label": "Calls in order" },
      el(
        "div",
        { class: "ruler", "aria-hidden": "true" },
        [0, 0.25, 0.5, 0.75, 1].map((part) => el("span", {}, time(part * whole))),
      ),
      rows,
      groups.length > ROWS && el("p", { class: "note", role: "listitem" }, `And ${number(groups.length - ROWS)} more.`),
    ),
    trace.steps.length === 0 &&
      el(
        "p",
        { class: "note" },
        `${counted(trace.llm_calls, "model call")}${trace.model_seconds > 0 ? ` of ${time(trace.model_seconds)}${trace.llm_calls === 1 ? "" : " together"}` : ""}. `,
        howToKeep(trace),
      ),
  ];
}

export const howToKeep = (trace) =>
  trace.content === "kept"
    ? null
    : [
        "Single model calls, arguments, results and texts are shown if content is kept: set ",
        el("code", {}, "assemble.keep_content = true"),
        ".",
      ];

function bar(step, { start, whole }, kind) {
  const from = Math.max(0, seconds(start, step.start_unix_nano)) / whole,
    to = Math.max(from, seconds(start, step.end_unix_nano) / whole);
  const fill = el("i", { class: kind });
  fill.style.marginLeft = `${Math.min(99.5, 100 * from)}%`;
  fill.style.width = `${Math.max(0.5, 100 * (to - from))}%`;
  return el("span", { class: "lane", "aria-hidden": "true" }, fill);
}

const tokens = ({ input, output }) => (input === null && output === null ? "" : `${number(input)} → ${number(output)} tokens`);

function line(step, scale) {
  const [letter, word] = KINDS[step.kind] ?? ["?", step.kind];
  return [
    el(
      "span",
      { class: "step-name" },
      el("abbr", { class: `kind ${step.kind}`, title: word }, letter),
      step.error && el("b", { class: "failed" }, "✗ "),
      foreign(step.name ?? `(unknown ${word})`, 60),
      step.error && el("span", { class: "hidden" }, " failed"),
      step.error_type !== undefined && el("b", { class: "failed" }, " ", foreign(step.error_type, 60)),
      step.kind === "tool" && step.arguments !== null && el("span", { class: "args" }, " ", foreign(argumentsOf(step), 90)),
    ),
    el(
      "span",
      { class: "step-cost" },
      tokens(step.tokens),
      step.cost_usd !== null && [tokens(step.tokens) && " · ", dollars(step.cost_usd)],
      step.first_chunk_seconds !== undefined &&
        el("span", { title: "Time until the first chunk of the answer" }, ` · first chunk after ${time(step.first_chunk_seconds)}`),
    ),
    el("span", { class: "step-time" }, time(Math.max(0, seconds(step.start_unix_nano, step.end_unix_nano)))),
    bar(step, scale, step.error ? "failed" : step.kind),
  ];
}

const argumentsOf = (step) => (typeof step.arguments === "string" ? step.arguments : JSON.stringify(step.arguments));

function stepRow(step, scale, key) {
  const more = step.kind === "tool" && (step.arguments !== null || step.result !== null);
  if (!more) return el("div", { class: "step", role: "listitem" }, line(step, scale));
  return el(
    "div",
    { role: "listitem" },
    fold(key, false, el("span", { class: "step" }, line(step, scale)), () => {
      const box = (title, text) =>
        text !== null &&
        el(
          "div",
          {},
          el("small", { class: "none" }, title),
          el("pre", { class: "text", dir: "auto", tabindex: "0", role: "group", "aria-label": title }, text),
        );
      return el(
        "div",
        { class: "texts" },
        box(
          "Arguments",
          step.arguments === null ? null : typeof step.arguments === "string" ? step.arguments : JSON.stringify(step.arguments, null, 2),
        ),
        box("Result", step.result) || (step.error ? null : el("p", { class: "note" }, "No result was sent.")),
      );
    }),
  );
}

function loopRow({ loop, steps }, scale, key) {
  const calls = steps.filter((step) => step.kind === "tool").length;
  const cost = loop.cost_usd;
  const whole = {
    start_unix_nano: steps[0].start_unix_nano,
    end_unix_nano: steps.reduce(
      (last, step) => (BigInt(step.end_unix_nano) > BigInt(last) ? step.end_unix_nano : last),
      steps[0].end_unix_nano,
    ),
  };
  const shown = steps.slice(0, ROWS);
  return el(
    "div",
    { role: "listitem" },
    fold(
      key,
      false,
      el(
        "span",
        { class: "step looped" },
        el(
          "span",
          { class: "step-name" },
          el("b", { class: "failed" }, "↻ "),
          loop.tools.length ? loop.tools.map((tool, at) => [at > 0 && " → ", foreign(tool, 40)]) : "Calls",
          el("b", {}, ` ×${number(calls || loop.count)}`),
          el("span", { class: "args" }, ` ${loopName(loop.kind)}`),
        ),
        el("span", { class: "step-cost" }, cost !== null && dollars(cost)),
        el("span", { class: "step-time" }, time(seconds(whole.start_unix_nano, whole.end_unix_nano))),
        bar(whole, scale, "failed"),
      ),
      () => [
        el(
          "div",
          { role: "list", "aria-label": "Calls of the loop in order" },
          shown.map((step, at) => stepRow(step, scale, `${key}-${at}`)),
        ),
        steps.length > shown.length && el("p", { class: "note" }, `And ${number(steps.length - shown.length)} more.`),
      ],
      "loop",
    ),
  );
}
