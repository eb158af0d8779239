// Which view is shown, the stream of changes, and the keyboard.
import { agent } from "./agent.js";
import { ask, el, sessionLink } from "./dom.js";
import { fleet } from "./fleet.js";
import { session, trace } from "./session.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");

/** Time between two renderings that changes ask for. */
const PAUSE_MS = 2000;

let current = null;

/** The address: a path of decoded parts, and a query. */
function address() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const decode = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function renderer({ parts: [name, id], query }) {
  if (name === undefined) return fleet;
  if (name === "agent") return (view) => agent(view, query);
  if (name === "session" && id) return (view) => session(view, { id, scope: query.get("scope"), tenant: query.get("tenant") ?? "" });
  if (name === "trace" && id) return (view) => trace(view, id, query.get("tenant") ?? "");
  return async () => { throw new Error("There is no such view."); };
}

async function show({ arrived }) {
  current?.abort.abort();
  const abort = new AbortController();
  const view = {
    abort, signal: abort.signal, at: Date.now(), concerns: () => true,
    // Whoever still waits in a view that was left must not bring it back.
    place: location.hash,
    again: () => { if (view.place === location.hash) show({ arrived: false }); },
    title: (text) => { document.title = `${text} · agentgauge`; crumbs.replaceChildren(el("a", { href: "#/" }, "Fleet"), text === "Fleet" ? "" : ` / ${text}`); },
  };
  current = view;
  if (arrived) main.setAttribute("aria-busy", "true");
  try {
    const parts = (await renderer(address())(view)) ?? [];
    if (current !== view) return;
    place(parts.flat(Infinity).filter(Boolean), arrived);
  } catch (error) {
    if (error.name === "AbortError" || current !== view) return;
    // What is shown stays while the daemon is away.
    if (!arrived && error.status === undefined && main.childElementCount) return;
    view.title(error.status === 404 ? "Not found" : "Error");
    place([el("h1", {}, error.status === 404 ? "Not found" : "That did not work"), el("div", { class: "empty" }, el("p", { role: "alert" }, sentence(error.message)), el("p", {}, el("a", { href: "#/" }, "To the fleet")))], arrived);
  } finally {
    if (current === view) main.removeAttribute("aria-busy");
  }
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** Puts the view in place; what had the focus, or was scrolled, stays as it was. */
function place(nodes, arrived) {
  const focusable = () => [...main.querySelectorAll("a[href], button, [tabindex]")];
  const held = focusable().indexOf(document.activeElement);
  const scrolled = [...main.querySelectorAll(".scroll, .text")].map((box) => [box.scrollLeft, box.scrollTop]);
  main.replaceChildren(...nodes);
  if (arrived) { main.focus({ preventScroll: true }); scrollTo(0, 0); return; }
  if (held >= 0) focusable()[held]?.focus({ preventScroll: true });
  [...main.querySelectorAll(".scroll, .text")].forEach((box, at) => { if (scrolled[at]) [box.scrollLeft, box.scrollTop] = scrolled[at]; });
}

// Changes come in bursts: one rendering for each pause, and none while nobody looks.
let due = null;
function changed(agents) {
  if (!current || due !== null || document.hidden || !agents.some((row) => current.concerns(row))) return;
  due = setTimeout(() => { due = null; current?.again(); }, Math.max(0, current.at + PAUSE_MS - Date.now()));
}

function listen() {
  const events = new EventSource("/api/v1/events");
  const tell = (text, on) => { if (live.textContent !== text) live.textContent = text; live.classList.toggle("on", on); };
  events.addEventListener("open", () => tell("live", true));
  events.addEventListener("agents", (event) => {
    const { agents, gone } = JSON.parse(event.data);
    changed([...agents, ...gone]);
  });
  events.addEventListener("error", () => {
    tell("reconnecting", false);
    // Refused rather than cut: the browser does not come back by itself.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  });
}

document.getElementById("find").addEventListener("submit", async (event) => {
  event.preventDefault();
  const id = document.getElementById("find-id").value.trim();
  if (!id) return;
  const isTrace = /^[0-9a-f]{32}$/i.test(id) && await ask(`/api/v1/sessions/${encodeURIComponent(id)}`).then(() => false, (error) => error.status !== 409);
  location.hash = isTrace ? `#/trace/${id}` : sessionLink({ session_id: id }).slice(1);
});

document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest("input, select, textarea");
  if (typing) { if (event.key === "Escape") typing.blur(); return; }
  const rows = [...main.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement);
  const step = { j: 1, k: -1 }[event.key];
  if (step && rows.length) rows[Math.min(rows.length - 1, Math.max(0, at + step))].focus();
  else if (event.key === "/") { event.preventDefault(); document.getElementById("find-id").focus(); }
  else if (event.key === "u") (main.querySelector(".sub a") ?? crumbs.querySelector("a"))?.click();
  else if (event.key === "g") location.hash = "#/";
});

addEventListener("hashchange", () => show({ arrived: true }));
document.addEventListener("visibilitychange", () => { if (!document.hidden) current?.again(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current?.again());
show({ arrived: true });
listen();
