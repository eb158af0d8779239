// The state of alerts: from Prometheus, if the daemon asks it, else those that the rules would raise.
import { about, agentLink, agentTitle, ago, ask, counted, el, foreign, severity, table, when } from "./dom.js";

/** Alerts change without any change of an agent: they are requested again after this time, and sooner if there was no answer. */
const AGAIN_MS = 15_000,
  SOON_MS = 5000;
let due = null;

/** The alerts in Prometheus, or null if it is not asked. */
export async function alerts(view) {
  const { prometheus } = await about();
  if (!prometheus) return null;
  const page = await ask("/api/v1/alerts", {}, view.signal);
  clearTimeout(due);
  due = setTimeout(
    () => {
      if (!document.hidden) view.again();
    },
    page.problem ? SOON_MS : AGAIN_MS,
  );
  return page;
}

const NAMES = ["service_name", "agent_name", "agent_version", "environment", "tenant"];
/** Whether an alert is about an agent; labels that the alert lacks do not matter. */
const isAbout = (alert, agent) => NAMES.every((name) => (alert.agent[name] ?? "") === "" || alert.agent[name] === (agent[name] ?? ""));
const runbook = (name) => el("a", { href: `#/runbook/${encodeURIComponent(name)}` }, name);

const matches = (alert, problem) =>
  alert.name === problem.alert &&
  isAbout(alert, problem.agent) &&
  (problem.kind === "run_limit" || !alert.what || !problem.what || alert.what === problem.what);

/** The state of the alert about a problem. */
export function alertOf(problem, page) {
  if (!page || page.source !== "prometheus") return ["Raises ", runbook(problem.alert)];
  const alert = page.alerts.find((alert) => matches(alert, problem));
  if (!alert) return [runbook(problem.alert), ": not raised yet"];
  return [runbook(alert.name), " ", el("b", {}, alert.state), alert.since_unix_nano && [" since ", when(alert.since_unix_nano, true)]];
}

/** Alerts without a card, and why Prometheus could not be asked. */
export function otherAlerts(page, problems) {
  if (!page) return null;
  if (page.problem) return el("p", { class: "note", role: "status" }, `${page.problem}, so the state of alerts is not known.`);
  const others = page.alerts.filter((alert) => !problems.some((problem) => matches(alert, problem)));
  if (others.length === 0) return null;
  return [
    el("h2", {}, counted(others.length, "other alert")),
    table(
      "Other alerts",
      [["Alert"], ["State"], ["About"], ["Says", "wide"], ["Since"]],
      others.map((alert) =>
        el(
          "tr",
          {},
          el("th", { scope: "row" }, runbook(alert.name)),
          el("td", {}, severity(alert.severity ?? "warning", alert.state)),
          el(
            "td",
            {},
            alert.agent.service_name || alert.agent.agent_name
              ? el("a", { href: agentLink(alert.agent) }, foreign(agentTitle(alert.agent), 60))
              : "the daemon",
          ),
          el("td", { class: "wide" }, alert.summary && foreign(alert.summary, 160)),
          el("td", {}, alert.since_unix_nano && ago(alert.since_unix_nano)),
        ),
      ),
    ),
  ];
}

/** The alerts about one agent, in a line. */
export function alertsOf(agent, page) {
  const found = page?.alerts.filter((alert) => alert.agent.service_name && isAbout(alert, agent)) ?? [];
  if (found.length === 0) return null;
  return el(
    "p",
    { class: "note" },
    found.map((alert, at) => [
      at > 0 && " · ",
      runbook(alert.name),
      " ",
      el("b", {}, alert.state),
      alert.since_unix_nano && ` for ${ago(alert.since_unix_nano).replace(" ago", "")}`,
    ]),
  );
}
