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

/** Text from outside, with a direction of its own, cut to a length. */
export function foreign(text, most = 200) {
  const shown = String(text);
  const cut = shown.length > most;
  const bdi = el("bdi", cut ? { title: shown.slice(0, 1000) } : {}, cut ? [...shown.slice(0, most)].join("") + "…" : shown);
  return bdi;
}

/** Asks the API, or with a body tells it; an error has the API's message. */
export async function ask(path, params = {}, signal = undefined, body = undefined) {
  const query = new URLSearchParams(Object.entries(params).filter(([, value]) => value !== null && value !== undefined));
  const told = body && { method: "POST", body: JSON.stringify(body) };
  const headers = { Accept: "application/json", ...(body && { "Content-Type": "application/json" }) };
  const answer = await fetch(query.size ? `${path}?${query}` : path, { headers, signal, ...told });
  const found = await answer.json().catch(() => null);
  if (!answer.ok) {
    const error = new Error(found?.error?.message ?? `the daemon answered ${answer.status}`);
    error.status = answer.status;
    error.scopes = found?.error?.scopes;
    throw error;
  }
  return found;
}

export const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en");
export const dollars = (value) => value === null || value === undefined ? "–"
  : value === 0 ? "$0" : value < 0.01 ? `$${value.toPrecision(2)}` : `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
export const percent = (value) => value === null || value === undefined ? "–" : `${Number((100 * value).toPrecision(3))} %`;
export const plain = (value) => value === null || value === undefined ? "–" : value.toFixed(3);

/** A score with a mark that also tells without colour how good it is. */
export function score(value) {
  if (value === null || value === undefined) return el("span", { class: "none", title: "nothing to measure" }, "–");
  const [kind, sign, word] = value >= 0.9 ? ["good", "✓", "good"] : value >= 0.5 ? ["fair", "~", "fair"] : ["bad", "✗", "poor"];
  return el("span", { class: `mark ${kind}` }, el("span", { "aria-hidden": "true" }, `${sign} `), value.toFixed(3), el("span", { class: "hidden" }, ` ${word}`));
}

export function looping(count) {
  return count > 0 ? el("span", { class: "mark bad" }, `↻ ${number(count)}`) : el("span", { class: "none" }, "0");
}

/** How bad a loop or a drop is, also without colour. */
export function severity(name) {
  const [kind, sign] = { critical: ["bad", "✗"], warning: ["fair", "!"], recovering: ["fair", "↗"] }[name] ?? ["good", "✓"];
  return el("span", { class: `mark ${kind}` }, el("span", { "aria-hidden": "true" }, `${sign} `), name);
}

/** How long ago something was. */
export const ago = (nanos) => `${lasted(nanos, String(BigInt(Date.now()) * 1000000n))} ago`;

export function when(nanos) {
  const date = new Date(Number(BigInt(nanos) / 1000000n));
  // Year first, as on the charts; in the reader's own time zone.
  return el("time", { datetime: date.toISOString(), title: date.toISOString() }, date.toLocaleString("sv-SE"));
}

export function lasted(start, end) {
  const seconds = Number((BigInt(end) - BigInt(start)) / 1000000n) / 1000;
  return seconds < 60 ? `${seconds.toFixed(seconds < 10 ? 1 : 0)} s` : seconds < 3600 ? `${(seconds / 60).toFixed(1)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const tile = (name, value, small = null) => el("div", { class: "tile" }, el("dt", {}, name), el("dd", {}, value, small && el("small", {}, " ", small)));
export const tiles = (...all) => el("dl", { class: "tiles" }, all);

/** A table that scrolls by itself where it is too wide; `columns` are [title, class]. */
export function table(caption, columns, rows) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "hidden" }, caption),
      el("thead", {}, el("tr", {}, columns.map(([title, kind]) => el("th", { scope: "col", class: kind }, title)))),
      el("tbody", {}, rows)));
}

const NAMES = ["service_name", "agent_name", "agent_version", "environment", "tenant"];

/** Where an agent's view is; what was not sent is left out. */
export function agentLink(agent) {
  const query = new URLSearchParams(NAMES.filter((name) => agent[name] !== null && agent[name] !== undefined).map((name) => [name, agent[name]]));
  return `#/agent?${query}`;
}
/** Where a session's view is; without a scope, that of the only one that has the id. */
export function sessionLink({ session_id, scope }, tenant) {
  const query = new URLSearchParams([["scope", scope], ["tenant", tenant]].filter(([, value]) => value !== null && value !== undefined && value !== ""));
  return `#/session/${encodeURIComponent(session_id)}${query.size ? `?${query}` : ""}`;
}
export const traceLink = (id, tenant) => `#/trace/${encodeURIComponent(id)}${tenant ? `?${new URLSearchParams({ tenant })}` : ""}`;
export const agentTitle = (agent) => agent.agent_name ?? agent.service_name ?? "(unnamed agent)";
export const agentDetail = (agent) => [agent.tenant && `tenant ${agent.tenant}`, agent.agent_name && agent.service_name, agent.agent_version && `version ${agent.agent_version}`, agent.environment].filter(Boolean).join(" · ");
/** The agent of an address; exactly this one: what is left out was not sent. */
export const exactly = (query) => Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
export const isSame = (agent, names) => NAMES.every((name) => (agent[name] ?? "") === (names[name] ?? ""));

/** Buttons to turn pages; `turn` gets the new offset. */
export function pager(offset, limit, total, turn) {
  if (total <= limit && offset === 0) return null;
  const last = Math.min(offset + limit, total);
  return el("div", { class: "bar" },
    el("button", { type: "button", disabled: offset === 0, onclick: () => turn(Math.max(0, offset - limit)) }, "← Previous"),
    el("span", {}, `${number(Math.min(offset + 1, total))}–${number(last)} of ${number(total)}`),
    el("button", { type: "button", disabled: last >= total || last > 100000, onclick: () => turn(offset + limit) }, "Next →"));
}
