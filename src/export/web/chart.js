// Charts, by uPlot, and sparklines, on a canvas. Lines differ in dash as well as in colour.
import { el } from "./dom.js";

/** A colour of the style sheet, as it is in the scheme that is shown. */
const probe = el("i", { hidden: true });
function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

const COLOURS = ["--one", "--two", "--three", "--four"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];

/** How uPlot writes times, and how we do: the year first, hours up to 23. */
const TEMPLATES = [["{h}:{mm}{aa}", "{HH}:{mm}"], ["{h}{aa}", "{HH}:00"], ["{M}/{D}/{YY}", "{YYYY}-{MM}-{DD}"], ["{M}/{D}", "{MM}-{DD}"], ["{h}:{mm}:{ss}{aa}", "{HH}:{mm}:{ss}"], ["{YY}", "{YYYY}"]];

/** The legend of a chart that nobody points at has its newest values. */
const newest = (plot) => plot.setLegend({ idx: plot.data[0].length - 1 });

/** A chart of columns over time: `series` are [name, values]. */
export function chart(caption, nanos, series, { unit = null, low = null, high = null, share = false, states = null } = {}) {
  const box = el("div", { class: "chart" });
  const times = nanos.map((value) => Number(BigInt(value) / 1000000n) / 1000);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  const text = (value) => value === null || value === undefined ? "–" : share ? `${(100 * value).toLocaleString("en", { maximumFractionDigits: 1 })} %` : `${unit ?? ""}${value.toLocaleString("en", { maximumFractionDigits: 2 })}`;
  const draw = () => {
    const width = Math.floor(box.clientWidth);
    if (width === 0) return;
    box.replaceChildren();
    const plot = new window.uPlot({
      width, height: 190, fmtDate: (template) => window.uPlot.fmtDate(TEMPLATES.reduce((all, [from, to]) => all.replace(from, to), template)),
      scales: { y: { range: (_, least, most) => [low ?? Math.min(0, least ?? 0), high ?? Math.max(share ? 0.1 : unit ? 0.01 : 1, Math.min(share ? 1 : Infinity, (most ?? 0) * 1.15))] } },
      axes: [{ ...axis }, { ...axis, size: 56, values: (_, values) => values.map(text) }],
      series: [{ label: "Time", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }, ...series.map(([label], at) => ({
        label, stroke: colour(COLOURS[at % 4]), width: 2, dash: DASHES[at % 4], spanGaps: false,
        value: (_, value) => text(value),
        points: { show: false },
      }))],
      hooks: { drawClear: states ? [(plot) => shade(plot, times, states)] : [], setCursor: [(plot) => { if (plot.cursor.idx === null || plot.cursor.idx === undefined) newest(plot); }] },
    }, [times, ...series.map(([, values]) => values)], box);
    newest(plot);
    // What the legend says, the caption and the tables say too.
    box.querySelector("canvas")?.setAttribute("aria-hidden", "true");
  };
  const watch = new ResizeObserver(() => {
    if (!box.isConnected) { watch.disconnect(); return; }
    if (Math.floor(box.clientWidth) !== box.drawn) { box.drawn = Math.floor(box.clientWidth); draw(); }
  });
  queueMicrotask(() => watch.observe(box));
  return el("figure", {}, el("figcaption", {}, caption), box);
}

/** Shades the stretches in which a stream was said to drop. */
function shade(plot, times, states) {
  const { ctx, bbox } = plot;
  ctx.save();
  states.forEach((state, at) => {
    const fill = { critical: "--bad-back", warning: "--fair-back", recovering: "--panel" }[state];
    if (!fill) return;
    const from = plot.valToPos(times[at], "x", true), to = plot.valToPos(times[at + 1] ?? times[at], "x", true);
    ctx.fillStyle = colour(fill);
    ctx.fillRect(from, bbox.top, Math.max(1, to - from + 1), bbox.height);
  });
  ctx.restore();
}

/** A small line of shares from 0 to 1, at least to 0.2; the newest value stands beside it in the table. */
export function sparkline(values) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return el("span", { class: "none" }, "–");
  const ratio = window.devicePixelRatio || 1;
  const least = Math.min(...known), most = Math.max(...known), height = Math.max(0.2, most);
  const canvas = el("canvas", { class: "spark", width: 120 * ratio, height: 30 * ratio, role: "img", "aria-label": `from ${known[0].toFixed(2)} to ${known.at(-1).toFixed(2)}, least ${least.toFixed(2)}, greatest ${most.toFixed(2)}` });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  pen.strokeStyle = colour("--line");
  pen.beginPath(); pen.moveTo(0, 27.5); pen.lineTo(120, 27.5); pen.stroke();
  pen.strokeStyle = colour("--one");
  pen.lineWidth = 1.5;
  pen.beginPath();
  let down = false;
  values.forEach((value, at) => {
    if (value === null) { down = false; return; }
    const x = 2 + at * 116 / Math.max(1, values.length - 1), y = 27 - value / height * 24;
    if (down) pen.lineTo(x, y); else pen.moveTo(x, y);
    down = true;
  });
  pen.stroke();
  return canvas;
}
