// Charts, by uPlot, and sparklines, on a canvas. Lines differ in dash as well as in colour.
import { el, firstLetters } from "./dom.js";

/** A colour of the style sheet, in the current scheme. */
const probe = el("i", { hidden: true });
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const COLOURS = ["--one", "--two", "--three", "--four"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

/** uPlot's forms of times, and those of the page: the year first, hours up to 23. */
const TEMPLATES = [
  ["{h}:{mm}{aa}", "{HH}:{mm}"],
  ["{h}{aa}", "{HH}:00"],
  ["{M}/{D}/{YY}", "{YYYY}-{MM}-{DD}"],
  ["{M}/{D}", "{MM}-{DD}"],
  ["{h}:{mm}:{ss}{aa}", "{HH}:{mm}:{ss}"],
  ["{YY}", "{YYYY}"],
];

/** The legend of a chart shows its newest values unless a point is selected. */
const newest = (plot) => plot.setLegend({ idx: plot.data[0].length - 1 });

/** A gap of this many missing steps means that the daemon did not run, and the line ends. */
const GAP = 4;

/** Columns with an empty place where the daemon did not run. */
function broken(times, columns, step) {
  const kept = [times, ...columns].map(() => []);
  times.forEach((time, at) => {
    if (at > 0 && step > 0 && time - times[at - 1] > GAP * step)
      [times[at - 1] + step, ...columns.map(() => null)].forEach((value, place) => kept[place].push(value));
    [time, ...columns.map((column) => column[at])].forEach((value, place) => kept[place].push(value));
  });
  return kept;
}

/** A chart of columns over time: `series` are [name, values], `step` seconds between two points, `marks` [time, text]. */
export function chart(
  caption,
  nanos,
  shown,
  { step = 0, unit = null, low = null, high = null, share = false, states: told = null, marks = [] } = {},
) {
  const box = el("div", { class: "chart" });
  const exact = (value) => Number(BigInt(value) / 1000000n) / 1000;
  const columns = broken(nanos.map(exact), [...shown.map(([, values]) => values), told ?? []], step);
  const times = columns[0],
    states = told && columns.at(-1);
  const series = shown.map(([name], at) => [name, columns[at + 1]]);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const text = (value) =>
    value === null || value === undefined
      ? "–"
      : share
        ? `${(100 * value).toLocaleString("en", { maximumFractionDigits: 1 })} %`
        : unit && value > 0 && value < 0.01
          ? `${unit}${Number(value.toPrecision(2))}`
          : `${unit ?? ""}${value.toLocaleString("en", { minimumFractionDigits: unit && value % 1 ? 2 : 0, maximumFractionDigits: unit || value < 10 ? 2 : 0 })}`;
  // There is room for a few characters beside an axis.
  const brief = (value) =>
    !share && value !== null && Math.abs(value) >= 10_000
      ? `${unit ?? ""}${value.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 })}`
      : text(value);
  const draw = () => {
    const width = Math.floor(box.clientWidth);
    if (width === 0) return;
    box.replaceChildren();
    const plot = new window.uPlot(
      {
        width,
        height: 190,
        fmtDate: (template) => window.uPlot.fmtDate(TEMPLATES.reduce((all, [from, to]) => all.replace(from, to), template)),
        scales: {
          y: {
            range: (_, least, most) => [
              low ?? Math.min(0, least ?? 0),
              high ?? Math.max(share ? 0.1 : unit ? 0.05 : 4, Math.min(share ? 1 : Infinity, (most ?? 0) * 1.15)),
            ],
          },
        },
        axes: [
          { ...axis, space: 80 },
          { ...axis, size: 56, values: (_, values) => values.map(brief) },
        ],
        series: [
          { label: "Time", value: "{MM}-{DD} {HH}:{mm}:{ss}" },
          ...series.map(([label], at) => ({
            label,
            stroke: colour(COLOURS[at % 4]),
            width: 2,
            dash: DASHES[at % 4],
            spanGaps: false,
            value: (_, value) => text(value),
            points: { show: false },
          })),
        ],
        hooks: {
          drawClear: states ? [(plot) => shade(plot, times, states)] : [],
          draw: [
            (plot) => {
              let free = -Infinity;
              byTime(marks).forEach(([at, name]) => {
                free = mark(plot, exact(at), name, free);
              });
            },
          ],
          setCursor: [
            (plot) => {
              if (plot.cursor.idx === null || plot.cursor.idx === undefined) newest(plot);
            },
          ],
        },
      },
      [times, ...series.map(([, values]) => values)],
      box,
    );
    newest(plot);
    // The caption and the tables say what the legend says.
    box.querySelector("canvas")?.setAttribute("aria-hidden", "true");
  };
  const watch = new ResizeObserver(() => {
    if (!box.isConnected) {
      watch.disconnect();
      return;
    }
    if (Math.floor(box.clientWidth) !== box.drawn) {
      box.drawn = Math.floor(box.clientWidth);
      draw();
    }
  });
  queueMicrotask(() => watch.observe(box));
  return el("figure", {}, el("figcaption", {}, caption), box);
}

/** Shades the stretches in which a stream was in a drop. */
function shade(plot, times, states) {
  const { ctx, bbox } = plot;
  ctx.save();
  states.forEach((state, at) => {
    const fill = { critical: "--bad-back", warning: "--fair-back", recovering: "--panel" }[state];
    if (!fill) return;
    const from = plot.valToPos(times[at], "x", true),
      to = plot.valToPos(times[at + 1] ?? times[at], "x", true);
    ctx.fillStyle = colour(fill);
    ctx.fillRect(from, bbox.top, Math.max(1, to - from + 1), bbox.height);
  });
  ctx.restore();
}

const byTime = (marks) => marks.toSorted(([one], [other]) => (BigInt(one) < BigInt(other) ? -1 : 1));

/** A vertical line at an event, named if there is room from `free` on; returns where there is room after it. */
function mark(plot, time, name, free) {
  const { ctx, bbox } = plot;
  const { min, max } = plot.scales.x;
  if (time < min || time > max) return free;
  const x = plot.valToPos(time, "x", true),
    ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = colour("--soft");
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "top";
  const text = name.length > 16 ? `${firstLetters(name, 15)}…` : name;
  const after = x + ctx.measureText(text).width + 6 * ratio < bbox.left + bbox.width;
  ctx.textAlign = "left";
  const wide = ctx.measureText(text).width,
    from = after ? x + 4 * ratio : x - 4 * ratio - wide;
  const fits = from >= free;
  if (fits) ctx.fillText(text, from, bbox.top + 2 * ratio);
  ctx.restore();
  return fits ? from + wide + 4 * ratio : free;
}

/** A small line of shares from 0 to 1, at least to 0.2; the newest value is beside it in the table. */
export function sparkline(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return el("span", { class: "none" }, "–");
  const ratio = window.devicePixelRatio || 1;
  const least = Math.min(...known),
    most = Math.max(...known),
    height = Math.max(0.2, most);
  const canvas = el("canvas", {
    class: "spark",
    width: 120 * ratio,
    height: 30 * ratio,
    role: "img",
    "aria-label": `from ${known[0].toFixed(2)} to ${known.at(-1).toFixed(2)}, least ${least.toFixed(2)}, greatest ${most.toFixed(2)}`,
  });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.strokeStyle = colour("--line");
  pen.beginPath();
  pen.moveTo(0, 27.5);
  pen.lineTo(120, 27.5);
  pen.stroke();
  pen.strokeStyle = colour("--one");
  pen.lineWidth = 1.5;
  pen.beginPath();
  let down = false;
  values.forEach((value, at) => {
    if (value === null) {
      down = false;
      return;
    }
    const x = 2 + (at * 116) / Math.max(1, values.length - 1),
      y = 27 - (value / height) * 24;
    if (down) pen.lineTo(x, y);
    else pen.moveTo(x, y);
    down = true;
  });
  pen.stroke();
  return canvas;
}
