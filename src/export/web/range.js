// The range of the history: chosen once, for every view, and remembered.
import { about, el } from "./dom.js";

const HOUR = 3600;
const RANGES = [
  ["1h", HOUR, "1 hour"],
  ["6h", 6 * HOUR, "6 hours"],
  ["24h", 24 * HOUR, "24 hours"],
  ["7d", 168 * HOUR, "7 days"],
];
let chosen = remembered.get("range") ?? RANGES[0][0];

const isKept = (seconds, kept) => seconds === HOUR || seconds <= kept;

/** The range in requests to the API: the choice, as far as the daemon's history reaches. */
export async function range() {
  const { history_seconds: kept = 0 } = await about();
  return RANGES.find(([name, seconds]) => name === chosen && isKept(seconds, kept))?.[0] ?? RANGES[0][0];
}

/** The choice, as buttons. */
export async function ranges(view) {
  const { history_seconds: kept = 0 } = await about();
  const now = await range();
  const button = ([name, seconds, title]) =>
    el(
      "button",
      {
        type: "button",
        "aria-pressed": String(name === now),
        disabled: !isKept(seconds, kept),
        "aria-label": `Last ${name}`,
        title: isKept(seconds, kept) ? `The last ${title}` : "Only the last hour is in memory. With --data-dir the daemon keeps a week.",
        onclick: () => {
          chosen = name;
          remembered.set("range", name);
          view.again();
        },
      },
      name,
    );
  return el("div", { class: "ranges", role: "group", "aria-label": "Time range" }, RANGES.map(button));
}
