// What to do about an alert: a section of docs/runbook.md, which uses a small part of Markdown.
import { el } from "./dom.js";

export async function runbook(view, name) {
  const answer = await fetch(`/runbook/${encodeURIComponent(name)}`, { signal: view.signal });
  if (!answer.ok) throw Object.assign(new Error("The runbook has no such section."), { status: answer.status });
  const [heading, ...lines] = (await answer.text()).split("\n");
  view.title(`Runbook: ${heading}`);
  view.concerns = () => false;
  return [el("h1", {}, heading), el("div", { class: "prose" }, blocks(lines))];
}

/** Paragraphs, lists and code. */
function blocks(lines) {
  const made = [];
  let list = null,
    text = [];
  const item = (into, tag) => {
    if (text.length) into.push(el(tag, {}, inline(text.join(" "))));
    text = [];
  };
  const end = () => {
    if (list) {
      item(list.items, "li");
      made.push(el(list.tag, {}, list.items));
      list = null;
    } else item(made, "p");
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const point = line.match(/^(-|\d+\.) (.*)/);
    if (line.startsWith("```")) {
      end();
      const from = at + 1;
      at = lines.indexOf("```", from);
      if (at < 0) at = lines.length;
      made.push(el("pre", { tabindex: "0" }, el("code", {}, lines.slice(from, at).join("\n"))));
    } else if (point) {
      if (list) item(list.items, "li");
      else {
        end();
        list = { tag: point[1] === "-" ? "ul" : "ol", items: [] };
      }
      text = [point[2]];
    } else if (line.trim() === "") end();
    else text.push(line.trim());
  }
  end();
  return made;
}

/** Code, bold text, and links; links to other headings lead to their section, those to files become text. */
function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*|\[[^\]]+\]\([^)]+\))/).map((part) => {
    if (part.startsWith("`")) return el("code", {}, part.slice(1, -1));
    if (part.startsWith("**")) return el("b", {}, inline(part.slice(2, -2)));
    const link = part.match(/^\[([^\]]+)\]\(([^)]+)\)$/);
    if (!link) return part;
    if (/^https?:/.test(link[2])) return el("a", { href: link[2], rel: "noreferrer noopener", target: "_blank" }, link[1]);
    return link[2].startsWith("#") ? el("a", { href: `#/runbook/${link[2].slice(1)}` }, link[1]) : el("i", {}, link[1]);
  });
}
