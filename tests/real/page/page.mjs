// Usage: page.mjs BINARY SCREENSHOTS
import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { turn } from "./feed.mjs";

const [binary, shots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const DEADLINE_MS = 30_000;
const WIDTHS = [["wide", 1280, 900], ["narrow", 390, 800]];
const HOSTILE = {
  script: `<script>window.pwned = 1</script><img src=x onerror="window.pwned = 1">"><svg onload=window.pwned=1>`,
  long: "x".repeat(10_240),
  rightToLeft: "\u202Eمرحبا بالعالم\u202C שלום",
  emoji: "👩‍👩‍👧‍👦 🇺🇳 e\u0301\u0301\u0301 \u0000 \uFFFF",
  link: "javascript:window.pwned=1",
};

const running = new Set();
const problems = [];
let checks = 0;
function check(holds, what) {
  checks += 1;
  if (!holds) problems.push(what);
}

async function daemon() {
  const child = spawn(binary, ["serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", "127.0.0.1:0"], {
    stdio: ["ignore", "pipe", "inherit"],
    env: {
      ...process.env, AGENTGAUGE__ASSEMBLE__TRACE_IDLE: "200ms", AGENTGAUGE__ASSEMBLE__KEEP_CONTENT: "true",
      AGENTGAUGE__API__HISTORY_STEP: "200ms", AGENTGAUGE__LOG__LEVEL: "warn",
    },
  });
  running.add(child);
  child.once("exit", () => running.delete(child));
  const lines = createInterface({ input: child.stdout });
  const { value } = await lines[Symbol.asyncIterator]().next();
  return { ...JSON.parse(value), stop: () => new Promise((done) => { child.once("exit", done); child.kill("SIGTERM"); }) };
}

async function until(what, probe) {
  const end = Date.now() + DEADLINE_MS;
  while (Date.now() < end) {
    const found = await probe().catch(() => null);
    if (found) return found;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(`waited ${DEADLINE_MS} ms for ${what}`);
}

/** A window whose errors, console and requests are watched. */
async function open(browser, http, width, height, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce" });
  const page = await context.newPage();
  const at = `${width} ${colorScheme}`;
  page.expected = [];
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !page.expected.some((text) => message.text().includes(text))) {
      problems.push(`${at}: console: ${message.text()}`);
    }
  });
  page.on("pageerror", (error) => problems.push(`${at}: ${error}`));
  page.on("request", (request) => {
    if (!request.url().startsWith(`${http}/`)) problems.push(`${at}: an external request: ${request.url()}`);
  });
  return { page, at, close: () => context.close() };
}

async function look({ page, at }, name, file) {
  await page.waitForFunction(() => !document.querySelector("main[aria-busy]") && document.querySelector("main h1"));
  await page.waitForTimeout(300);
  check(!(await page.evaluate(() => window.pwned)), `${at} ${name}: text from a span became code`);
  check((await page.locator("main script, main img, main svg, main a[href^='javascript']").count()) === 0, `${at} ${name}: text from a span became elements`);
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  check(over <= 0, `${at} ${name}: wider than the window by ${over}`);
  // In its own world: the page's policy allows no code that is not its own.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, impact, nodes } of violations) {
    check(!["serious", "critical"].includes(impact), `${at} ${name}: axe: ${id} (${impact}): ${nodes[0].html.slice(0, 160)} ${nodes[0].failureSummary.slice(0, 200)}`);
  }
  checks += 1;
  await page.screenshot({ path: `${shots}/${file}.png`, fullPage: true });
}

async function feed(otlp) {
  const shop = { service: "shop", agent: "support-agent", version: "2", cost: 0.0123 };
  for (let at = 0; at < 12; at += 1) {
    await turn(otlp, { ...shop, session: `order-${at}`, question: `Where is order ${at}?`, answer: `Order ${at} is with the carrier, it comes on day ${at}.`, tools: [["find_order", `${at}`, false], ["track", `parcel ${at}`, at % 5 === 4]] });
    await turn(otlp, { ...shop, session: `order-${at}`, question: "Thanks, and the invoice?", answer: `Invoice ${at * 7} is in your mail.`, tools: [["find_invoice", `${at}`, false]] });
  }
  const looping = [];
  for (let at = 0; at < 4; at += 1) {
    looping.push(await turn(otlp, { ...shop, session: "order-stuck", question: "Try again.", answer: `Still looking, ${at}.`, tools: Array(at === 2 ? 12 : 2 + at).fill(["search", "refund policy", false]), failed: at === 3 }));
  }
  const refunds = { service: "shop", agent: "refund-agent", version: "5", question: "Refund", answer: "Refunded." };
  for (let at = 0; at < 220; at += 1) {
    const bad = at >= 150 && at % 5 > 1;
    await turn(otlp, { ...refunds, session: `refund ${at}/+`, tools: [["pay_back", `${at}`, bad]], failed: bad });
  }
  await turn(otlp, { service: "billing", agent: "invoice-agent", version: "1", session: "bill-1", question: "Pay", answer: "Paid." });
  for (const [name, text] of Object.entries(HOSTILE)) {
    await turn(otlp, { service: `svc ${text.slice(0, 200)}`, agent: text, version: text.slice(0, 50), session: "hostile", question: text, answer: `${text} ${name}`, tools: [[text, text, false], [text, text, false], [text, text, false]] });
  }
  return looping[2];
}

async function views(browser, http, trace, width, height, scheme, label) {
  const window = await open(browser, http, width, height, scheme);
  const { page } = window;
  const shot = (name) => `${label}-${scheme}-${name}`;
  await page.goto(`${http}/`);
  await page.getByRole("link", { name: "support-agent" }).waitFor();
  check((await page.locator("tbody tr").first().textContent()).includes("refund-agent"), `${window.at}: what drops comes first`);
  await look(window, "fleet", shot("fleet"));
  await page.getByRole("link", { name: "refund-agent" }).click();
  const drop = page.getByRole("region", { name: /critical Failing traces up from .* to/ });
  await drop.waitFor();
  check(/Since.* ago.*traces.*its own past.*error, in the tool pay_back/s.test(await drop.textContent()), `${window.at}: a drop says what it is: ${await drop.textContent()}`);
  await drop.getByText("The same by command").click();
  check((await drop.locator("code").textContent()).includes('"agent_name":"refund-agent"'), `${window.at}: a command accepts the level`);
  await look(window, "drop", shot("drop"));
  await drop.getByRole("link").first().click();
  await page.getByRole("heading", { name: /Session refund \d+\/\+/ }).waitFor();
  check((await page.locator("ol.strip li.failed").count()) > 0, `${window.at}: an example is of a failing trace`);
  await page.goto(`${http}/`);
  await page.getByRole("link", { name: "support-agent" }).click();
  await page.getByRole("heading", { name: "support-agent" }).waitFor();
  await page.locator(".chart canvas").first().waitFor();
  await look(window, "agent", shot("agent"));
  check((await page.locator("tbody tr").filter({ hasText: "order-stuck" }).count()) === 1, `${window.at}: the worst session is on the first page`);
  await page.getByRole("link", { name: "order-stuck" }).click();
  await page.getByRole("heading", { name: /Session order-stuck/ }).waitFor();
  await page.getByRole("button", { name: "Why this score?" }).nth(2).click();
  await page.getByText("decides").first().waitFor();
  check((await page.locator("ol.strip li.looped").count()) > 0, `${window.at}: calls of a loop are marked`);
  await look(window, "session", shot("session"));
  // Each agent has a session of this id: one chooses.
  page.expected.push("409");
  const texts = [];
  for (let at = 0; at < Object.keys(HOSTILE).length; at += 1) {
    await page.goto(`${http}/#/session/hostile`);
    await page.getByRole("heading", { name: "Sessions hostile" }).waitFor();
    if (at === 0) await look(window, "sessions of one id", shot("scopes"));
    await page.locator("main li a").nth(at).click();
    await page.getByRole("heading", { name: "Session hostile" }).waitFor();
    await page.getByRole("button", { name: "Why this score?" }).first().click();
    await page.getByText("decides").first().waitFor();
    texts.push(await page.locator("main").textContent());
    await look(window, "hostile session", shot(`hostile-${at}`));
  }
  check(texts.some((text) => text.includes("<script>window.pwned")), `${window.at}: hostile text is shown as text`);
  await page.goto(`${http}/#/trace/${trace}`);
  await page.getByText("decides").first().waitFor();
  await look(window, "trace", shot("trace"));
  page.expected.push("404");
  await page.goto(`${http}/#/session/nobody`);
  await page.getByRole("heading", { name: "Not found" }).waitFor();
  await look(window, "not found", shot("missing"));
  await window.close();
}

async function empty(browser, scheme) {
  const { http, stop } = await daemon();
  for (const [label, width, height] of WIDTHS) {
    const window = await open(browser, `http://${http}`, width, height, scheme);
    await window.page.goto(`http://${http}/`);
    await window.page.getByText("No agent has sent a span yet").waitFor();
    await look(window, "empty fleet", `${label}-${scheme}-empty`);
    await window.close();
  }
  await stop();
}

/** What comes in while somebody looks shows by itself; the keyboard goes everywhere; the daemon stops with a reader. */
async function alive(browser) {
  const { http, otlp_http: otlp, stop } = await daemon();
  const window = await open(browser, `http://${http}`, 1280, 900, "light");
  const { page } = window;
  await page.goto(`http://${http}/`);
  await page.getByText("No agent has sent a span yet").waitFor();
  await page.locator("#live.on").waitFor();
  await turn(otlp, { service: "late", agent: "late-agent", version: "1", session: "s", question: "Hi", answer: "Hello." });
  await page.getByRole("link", { name: "late-agent" }).waitFor({ timeout: DEADLINE_MS });
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "late-agent" }).waitFor();
  await page.getByRole("link", { name: "s", exact: true }).waitFor();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Session s" }).waitFor();
  await page.keyboard.press("u");
  await page.getByRole("heading", { name: "late-agent" }).waitFor();
  await page.keyboard.press("/");
  await page.keyboard.type("s");
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Session s" }).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("g");
  await page.getByRole("heading", { name: "Fleet" }).waitFor();
  page.expected.push("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE");
  const asked = Date.now();
  const code = await stop();
  check(code === 0, `the daemon ended with ${code} while somebody read`);
  check(Date.now() - asked < 5000, "a reader held the daemon up");
  await page.locator("#live:not(.on)").waitFor();
  await window.close();
}

/** A drop is over once somebody takes its level for the usual one. */
async function accepted(browser, http) {
  const window = await open(browser, http, 1280, 900, "light");
  const { page } = window;
  await page.goto(`${http}/#/agent?service_name=shop&agent_name=refund-agent&agent_version=5&environment=test`);
  await page.getByRole("button", { name: "Accept this level as usual" }).first().click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Accept this level as usual" }).first().click();
  await page.getByRole("button", { name: "Accept", exact: true }).click();
  await page.getByRole("region", { name: /Failing traces up/ }).waitFor({ state: "detached" });
  await window.close();
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu"] });
try {
  for (const scheme of ["light", "dark"]) await empty(browser, scheme);
  await alive(browser);
  const { http, otlp_http: otlp, stop } = await daemon();
  const trace = await feed(otlp);
  const base = `http://${http}`;
  await until("the drop to be found", async () => {
    const { agents } = await (await fetch(`${base}/api/v1/agents?agent_name=refund-agent`)).json();
    return agents[0].drops.some((drop) => drop.severity === "critical");
  });
  await until("the traces to be done", async () => {
    const { now } = await (await fetch(`${base}/api/v1/traces/${trace}`)).json();
    const { agents } = await (await fetch(`${base}/api/v1/fleet`)).json();
    return now.session_reliability !== null && agents.every((agent) => agent.spark.length > 5);
  });
  for (const [label, width, height] of WIDTHS) {
    for (const scheme of ["light", "dark"]) await views(browser, base, trace, width, height, scheme, label);
  }
  await accepted(browser, base);
  check((await stop()) === 0, "the daemon did not end well");
} catch (error) {
  problems.push(`${error.stack}`);
} finally {
  running.forEach((child) => child.kill());
  await browser.close();
}
problems.forEach((problem) => console.error(problem));
console.log(`${checks - problems.length} passed, ${problems.length} failed; screenshots in ${shots}`);
process.exit(problems.length ? 1 : 0);
