// What is wrong now, as cards.
import { alertOf } from "./alerts.js";
import { agentLink, agentTitle, ago, counted, dollars, el, foreign, isSame, number, percent, sessionLink, severity, when } from "./dom.js";

/** The words for a limit. */
export const limitName = (limit) =>
  ({ cost_usd: "cost", calls_without_tool: "model calls without a tool call" })[limit] ?? limit.replaceAll("_", " ");

/** Cards shown before the rest is requested. */
const FIRST = 6;
let all = false;

/** What a stream has more of than usual. */
const STREAMS = {
  verdict: "failing traces",
  outcome: "failed outcomes",
  predicted_failure: "failed outcomes (partly predicted)",
  tool_failures: "traces with failing tools",
  loops: "traces with loops",
  effort: "effort per trace (as a percentile of the usual)",
  cost: "cost per trace (as a percentile of the usual)",
  latency: "latency per trace (as a percentile of the usual)",
};
export const streamName = (stream) => STREAMS[stream] ?? stream.replaceAll("_", " ");

const KINDS = {
  exact_repeat: "makes the same call again and again",
  near_repeat: "makes nearly the same call again and again",
  cycle: "repeats a cycle of calls",
  error_retry: "repeats a failing call",
  output_repeat: "gives the same answer again and again",
  reported: "says that it is in a loop",
  run_limit: "is over a limit",
};
export const loopName = (kind) => KINDS[kind] ?? kind.replaceAll("_", " ");

/** The worst severity of the loops of an agent version, from its problem; one that is not among the first is at most a warning. */
export const worstLoop = (agent, found) =>
  found.find(({ kind, agent: whose }) => kind === "loop" && isSame(whose, agent))?.severity ?? "warning";

export function problems(view, { problems: found, total }, alerts) {
  if (total === 0)
    return el(
      "p",
      { class: "well" },
      el("span", { class: "mark good" }, "✓ Nothing is wrong"),
      " No agent fails more than it usually does, none loops, none is over a limit, none hangs.",
    );
  const shown = all ? found : found.slice(0, FIRST);
  return [
    el(
      "div",
      { class: "cards" },
      shown.map((problem) => card(problem, alerts)),
    ),
    found.length > shown.length &&
      el(
        "div",
        { class: "bar" },
        el(
          "button",
          {
            type: "button",
            onclick: () => {
              all = true;
              view.again();
            },
          },
          `Show all ${number(total)}`,
        ),
      ),
    all && total > found.length && el("p", { class: "note" }, `The first ${number(found.length)} of ${number(total)}.`),
  ];
}

function card(problem, alerts) {
  const named = [foreign(agentTitle(problem.agent), 60), problem.agent.agent_version && [" ", foreign(problem.agent.agent_version, 30)]];
  const example =
    problem.session &&
    el("a", { class: "button", href: sessionLink(problem.session, problem.agent.tenant), "data-row": true }, "Show an example");
  return el(
    "article",
    { class: `card ${problem.severity}` },
    el("h2", {}, severity(problem.severity, word(problem)), " ", el("a", { href: agentLink(problem.agent), "data-row": true }, named)),
    el("p", { class: "what" }, what(problem)),
    el("p", { class: "note" }, [
      problem.agent.service_name && foreign(problem.agent.service_name, 60),
      problem.agent.environment && [" · ", foreign(problem.agent.environment, 40)],
      problem.since_unix_nano && [" · since ", when(problem.since_unix_nano, true), ` (${ago(problem.since_unix_nano)})`],
      problem.confidence !== null && [
        " · ",
        el(
          "span",
          { title: "How likely it is that the agent really got worse and did not just have bad luck" },
          `${sure(problem.confidence)} sure`,
        ),
      ],
    ]),
    el("p", { class: "card-foot" }, example, el("span", { class: "none" }, alertOf(problem, alerts))),
  );
}

const word = ({ kind, what }) =>
  ({
    drop: ["effort", "cost", "latency"].includes(what) ? "Takes more" : "Fails more",
    loop: "Loops",
    run_limit: "Over a limit",
    stall: "Hangs",
  })[kind] ?? kind.replaceAll("_", " ");
const sure = (confidence) => (confidence >= 0.9995 ? "over 99.9 %" : `${(Math.floor(1000 * confidence) / 10).toLocaleString("en")} %`);

function what(problem) {
  if (problem.kind === "drop") {
    const by = problem.tool
      ? [", most in the tool ", el("b", {}, foreign(problem.tool, 60))]
      : problem.signal && problem.signal !== "error"
        ? [", most by ", foreign(problem.signal, 40)]
        : "";
    return [
      streamName(problem.what).replace(/^./, (first) => first.toUpperCase()),
      " up from ",
      percent(problem.from),
      " to ",
      el("b", {}, percent(problem.to)),
      ` over ${number(problem.count)} traces`,
      by,
      problem.error_type && [", with ", el("b", {}, foreign(problem.error_type, 60))],
      ".",
    ];
  }
  if (problem.kind === "loop") {
    return [
      `${counted(problem.count, "session")} now`,
      problem.count > 1 && problem.what && "; one of them",
      problem.what && [
        " ",
        loopName(problem.what),
        problem.tool && [": ", el("b", {}, foreign(problem.tool, 60))],
        problem.calls !== null && `, ${number(problem.calls)} times`,
      ],
      problem.cost_usd !== null && [", ", el("b", {}, dollars(problem.cost_usd)), " so far"],
      ".",
    ];
  }
  if (problem.kind === "run_limit") {
    const over = `open ${problem.count === 1 ? "session is" : "sessions are"} over the limit on the`;
    return `${number(problem.count)} ${over} ${limitName(problem.what)} of a ${problem.run}.`;
  }
  if (problem.kind === "stall")
    return `${number(problem.count)} open ${problem.count === 1 ? "trace has" : "traces have"} sent no span for long.`;
  return [problem.what && foreign(problem.what.replaceAll("_", " "), 80), ` ${number(problem.count)}`];
}
