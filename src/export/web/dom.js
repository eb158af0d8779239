// Elements, numbers and requests. Text from outside only ever becomes a text node.

/** Makes an element; attributes by name, `on...` are listeners; children are nodes or text. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** The first letters of a text, none of them cut in two. */
export const firstLetters = (text, most) => [...text.slice(0, 2 * most)].slice(0, most).join("");

/** Text from outside, with its own direction, cut to a length. */
export function foreign(text, most = 200) {
  const shown = String(text);
  const cut = shown.length > most;
  return el("bdi", cut ? { title: firstLetters(shown, 1000) } : {}, cut ? firstLetters(shown, most) + "…" : shown);
}

/** An id from outside, cut in the middle to a length: ids often differ only at the end. */
export function foreignId(id, most = 60) {
  const letters = [...String(id)];
  if (letters.length <= most) return foreign(id, id.length);
  const half = Math.floor(most / 2);
  return el("bdi", { title: letters.slice(0, 1000).join("") }, [...letters.slice(0, half), "…", ...letters.slice(-half)].join(""));
}

/** Sends a request to the API, by POST if there is a body; an error has the API's message. */
export async function ask(path, params = {}, signal = undefined, body = undefined) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  const posted = body && { method: "POST", body: JSON.stringify(body) };
  const headers = { Accept: "application/json", ...(body && { "Content-Type": "application/json" }) };
  const answer = await fetch(query.size ? `${path}?${query}` : path, { headers, signal, ...posted }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("the daemon does not answer");
  });
  const found = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(found?.error?.message ?? `the daemon answered ${answer.status}`);
    error.status = answer.status;
    error.scopes = found?.error?.scopes;
    throw error;
  }
  return found;
}

let cachedAbout = null;
/** The facts about the daemon, requested once. */
export function about() {
  cachedAbout ??= ask("/api/v1/about").catch(() => {
    cachedAbout = null;
    return {};
  });
  return cachedAbout;
}
export const forgetAbout = () => {
  cachedAbout = null;
};

const absent = (value) => value === null || value === undefined;
export const number = (value) => (absent(value) ? "–" : value.toLocaleString("en"));
export const dollars = (value) =>
  absent(value)
    ? "–"
    : value === 0
      ? "$0"
      : value < 0.01
        ? `$${Number(value.toPrecision(2))}`
        : `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
export const percent = (value) =>
  absent(value) ? "–" : `${(100 * value).toLocaleString("en", { maximumFractionDigits: 100 * value < 10 ? 1 : 0 })}\u00a0%`;
export const plain = (value) => (absent(value) ? "–" : value.toFixed(2));
export const score = (value) =>
  absent(value) ? el("span", { class: "none", title: "There is nothing to measure yet" }, "–") : value.toFixed(2);

export function looping(count) {
  return count > 0 ? el("span", { class: "mark bad" }, `↻ ${number(count)}`) : el("span", { class: "none" }, "0");
}

/** The usual share of an agent; in brackets the objective, until it has a past. */
export const usual = (agent) => (agent.usual_by === "objective" ? `(${percent(agent.usual)})` : percent(agent.usual));
/** The order of versions: numbers in them count as numbers. */
export const byVersion = (one, other) => (one.agent_version ?? "").localeCompare(other.agent_version ?? "", "en", { numeric: true });

/** The severity of a loop or a drop, readable without colour. */
export function severity(name, text = name) {
  const [kind, sign] = { critical: ["bad", "✗"], warning: ["fair", "!"], recovering: ["calm", "↗"] }[name] ?? ["good", "✓"];
  return el("span", { class: `mark ${kind}` }, el("span", { "aria-hidden": "true" }, `${sign} `), text);
}

/** The state of an agent without problems. Nothing is usual yet for an agent that is compared with its objective. */
const standing = (agent) =>
  agent.usual_by !== "objective" ? "as usual" : agent.failure_ratio > agent.usual ? "above its objective, not yet certain" : "new";

/** The worst problem of a version of an agent, whose loops have the severity `worstLoop`; its state if there is none. */
export function stateOf(agent, worstLoop = "warning") {
  if (agent.drop === "critical") return severity("critical", "fails more");
  if (agent.sessions_looping > 0) return severity(worstLoop, "loops");
  if (agent.sessions_over_limit > 0) return severity("critical", "over a limit");
  if (agent.drop) return severity(agent.drop, "fails more");
  if (agent.traces_stalled > 0) return severity("warning", "hangs");
  return el("span", { class: "none" }, standing(agent));
}

/** A number of things, in words. */
export const counted = (count, what) => `${number(count)} ${what}${count === 1 ? "" : "s"}`;

/** How long ago something was. */
export const ago = (nanos) => `${lasted(nanos, String(BigInt(Date.now()) * 1000000n))} ago`;

/** A time; with `brief` without the day, if that is today. */
export function when(nanos, brief = false) {
  const date = new Date(Number(BigInt(nanos) / 1000000n));
  const isToday = date.toDateString() === new Date().toDateString();
  // Year first, as on the charts; in the reader's own time zone.
  const text = date.toLocaleString("sv-SE");
  return el("time", { datetime: date.toISOString(), title: date.toISOString() }, brief && isToday ? text.slice(11) : text);
}

export const seconds = (start, end) => Number((BigInt(end) - BigInt(start)) / 1000n) / 1e6;
export const lasted = (start, end) => time(seconds(start, end));
export function time(value) {
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 60
    ? `${value.toFixed(value < 10 ? 1 : 0)} s`
    : value < 3600
      ? `${(value / 60).toFixed(1)} min`
      : `${(value / 3600).toFixed(1)} h`;
}

export const tile = (name, value, small = null, tip = null) =>
  el("div", { class: "tile", title: tip }, el("dt", {}, name), el("dd", {}, value, small && el("small", {}, " ", small)));
export const tiles = (...all) => el("dl", { class: "tiles" }, all);

/** A table that scrolls by itself if it is too wide; `columns` are [title, class, tip, sorting]: whether it is sorted by this column, least first if `ascending`, and the effect of a click. */
export function table(caption, columns, rows) {
  const head = ([title, kind, tip, sorting]) =>
    el(
      "th",
      { scope: "col", class: kind, title: tip, "aria-sort": sorting?.on ? (sorting.ascending ? "ascending" : "descending") : null },
      sorting
        ? el("button", { type: "button", class: "sort", onclick: sorting.sort }, title, sorting.on ? (sorting.ascending ? " ↑" : " ↓") : "")
        : title,
    );
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption), el("thead", {}, el("tr", {}, columns.map(head))), el("tbody", {}, rows)),
  );
}

/** Copies a text; confirms it for a moment. */
export function copy(text, what) {
  const button = el("button", { type: "button", class: "copy", title: `Copy ${what}`, "aria-label": `Copy ${what}` }, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    } catch {
      button.textContent = "not allowed";
    }
    setTimeout(() => {
      button.textContent = "copy";
    }, 1200);
  });
  return button;
}

const folds = new Map();
/** An element that folds, and keeps its state when the view is drawn again; its content is made when it is opened. */
export function fold(key, open, summary, inside, kind = null) {
  const isOpen = folds.get(key) ?? open;
  const box = el("details", { open: isOpen, class: kind, "data-fold": key }, el("summary", {}, summary));
  let filled = false;
  const fill = () => {
    if (!filled) {
      filled = true;
      box.append(...[inside()].flat(Infinity).filter(Boolean));
    }
  };
  if (isOpen) fill();
  box.fill = fill;
  box.addEventListener("toggle", () => {
    if (box.open) fill();
    folds.set(key, box.open);
  });
  return box;
}
/** Opens the fold with a key, when it is drawn next. */
export const unfold = (key) => folds.set(key, true);
export const forgetFolds = () => folds.clear();

const NAMES = ["service_name", "agent_name", "agent_version", "environment", "tenant"];

/** The address of an agent's view; what was not sent is left out. */
export function agentLink(agent) {
  return `#/agent?${new URLSearchParams(NAMES.filter((name) => !absent(agent[name])).map((name) => [name, agent[name]]))}`;
}
/** The address of a session's view; without a scope, that of the only session with the id. */
export function sessionLink({ session_id, scope }, tenant) {
  const query = new URLSearchParams(
    [
      ["scope", scope],
      ["tenant", tenant],
    ].filter(([, value]) => !absent(value) && value !== ""),
  );
  return `#/session/${encodeURIComponent(session_id)}${query.size ? `?${query}` : ""}`;
}
export const traceLink = (id, tenant) => `#/trace/${encodeURIComponent(id)}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`;
export const agentTitle = (agent) => agent.agent_name ?? agent.service_name ?? "(unnamed agent)";
export const agentDetail = (agent) =>
  [
    agent.tenant && `tenant ${agent.tenant}`,
    agent.agent_name && agent.service_name,
    agent.agent_version && `version ${agent.agent_version}`,
    agent.environment,
  ]
    .filter(Boolean)
    .join(" · ");
/** The agent of an address; exactly this one: what is left out was not sent. */
export const exactly = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
export const isSame = (agent, names) => NAMES.every((name) => (agent[name] ?? "") === (names[name] ?? ""));

/** A link to where the trace is stored, if there is one. */
export function outward(link, traceId) {
  if (!link) return null;
  return el(
    "a",
    { class: "out", href: link.replaceAll("{trace_id}", encodeURIComponent(traceId)), target: "_blank", rel: "noreferrer noopener" },
    "Open in trace store ↗",
  );
}

/** Buttons to turn pages; `turn` gets the new offset. */
export function pager(offset, limit, total, turn) {
  if (total <= limit && offset === 0) return null;
  const last = Math.min(offset + limit, total);
  return el(
    "div",
    { class: "bar" },
    el("button", { type: "button", disabled: offset === 0, onclick: () => turn(Math.max(0, offset - limit)) }, "← Previous"),
    el("span", {}, `${number(Math.min(offset + 1, total))}–${number(last)} of ${number(total)}`),
    el("button", { type: "button", disabled: last >= total || last > 100000, onclick: () => turn(offset + limit) }, "Next →"),
  );
}

/** A choice of one of many, with all of them first. */
export function choice(label, values, chosen, pick) {
  const shown = values.length > 0 ? [...values] : [];
  if (chosen && !shown.includes(chosen)) shown.push(chosen);
  const select = el(
    "select",
    { "aria-label": label, id: `choice-${label.replaceAll(" ", "-").toLowerCase()}`, onchange: (event) => pick(event.target.value) },
    el("option", { value: "" }, `${label}: all`),
    shown.map((value) => el("option", { value, selected: value === chosen }, firstLetters(value, 80))),
  );
  return select;
}
export const toggle = (label, on, set) =>
  el("button", { type: "button", "aria-pressed": String(Boolean(on)), onclick: () => set(!on) }, label);
