// Drops of an agent: what became worse, since when, and how to accept it.
import { streamName } from "./problems.js";
import { about, ago, ask, el, fold, foreign, foreignId, number, percent, sessionLink, severity, when } from "./dom.js";

/** The open and asking states of drops, by agent and stream, which outlast a rendering. */
const state = { asking: "", opened: "", problem: { key: "", text: "" } };

/** The drops of an agent, the worst first; if one pages, those that only warn mostly have the same cause, and are folded; `names` is the agent in the form of the API. */
export async function drops(view, one, names) {
  const { needs_token: needsToken } = await about();
  const rank = { critical: 0, warning: 1, recovering: 2 };
  const found = one.drops.filter((drop) => drop.drop !== null && drop.severity in rank).sort((a, b) => rank[a.severity] - rank[b.severity]);
  const shown = found.filter((drop) => drop.severity === found[0].severity),
    others = found.slice(shown.length);
  const titles = others.map((drop, at) => [at > 0 && "; ", heading(drop)]);
  return [
    shown.map((drop) => card(view, drop, names, needsToken)),
    others.length > 0 &&
      fold("drop-others", false, ["Also: ", titles], () => others.map((drop) => card(view, drop, names, needsToken)), "also"),
  ];
}

const heading = (drop) => [
  streamName(drop.stream).replace(/^./, (first) => first.toUpperCase()),
  " up from ",
  percent(drop.drop.from),
  " to ",
  percent(drop.drop.to),
];

function card(view, drop, names, needsToken) {
  const title = el("h2", { id: `drop-${drop.stream}` }, severity(drop.severity), " ", heading(drop));
  return el(
    "section",
    { class: `drop ${drop.severity}`, "aria-labelledby": title.id },
    title,
    el(
      "dl",
      { class: "facts" },
      fact("Since", when(drop.drop.since_unix_nano), ` (${ago(drop.drop.since_unix_nano)})`),
      fact("Over", `${number(drop.drop.traces)} traces`),
      fact("Against", against(drop)),
      drop.drop.signal &&
        fact("Most frequent cause", foreign(drop.drop.signal, 60), drop.drop.tool && [", in the tool ", foreign(drop.drop.tool, 60)]),
      drop.drop.sessions.length > 0 &&
        fact(
          "Examples",
          drop.drop.sessions.map((one, at) => [
            at > 0 && ", ",
            el("a", { href: sessionLink(one, names.tenant), "data-row": true }, foreignId(one.session_id)),
          ]),
        ),
    ),
    drop.severity === "recovering"
      ? el("p", { class: "note" }, "The agent is recovering and the alert has ended. After some more good traces the drop is over.")
      : accept(view, drop, names, needsToken),
  );
}

const fact = (title, ...value) => el("div", {}, el("dt", {}, title), el("dd", {}, value));

function against(drop) {
  if (drop.against === "version_before") return ["version ", foreign(drop.version_before || "(none sent)", 60), ", the one before"];
  return drop.against === "objective" ? "its objective, as it has no past yet" : "its own past";
}

/** A button that asks for confirmation, and the same as a command. */
function accept(view, drop, names, needsToken) {
  const key = JSON.stringify([names, drop.stream]);
  const set = (asking, text = "") => {
    Object.assign(state, { asking, problem: { key, text } });
    view.again();
  };
  const { tenant } = names;
  const accepted = {
    ...Object.fromEntries(Object.entries(names).filter(([name, value]) => value !== "" && name !== "tenant")),
    stream: drop.stream,
  };
  const post = async () => {
    try {
      const { rejected } = await ask("/api/v1/agents/baseline", { tenant: tenant || null }, undefined, accepted);
      if (rejected.length > 0) throw new Error(rejected[0].error);
      set("");
    } catch (error) {
      set("", error.message);
    }
  };
  const buttons =
    state.asking === key
      ? [
          el("span", {}, `Take ${percent(drop.drop.to)} as usual from now on, and raise no alert about it?`),
          el("button", { type: "button", onclick: post }, "Accept"),
          el("button", { type: "button", onclick: () => set("") }, "Cancel"),
        ]
      : el("button", { type: "button", onclick: () => set(key) }, "Accept this level as usual");
  return [
    el("div", { class: "bar" }, buttons),
    state.problem.key === key && state.problem.text && el("p", { role: "alert" }, state.problem.text),
    el(
      "details",
      {
        open: state.opened === key,
        ontoggle: (event) => {
          state.opened = event.target.open ? key : "";
        },
      },
      el("summary", {}, "The same as a command"),
      el(
        "pre",
        { tabindex: "0" },
        el(
          "code",
          {},
          `curl -X POST '${location.origin}/api/v1/agents/baseline${tenant ? `?${new URLSearchParams({ tenant })}` : ""}' -H 'Content-Type: application/json'${needsToken ? ' -H "Authorization: Bearer $AGENTGAUGE_TOKEN"' : ""} -d '${JSON.stringify(accepted).replaceAll("'", "'\\''")}'`,
        ),
      ),
    ),
  ];
}
