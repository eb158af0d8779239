// The fleet: every agent in a row.
import { agentDetail, agentLink, agentTitle, ask, dollars, el, foreign, looping, number, pager, score, severity, table, tile, tiles } from "./dom.js";
import { sparkline } from "./chart.js";

const PAGE = 50;
/** Models without a price that are named. */
const MODELS = 20;
let offset = 0;

export async function fleet(view) {
  const { agents, total, unpriced_models: unpriced } = await ask("/api/v1/fleet", { limit: PAGE, offset }, view.signal);
  view.title("Fleet");
  if (total === 0) return empty();
  const sum = (of) => agents.reduce((all, agent) => all + (of(agent) ?? 0), 0);
  const turn = (to) => { offset = to; view.again(); };
  // Pages come by name; where there is one, the worst comes first.
  const whole = agents.length === total;
  if (whole) agents.sort((one, other) => worse(one, other));
  const drop = agents.filter((agent) => agent.drop === "critical").length;
  const known = agents.some((agent) => agent.cost_usd !== null);
  return [
    el("h1", {}, "Fleet"),
    el("p", { class: "sub" }, `Every agent that sent spans${whole ? ", the worst first" : ""}. Scores are over its last traces; ✓ from 0.9, ~ from 0.5, ✗ below.`),
    tiles(
      tile("Agents", number(total)),
      tile("Agents that drop", drop > 0 ? el("span", { class: "mark bad" }, `✗ ${number(drop)}`) : el("span", { class: "none" }, "0"), total > agents.length ? "this page" : null),
      tile("Sessions open", number(sum((agent) => agent.sessions_active))),
      tile("Sessions looping now", looping(sum((agent) => agent.sessions_looping))),
      sum((agent) => agent.sessions_over_limit) > 0 && tile("Sessions over a limit", el("span", { class: "mark bad" }, `▲ ${number(sum((agent) => agent.sessions_over_limit))}`)),
      tile("Spent", known ? dollars(sum((agent) => agent.cost_usd)) : "–", total > agents.length ? "this page" : null)),
    table("Agents", [["Agent"], ["Drop"], ["Reliability", "number"], ["Consistency", "number wide"], ["Looping now", "number"], ["Loops found", "number wide"], ["Open", "number wide"], ["Traces", "number wide"], ["Spent", "number"], ["Reliability, last steps", "wide"]],
      agents.map((agent) => el("tr", {},
        el("th", { scope: "row" }, el("a", { href: agentLink(agent), "data-row": true }, foreign(agentTitle(agent), 80)), el("small", {}, foreign(agentDetail(agent), 120))),
        el("td", {}, agent.drop ? severity(agent.drop) : el("span", { class: "none" }, "none")),
        el("td", { class: "number" }, score(agent.reliability)),
        el("td", { class: "number wide" }, score(agent.consistency)),
        el("td", { class: "number" }, looping(agent.sessions_looping)),
        el("td", { class: "number wide" }, number(agent.loops)),
        el("td", { class: "number wide" }, number(agent.sessions_active)),
        el("td", { class: "number wide" }, number(agent.traces)),
        el("td", { class: "number" }, dollars(agent.cost_usd)),
        el("td", { class: "wide" }, sparkline(agent.spark))))),
    pager(offset, PAGE, total, turn),
    Object.keys(unpriced).length > 0 && el("p", { class: "note" }, "No price is known of ",
      Object.entries(unpriced).sort(([, one], [, other]) => other - one).slice(0, MODELS).map(([model, calls], at) => [at > 0 && ", ", foreign(model, 60), ` (${number(calls)} ${calls === 1 ? "call" : "calls"})`]),
      "; what they cost is not in what is spent. Prices go into ", el("code", {}, "cost.prices"), "."),
  ];
}

const RANK = { critical: 2, warning: 1 };

/** Those that drop first, then those with loops going on, then by reliability; without a score last, and equal ones as they came, by name. */
function worse(one, other) {
  return ((RANK[other.drop] ?? 0) - (RANK[one.drop] ?? 0)) || (other.sessions_looping - one.sessions_looping) || ((one.reliability ?? 2) - (other.reliability ?? 2));
}

function empty() {
  return [
    el("h1", {}, "Fleet"),
    el("div", { class: "empty" },
      el("p", {}, "No agent has sent a span yet. Point an OpenTelemetry SDK at this daemon:"),
      el("pre", { tabindex: "0" }, el("code", {}, `export OTEL_EXPORTER_OTLP_ENDPOINT=http://${location.hostname}:4318\nexport OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf`)),
      el("p", {}, "The port is that of ", el("code", {}, "listen.otlp_http"), ", 4318 unless you chose another. This page fills in by itself.")),
  ];
}
