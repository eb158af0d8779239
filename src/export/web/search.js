// The search: agents, sessions, tools and traces by a part of their name.
import { agentDetail, agentLink, agentTitle, ask, el, foreign, sessionLink, traceLink } from "./dom.js";
import { everyone } from "./fleet.js";

/** The most results of one kind, the time after the last key, and the time for which agents are not requested again. */
const MOST = 6,
  PAUSE_MS = 150,
  STALE_MS = 10_000;

const form = document.getElementById("find");
const input = document.getElementById("find-id");
const list = document.getElementById("found");
let asked = null;
let known = { at: 0, agents: [] };

export function searching() {
  let due = null;
  input.addEventListener("input", () => {
    clearTimeout(due);
    due = setTimeout(() => look().catch(() => {}), PAUSE_MS);
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(due);
    await look().catch(() => {});
    list.querySelector("a")?.click();
  });
  form.addEventListener("keydown", (event) => {
    const links = [...list.querySelectorAll("a")];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      close();
      input.blur();
    }
    if (!step || links.length === 0) return;
    event.preventDefault();
    const at = links.indexOf(document.activeElement) + step;
    (at < 0 ? input : links[Math.min(at, links.length - 1)]).focus();
  });
  list.addEventListener("click", (event) => {
    if (event.target.closest("a")) {
      close();
      input.value = "";
    }
  });
  document.addEventListener("click", (event) => {
    if (!form.contains(event.target)) close();
  });
}

function close() {
  asked?.abort();
  list.replaceChildren();
  list.hidden = true;
}

async function look() {
  const text = input.value.trim();
  asked?.abort();
  if (!text) return close();
  asked = new AbortController();
  const { signal } = asked;
  const rows = (filter) => ask("/api/v1/sessions", { ...filter, detail: "row", sort: "recent", limit: MOST }, signal);
  if (Date.now() - known.at > STALE_MS) known = { ...(await everyone(signal)), at: Date.now() };
  const { agents } = known;
  const [byId, byTool] = await Promise.all([rows({ id: text }), rows({ tool: text })]);
  const part = text.toLowerCase();
  const names = (agent) => [agent.agent_name, agent.service_name, agent.agent_version].map((name) => name?.toLowerCase() ?? "");
  const fitting = agents.filter((agent) => names(agent).some((name) => name.includes(part)));
  const begins = (agent) => names(agent).some((name) => name.startsWith(part));
  fitting.sort((one, other) => begins(other) - begins(one));
  // A complete id comes first.
  const exact = byId.sessions.filter((session) => session.session_id === text);
  const found = [
    ...exact.map((session) => entry("session", sessionLink(session, session.agent.tenant), session.session_id, agentTitle(session.agent))),
    /^[0-9a-f]{32}$/i.test(text) && exact.length === 0 && entry("trace", traceLink(text.toLowerCase()), text, "by its id"),
    ...fitting.slice(0, MOST).map((agent) => entry("agent", agentLink(agent), agentTitle(agent), agentDetail(agent))),
    ...byId.sessions
      .filter((session) => session.session_id !== text)
      .map((session) => entry("session", sessionLink(session, session.agent.tenant), session.session_id, agentTitle(session.agent))),
    byTool.total > 0 &&
      entry(
        "tool",
        `#/sessions?${new URLSearchParams({ tool: text, sort: "recent" })}`,
        `Tools named like “${text}”`,
        `${byTool.total.toLocaleString("en")} sessions`,
      ),
  ].filter(Boolean);
  list.replaceChildren(...(found.length ? found : [el("li", { class: "note" }, "No agent, session or tool has this in its name.")]));
  list.hidden = false;
}

const entry = (kind, href, name, detail) =>
  el(
    "li",
    {},
    el(
      "a",
      { href },
      el("small", { class: "kind-word" }, kind),
      " ",
      foreign(name, 80),
      " ",
      el("small", { class: "none" }, foreign(detail, 80)),
    ),
  );
