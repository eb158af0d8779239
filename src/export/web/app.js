// The current view, the stream of changes, and the keyboard.
import { agent } from "./agent.js";
import { about, el, forgetAbout, forgetFolds } from "./dom.js";
import { fleet } from "./fleet.js";
import { runbook } from "./runbook.js";
import { searching } from "./search.js";
import { session, trace } from "./session.js";
import { sessions } from "./sessions.js";

const main = document.getElementById("main");
const crumbs = document.getElementById("crumbs");
const live = document.getElementById("live");
const lost = document.getElementById("lost");

/** Time between two renderings because of changes, unless the view wants more. */
const PAUSE_MS = 2000;

let current = null;

let pressed = false;
addEventListener(
  "pointerdown",
  () => {
    pressed = true;
  },
  true,
);
for (const name of ["pointerup", "pointercancel"])
  addEventListener(
    name,
    () => {
      setTimeout(() => {
        pressed = false;
      });
    },
    true,
  );
addEventListener("blur", () => {
  pressed = false;
});

/** The address: a path of decoded parts, and a query. */
function address() {
  const [path, query] = (location.hash.slice(1) || "/").split("?");
  const decode = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  };
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(query) };
}

function renderer({ parts: [name, id], query }) {
  if (name === undefined) return fleet;
  if (name === "agent") return (view) => agent(view, query);
  if (name === "sessions") return (view) => sessions(view, query);
  if (name === "runbook" && id) return (view) => runbook(view, id);
  if (name === "session" && id) return (view) => session(view, { id, scope: query.get("scope"), tenant: query.get("tenant") ?? "" });
  if (name === "trace" && id) return (view) => trace(view, id, query.get("tenant"));
  return async () => {
    throw new Error("This page has no such view.");
  };
}

async function show({ arrived }) {
  current?.abort.abort();
  const abort = new AbortController();
  const view = {
    abort,
    signal: abort.signal,
    at: Date.now(),
    concerns: () => true,
    // A view that was left must not come back when its requests are answered.
    place: location.hash,
    again: () => {
      if (view.place === location.hash) show({ arrived: false });
    },
    title: (text) => {
      document.title = `${text} · agentgauge`;
      crumbs.replaceChildren(...(text === "All agents" ? [] : [el("a", { href: "#/" }, "All agents"), ` / ${text}`]));
    },
  };
  current = view;
  if (arrived) {
    main.setAttribute("aria-busy", "true");
    forgetFolds();
  }
  try {
    const parts = (await renderer(address())(view)) ?? [];
    // Redrawing an element while it is pressed would lose the click.
    while (!arrived && pressed && current === view) await new Promise((done) => setTimeout(done, 50));
    if (current !== view) return;
    place(parts.flat(Infinity).filter(Boolean), arrived);
  } catch (error) {
    if (error.name === "AbortError" || current !== view) return;
    // The content stays while the daemon is unreachable.
    if (!arrived && error.status === undefined && main.childElementCount) return;
    view.title(error.status === 404 ? "Not found" : "Error");
    place(
      [
        el("h1", {}, error.status === 404 ? "Not found" : "Could not load"),
        el(
          "div",
          { class: "empty" },
          el("p", { role: "alert" }, sentence(error.message)),
          el("p", {}, el("a", { href: "#/" }, "Back to all agents")),
        ),
      ],
      arrived,
    );
  } finally {
    if (current === view) main.removeAttribute("aria-busy");
  }
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/** Puts the view in place; focus and scroll positions stay. */
function place(nodes, arrived) {
  const focusable = () => [...main.querySelectorAll("a[href], button, input, select, summary, [tabindex]")];
  const active = document.activeElement;
  const held = focusable().indexOf(active);
  const typed = held >= 0 && active.matches("input") ? [active.value, active.selectionStart, active.selectionEnd] : null;
  const scrolled = [...main.querySelectorAll(".scroll, .text")].map((box) => [box.scrollLeft, box.scrollTop]);
  main.replaceChildren(...nodes);
  if (arrived) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    return;
  }
  const again = held >= 0 ? (active.id ? document.getElementById(active.id) : focusable()[held]) : null;
  again?.focus({ preventScroll: true });
  // Text that is being typed stays.
  if (typed && again?.matches("input")) {
    again.value = typed[0];
    again.setSelectionRange(typed[1], typed[2]);
  }
  [...main.querySelectorAll(".scroll, .text")].forEach((box, at) => {
    if (scrolled[at]) [box.scrollLeft, box.scrollTop] = scrolled[at];
  });
}

// Changes come in bursts: one rendering for each pause, and none while the page is hidden.
let due = null;
function changed(agents) {
  if (!current || due !== null || document.hidden || !agents.some((row) => current.concerns(row))) return;
  due = setTimeout(
    () => {
      due = null;
      current?.again();
    },
    Math.max(0, current.at + (current.pause ?? PAUSE_MS) - Date.now()),
  );
}

let version = null;
function listen() {
  const events = new EventSource("/api/v1/events");
  const tell = (text, on) => {
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("on", on);
  };
  events.addEventListener("open", async () => {
    tell("live", true);
    const wasLost = !lost.hidden;
    lost.hidden = true;
    if (wasLost) forgetAbout();
    const { version: now, content_kept: kept } = await about();
    document.getElementById("kept").textContent =
      kept === undefined ? "" : kept ? "Prompts, arguments and results are kept" : "Prompts, arguments and results are not kept";
    // Another version of the daemon has another page.
    if (version !== null && now !== undefined && now !== version) location.reload();
    version ??= now ?? null;
    if (wasLost) current?.again();
  });
  events.addEventListener("agents", (event) => {
    const { agents, gone } = JSON.parse(event.data);
    changed([...agents, ...gone]);
  });
  events.addEventListener("error", () => {
    tell("reconnecting", false);
    lost.hidden = false;
    // Refused rather than cut off: the browser does not reconnect by itself.
    if (events.readyState === EventSource.CLOSED) setTimeout(listen, 2000);
  });
}

searching();

const SCHEMES = { "": ["◐", "as in your system"], light: ["☀", "light"], dark: ["☾", "dark"] };
const scheme = document.getElementById("scheme");
function schemed() {
  const chosen = document.documentElement.dataset.scheme ?? "";
  const [sign, text] = SCHEMES[chosen];
  scheme.textContent = sign;
  scheme.title = `Colours: ${text}`;
  scheme.setAttribute("aria-label", scheme.title);
}
scheme.addEventListener("click", () => {
  const order = Object.keys(SCHEMES);
  const chosen = order[(order.indexOf(document.documentElement.dataset.scheme ?? "") + 1) % order.length];
  if (chosen) document.documentElement.dataset.scheme = chosen;
  else delete document.documentElement.dataset.scheme;
  remembered.set("scheme", chosen);
  schemed();
  current?.again();
});
schemed();

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
document.getElementById("zone").textContent = zone === "UTC" ? "Times are in UTC" : `Times are in ${zone}; alerts are in UTC`;

document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.closest?.("input, select, textarea");
  if (typing) {
    if (event.key === "Escape") typing.blur();
    return;
  }
  const rows = [...main.querySelectorAll("[data-row]")];
  const at = rows.indexOf(document.activeElement);
  const step = { j: 1, k: -1 }[event.key];
  if (step && rows.length) rows[Math.min(rows.length - 1, Math.max(0, at + step))].focus();
  else if (event.key === "/") {
    event.preventDefault();
    document.getElementById("find-id").focus();
  } else if (event.key === "n") current?.next?.();
  else if (event.key === "u") (main.querySelector(".sub a") ?? crumbs.querySelector("a"))?.click();
  else if (event.key === "g") location.hash = "#/";
});

addEventListener("hashchange", () => show({ arrived: true }));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) current?.again();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => current?.again());
show({ arrived: true });
listen();
