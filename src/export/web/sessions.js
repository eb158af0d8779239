// Lists of sessions: filters, order, pages.
import {
  agentLink,
  agentTitle,
  ask,
  counted,
  dollars,
  el,
  foreign,
  foreignId,
  lasted,
  looping,
  number,
  pager,
  plain,
  sessionLink,
  table,
  toggle,
  when,
} from "./dom.js";

const PAGE = 25;
const FILTERS = [
  ["failing", "Failing"],
  ["loops", "Looping"],
  ["over_limit", "Over a limit"],
  ["silent", "Silent"],
  ["open", "Still open"],
];
const TEXTS = [
  ["id", "Part of the id"],
  ["tool", "Part of a tool's name"],
  ["user", "User"],
];
const fresh = () => ({
  sort: "reliability",
  offset: 0,
  id: "",
  tool: "",
  user: "",
  ...Object.fromEntries(FILTERS.map(([name]) => [name, false])),
});
let state = fresh(),
  of = "";

/** The state of a list is kept as long as it is the same agent's. */
export function listState(key, start = {}) {
  if (of !== key) {
    of = key;
    state = { ...fresh(), ...start };
  }
  return state;
}

/** Requests the current page, of the agents with these names. */
export function listed(names, signal) {
  const chosen = Object.fromEntries([
    ...FILTERS.filter(([name]) => state[name]).map(([name]) => [name, true]),
    ...TEXTS.filter(([name]) => state[name]).map(([name]) => [name, state[name]]),
  ]);
  return ask("/api/v1/sessions", { ...names, ...chosen, detail: "row", sort: state.sort, limit: PAGE, offset: state.offset }, signal);
}

/** Of the columns for wide windows, narrow ones show the one that the list is sorted by. */
const wide = (sort) => (state.sort === sort ? "" : "wide");

export function sessionTable(view, list, withAgent = false) {
  const set = (change) => {
    Object.assign(state, { offset: 0 }, change);
    view.again();
  };
  const sorting = (sort, ascending = false) => ({ on: state.sort === sort, ascending, sort: () => set({ sort }) });
  const text = ([name, label]) =>
    el("input", {
      type: "search",
      id: `filter-${name}`,
      "aria-label": label,
      placeholder: label,
      value: state[name],
      maxlength: 200,
      onchange: (event) => set({ [name]: event.target.value.trim() }),
    });
  const columns = [
    ["Session"],
    withAgent && ["Agent"],
    ["Failing", "number", "Failing turns of all turns"],
    ["Loops", "number", "Loops found; click for most first", sorting("loops")],
    [
      "Reliability",
      `number ${wide("reliability")}`,
      "1 is best: 1 minus the risk of its worst traces; click for worst first",
      sorting("reliability", true),
    ],
    ["Spent", withAgent ? `number ${wide("cost")}` : "number", "Click for costliest first", sorting("cost")],
    ["Began", "wide"],
    ["Last active", wide("recent"), "Click for newest first", sorting("recent")],
    ["Lasted", "number wide"],
    ["State", "wide"],
  ].filter(Boolean);
  return [
    el(
      "div",
      { class: "bar filters", role: "group", "aria-label": "Filter sessions" },
      FILTERS.map(([name, label]) => toggle(label, state[name], (on) => set({ [name]: on }))),
      TEXTS.map(text),
    ),
    list.total === 0
      ? el("p", { class: "empty" }, "No session matches these filters.")
      : table(
          "Sessions",
          columns,
          list.sessions.map((session) => row(session, withAgent)),
        ),
    pager(state.offset, PAGE, list.total, (offset) => {
      state.offset = offset;
      view.again();
    }),
    list.partial &&
      el("p", { class: "note" }, "This list is not complete: other instances hold more sessions, or some were evicted to disk."),
  ];
}

function row(session, withAgent) {
  return el(
    "tr",
    {},
    el(
      "th",
      { scope: "row" },
      el("a", { href: sessionLink(session, session.agent.tenant), "data-row": true }, foreignId(session.session_id)),
    ),
    withAgent && el("td", {}, el("a", { href: agentLink(session.agent) }, foreign(agentTitle(session.agent), 60))),
    el(
      "td",
      { class: "number" },
      session.flagged ? el("span", { class: "mark bad" }, `✗ ${number(session.flagged)}`) : "0",
      ` of ${number(session.total_traces)}`,
    ),
    el("td", { class: "number" }, looping(session.loops)),
    el("td", { class: `number ${wide("reliability")}` }, plain(session.reliability)),
    el("td", { class: withAgent ? `number ${wide("cost")}` : "number" }, dollars(session.cost_usd)),
    el("td", { class: "wide" }, when(session.start_unix_nano)),
    el("td", { class: wide("recent") }, when(session.end_unix_nano, true)),
    el("td", { class: "number wide" }, lasted(session.start_unix_nano, session.end_unix_nano)),
    el("td", { class: "wide" }, session.open ? "open" : "closed"),
  );
}

/** Sessions of any agents: the target of links in alerts. */
export async function sessions(view, query) {
  const names = Object.fromEntries(
    ["service_name", "agent_name", "agent_version", "environment", "tenant"]
      .filter((name) => query.has(name))
      .map((name) => [name, query.get(name)]),
  );
  const start = Object.fromEntries([...query].filter(([name]) => ["sort", "id", "tool", "user"].includes(name)));
  listState(`sessions ${query}`, {
    ...start,
    ...Object.fromEntries(FILTERS.filter(([name]) => query.get(name) === "true").map(([name]) => [name, true])),
  });
  const list = await listed(names, view.signal);
  view.title("Sessions");
  return [
    el("h1", {}, "Sessions"),
    el(
      "p",
      { class: "sub" },
      counted(list.total, "session"),
      Object.entries(names)
        .filter(([, value]) => value !== "")
        .map(([name, value]) => [" · ", name.replaceAll("_", " "), " ", foreign(value, 60)]),
    ),
    sessionTable(view, list, true),
  ];
}
