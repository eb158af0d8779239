// Usage: page.mjs BINARY SCREENSHOTS
import { spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";
import { turn, turns } from "./feed.mjs";

const [binary, shots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const DEADLINE_MS = 30_000;
const WIDTHS = [
  ["wide", 1280, 900],
  ["narrow", 390, 800],
];
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

/** Starts a command; returns its first line, and what ends it. */
async function start(command, env = {}) {
  const child = spawn(binary, command, {
    stdio: ["ignore", "pipe", "inherit"],
    env: { ...process.env, AGENTGAUGE__LOG__LEVEL: "warn", ...env },
  });
  running.add(child);
  child.once("exit", () => running.delete(child));
  const lines = createInterface({ input: child.stdout });
  const { value } = await lines[Symbol.asyncIterator]().next();
  lines.on("line", () => {});
  return {
    line: value,
    stop: () =>
      new Promise((done) => {
        child.once("exit", done);
        child.kill("SIGTERM");
      }),
  };
}

async function daemon({ http = "127.0.0.1:0", keep = true, more = {} } = {}) {
  const { line, stop } = await start(["serve", "--otlp-grpc", "127.0.0.1:0", "--otlp-http", "127.0.0.1:0", "--http", http], {
    AGENTGAUGE__ASSEMBLE__TRACE_IDLE: "200ms",
    AGENTGAUGE__ASSEMBLE__KEEP_CONTENT: String(keep),
    AGENTGAUGE__API__HISTORY_STEP: "200ms",
    AGENTGAUGE__LINKS__TRACE: "jaeger+http://jaeger.test:16686",
    ...more,
  });
  return { ...JSON.parse(line), stop };
}

async function until(what, probe, deadline = DEADLINE_MS) {
  const end = Date.now() + deadline;
  while (Date.now() < end) {
    const found = await probe().catch(() => null);
    if (found) return found;
    await new Promise((done) => setTimeout(done, 100));
  }
  throw new Error(`waited ${deadline} ms for ${what}`);
}

/** A window whose errors, console and requests are watched. */
async function open(browser, http, width, height, colorScheme, more = {}) {
  const context = await browser.newContext({ viewport: { width, height }, colorScheme, reducedMotion: "reduce", ...more });
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
  check(
    (await page.locator("main script, main img, main svg, main a[href^='javascript']").count()) === 0,
    `${at} ${name}: text from a span became elements`,
  );
  const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  check(over <= 0, `${at} ${name}: wider than the window by ${over}`);
  // In its own world: the page's policy allows no code that is not its own.
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const { id, impact, nodes } of violations) {
    check(false, `${at} ${name}: axe: ${id} (${impact}): ${nodes[0].html.slice(0, 160)} ${nodes[0].failureSummary.slice(0, 200)}`);
  }
  checks += 1;
  await page.screenshot({ path: `${shots}/${file}.png`, fullPage: true });
}

async function feed(otlp) {
  const shop = { service: "shop", agent: "support-agent", version: "2", cost: 0.0123 };
  for (let at = 0; at < 12; at += 1) {
    await turn(otlp, {
      ...shop,
      session: `order-${at}`,
      question: `Where is order ${at}?`,
      answer: `Order ${at} is with the carrier, it comes on day ${at}.`,
      tools: [
        ["find_order", `${at}`, false],
        ["track", `parcel ${at}`, at % 5 === 4],
      ],
    });
    await turn(otlp, {
      ...shop,
      session: `order-${at}`,
      question: "Thanks, and the invoice?",
      answer: `Invoice ${at * 7} is in your mail.`,
      tools: [["find_invoice", `${at}`, false]],
    });
  }
  const remarked = { "session.previous_id": "order-0", "gen_ai.guardrail.name": "no-pii", "gen_ai.guardrail.status": "PASSED" };
  const looping = [];
  for (let at = 0; at < 4; at += 1) {
    looping.push(
      await turn(otlp, {
        ...shop,
        session: "order-stuck",
        question: "Try again.",
        answer: `Still looking, ${at}.`,
        tools: Array(at === 2 ? 12 : 2 + at).fill(["search", "refund policy", false]),
        failed: at === 3,
        more: remarked,
      }),
    );
  }
  const refunds = {
    service: "shop",
    agent: "refund-agent",
    version: "5",
    question: "Refund",
    answer: "Refunded.",
    call: { "gen_ai.response.time_to_first_chunk": 0.004 },
  };
  for (let at = 0; at < 220; at += 1) {
    const bad = at >= 150 && at % 5 > 1;
    await turn(otlp, { ...refunds, session: `refund ${at}/+`, tools: [["pay_back", `${at}`, bad]], failed: bad });
  }
  await turn(otlp, { service: "billing", agent: "invoice-agent", version: "1", session: "bill-1", question: "Pay", answer: "Paid." });
  for (const [name, text] of Object.entries(HOSTILE)) {
    await turn(otlp, {
      service: `svc ${text.slice(0, 200)}`,
      agent: text,
      version: text.slice(0, 50),
      session: "hostile",
      question: text,
      answer: `${text} ${name}`,
      tools: [
        [text, text, false],
        [text, text, false],
        [text, text, false],
      ],
    });
  }
  return looping[2];
}

async function views(browser, http, trace, width, height, scheme, label) {
  const window = await open(browser, http, width, height, scheme);
  const { page } = window;
  const shot = (name) => `${label}-${scheme}-${name}`;
  await page.goto(`${http}/`);
  await page.locator("tbody").getByRole("link", { name: "support-agent" }).waitFor();
  check((await page.locator("tbody tr").first().textContent()).includes("refund-agent"), `${window.at}: what drops comes first`);
  const first = page.locator(".card").first();
  check(
    /Fails more.*refund-agent.*up from.*to.*pay_back.*since/s.test(await first.textContent()),
    `${window.at}: a card says what is wrong: ${await first.textContent()}`,
  );
  check((await first.boundingBox()).y < height, `${window.at}: what is wrong is on the first screen`);
  await look(window, "fleet", shot("fleet"));
  await page.getByRole("button", { name: "Only with problems" }).click();
  await page.locator("tbody").getByRole("link", { name: "invoice-agent" }).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Only with problems" }).click();
  await page.locator("tbody").getByRole("link", { name: "refund-agent" }).click();
  const drop = page.getByRole("region", { name: /critical Failing traces up from .* to/ });
  await drop.waitFor();
  check(
    /Since.* ago.*traces.*its own past.*error, in the tool pay_back/s.test(await drop.textContent()),
    `${window.at}: a drop says what it is: ${await drop.textContent()}`,
  );
  await drop.getByText("The same as a command").click();
  check((await drop.locator("code").textContent()).includes('"agent_name":"refund-agent"'), `${window.at}: a command accepts the level`);
  await look(window, "drop", shot("drop"));
  await drop.getByRole("link").first().click();
  await page.getByRole("heading", { name: /Session refund \d+\/\+/ }).waitFor();
  check((await page.locator(".waterfall b.failed").count()) > 0, `${window.at}: an example is of a failing trace`);
  check(
    (await page.locator(".waterfall").first().textContent()).includes("first chunk after 4 ms"),
    `${window.at}: a model call says when its answer began`,
  );
  check(
    (await page.getByRole("link", { name: "Open in trace store" }).first().getAttribute("href")).startsWith(
      "http://jaeger.test:16686/trace/",
    ),
    `${window.at}: a turn links to where its trace is stored`,
  );
  await page.goto(`${http}/`);
  await page.locator("tbody").getByRole("link", { name: "support-agent" }).click();
  await page.getByRole("heading", { name: "support-agent" }).waitFor();
  await page.locator(".chart canvas").first().waitFor();
  check(
    (await page.getByRole("group", { name: "Time range" }).getByRole("button", { disabled: true }).count()) === 3,
    `${window.at}: what is not in memory cannot be chosen`,
  );
  await look(window, "agent", shot("agent"));
  check(
    (await page.locator("tbody tr").filter({ hasText: "order-stuck" }).count()) === 1,
    `${window.at}: the worst session is on the first page`,
  );
  await page.getByRole("link", { name: "order-stuck" }).click();
  await page.getByRole("heading", { name: /Session order-stuck/ }).waitFor();
  await page.keyboard.press("n");
  await page.locator(".turn[open]").first().getByRole("button", { name: "Why this score?" }).click();
  await page.getByText("decides").first().waitFor();
  check((await page.locator(".waterfall .loop").count()) > 0, `${window.at}: calls of a loop are marked`);
  check(/continues order-0/.test(await page.locator(".sub").first().textContent()), `${window.at}: a session links to the one before`);
  check((await page.getByText("Guardrails: no-pii: PASSED.").count()) > 0, `${window.at}: what a guardrail decided is shown`);
  check((await page.locator(".block").count()) === 4, `${window.at}: each turn has its block`);
  await look(window, "session", shot("session"));
  // Each agent has a session with this id: the user chooses one.
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
  check(
    texts.some((text) => text.includes("<script>window.pwned")),
    `${window.at}: hostile text is shown as text`,
  );
  await page.goto(`${http}/#/trace/${trace}`);
  await page.getByText("decides").first().waitFor();
  await look(window, "trace", shot("trace"));
  await page.goto(`${http}/#/sessions?sort=loops&service_name=shop&agent_name=support-agent`);
  await page.getByRole("heading", { name: "Sessions" }).waitFor();
  check(
    (await page.locator("tbody tr").first().textContent()).includes("order-stuck"),
    `${window.at}: a link of an alert leads to the sessions that loop`,
  );
  check((await page.locator("th[aria-sort]").getAttribute("aria-sort")) === "descending", `${window.at}: most loops come first`);
  await look(window, "sessions", shot("sessions"));
  await page.goto(`${http}/#/runbook/AgentReliabilityDrop`);
  await page.getByRole("heading", { name: "AgentReliabilityDrop" }).waitFor();
  check((await page.locator("main ol li").count()) > 2, `${window.at}: the runbook is rendered`);
  await look(window, "runbook", shot("runbook"));
  await page.goto(`${http}/#/runbook/AgentSessionLooping`);
  await page.getByRole("link", { name: "webhook" }).click();
  await page.getByRole("heading", { name: "The webhook for runaway sessions" }).waitFor();
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
  await page.getByRole("heading", { name: "All agents" }).waitFor();
  page.expected.push("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET");
  const asked = Date.now();
  const code = await stop();
  check(code === 0, `the daemon ended with ${code} while somebody read`);
  check(Date.now() - asked < 5000, "a reader held the daemon up");
  await page.getByText("The daemon does not answer").waitFor();
  await page.screenshot({ path: `${shots}/wide-light-lost.png` });
  // Back on the same address: the page continues by itself.
  const next = await daemon({ http });
  await page.locator("#live.on").waitFor({ timeout: DEADLINE_MS });
  await page.getByText("No agent has sent a span yet").waitFor();
  check(await page.locator("#lost").isHidden(), "the page still says that the daemon is lost");
  await window.close();
  await next.stop();
}

/** Where the browser blocks storage, choices last as long as the page. Times have a zone, and the least reliable come first. */
async function blocked(browser, base) {
  const window = await open(browser, base, 1280, 900, "light", { timezoneId: "Europe/Berlin" });
  const { page } = window;
  await page.addInitScript(() => {
    Object.defineProperty(globalThis, "localStorage", {
      get() {
        throw new DOMException("blocked", "SecurityError");
      },
    });
  });
  await page.goto(`${base}/#/sessions?service_name=shop`);
  await page.getByRole("heading", { name: "Sessions" }).waitFor();
  check((await page.locator("th[aria-sort]").textContent()) === "Reliability ↑", "the list begins with the least reliable");
  check((await page.locator("th[aria-sort]").getAttribute("aria-sort")) === "ascending", "the list is said to ascend");
  await page.locator("#scheme").click();
  check((await page.locator("html").getAttribute("data-scheme")) === "light", "colours can be chosen without storage");
  await page.goto(`${base}/`);
  await page.locator("tbody").getByRole("link", { name: "support-agent" }).waitFor();
  await page.getByRole("button", { name: "Last 1h" }).click();
  await page.getByText("Times are in Europe/Berlin; alerts are in UTC").waitFor();
  await window.close();
}

/** With tokens, what one copies from the page has a place for one. */
async function guarded(browser) {
  const token = "a-token-that-is-long-enough";
  const tokens = '[{ name = "people", env = "PEOPLE", may = ["read", "ingest"] }]';
  const { http, stop } = await daemon({ more: { AGENTGAUGE__ACCESS__TOKENS: tokens, PEOPLE: token } });
  const window = await open(browser, `http://${http}`, 1280, 900, "light", { httpCredentials: { username: "me", password: token } });
  window.page.expected.push("401");
  await window.page.goto(`http://${http}/`);
  await window.page.getByText("Authorization=Bearer%20TOKEN").waitFor();
  await look(window, "empty fleet with tokens", "wide-light-guarded");
  await window.close();
  check((await stop()) === 0, "the daemon with tokens did not end well");
}

/** The colours that somebody chose stay; the search finds by a part of a name. */
async function chosen(browser, base) {
  const window = await open(browser, base, 1280, 900, "light");
  const { page } = window;
  await page.goto(`${base}/`);
  await page.locator("tbody").getByRole("link", { name: "support-agent" }).waitFor();
  const back = () => page.evaluate(() => getComputedStyle(document.body.parentElement).backgroundColor);
  const light = await back();
  await page.locator("#scheme").click();
  await page.locator("#scheme").click();
  check((await back()) !== light, "dark was chosen, and is not shown");
  await page.reload();
  await page.locator("tbody").getByRole("link", { name: "support-agent" }).waitFor();
  check((await back()) !== light, "dark was chosen, and is forgotten");
  await page.keyboard.press("/");
  await page.keyboard.type("stuck");
  await page.locator("#found").getByText("order-stuck").waitFor();
  await page.keyboard.press("Control+a");
  await page.keyboard.type("pay_");
  await page.locator("#found").getByText("Tools named like").waitFor();
  await page.screenshot({ path: `${shots}/wide-dark-search.png` });
  await page.locator("#found a").first().click();
  await page.getByRole("heading", { name: "Sessions" }).waitFor();
  check((await page.locator("tbody tr").count()) === 25, "sessions that called a tool are listed");
  await window.close();
}

/** What Prometheus says of alerts is on the page, and how far back one looks is a choice, as far as the daemon remembers. */
async function alerted(browser) {
  const labels = { service_name: "shop", gen_ai_agent_name: "stuck-agent" };
  const alerts = [
    { labels: { alertname: "AgentSessionLooping", severity: "critical", ...labels }, state: "firing", activeAt: new Date().toISOString() },
    {
      labels: { alertname: "AgentStopped", severity: "warning", service_name: "shop", gen_ai_agent_name: "quiet-agent" },
      annotations: { summary: "quiet-agent is silent" },
      state: "pending",
      activeAt: new Date().toISOString(),
    },
  ];
  const prometheus = createServer((_, answer) =>
    answer.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify({ status: "success", data: { alerts } })),
  );
  await new Promise((done) => prometheus.listen(0, "127.0.0.1", done));
  const directory = mkdtempSync(`${tmpdir()}/agentgauge-page-`);
  const kept = {
    AGENTGAUGE__LINKS__PROMETHEUS_URL: `http://127.0.0.1:${prometheus.address().port}`,
    AGENTGAUGE__STORE__DIRECTORY: directory,
    AGENTGAUGE__STORE__DURABILITY: "flush",
  };
  const { http, otlp_http: otlp, stop } = await daemon({ more: kept });
  await turn(otlp, {
    service: "shop",
    agent: "stuck-agent",
    version: "1",
    session: "stuck",
    question: "Again?",
    answer: "Again.",
    tools: Array(12).fill(["search", "the same", false]),
  });
  for (const [label, width, height] of WIDTHS) {
    const window = await open(browser, `http://${http}`, width, height, "light");
    const { page } = window;
    await page.goto(`http://${http}/`);
    await page.locator(".card").getByText("firing").waitFor();
    check(
      /AgentSessionLooping firing since/.test(await page.locator(".card").textContent()),
      `${window.at}: a card says that its alert fires: ${await page.locator(".card").textContent()}`,
    );
    check(
      /AgentStopped.*pending.*quiet-agent/s.test(await page.getByRole("region", { name: "Other alerts" }).textContent()),
      `${window.at}: an alert that no card tells of is shown`,
    );
    const week = () => page.getByRole("button", { name: "Last 7d" });
    await week().click();
    await page.getByRole("button", { name: "Last 7d", pressed: true }).waitFor();
    await look(window, "alerts", `${label}-light-alerts`);
    await page.locator("tbody").getByRole("link", { name: "stuck-agent" }).click();
    await page.getByRole("heading", { name: "stuck-agent", level: 1 }).waitFor();
    check((await week().getAttribute("aria-pressed")) === "true", `${window.at}: the range goes with one to an agent`);
    await page.locator("main .note").getByText("firing").waitFor();
    await look(window, "alerted agent", `${label}-light-alerted-agent`);
    await window.close();
  }
  check((await stop()) === 0, "the daemon that keeps a past did not end well");
  prometheus.close();
  rmSync(directory, { recursive: true });
}

/** Sixty versions, five thousand sessions, and one session of two hundred turns. */
async function large(browser) {
  const { http, otlp_http: otlp, stop } = await daemon({ keep: false });
  const base = `http://${http}`;
  const all = [];
  for (let at = 0; at < 5000; at += 1) {
    all.push({
      service: "big",
      agent: "busy-agent",
      version: `1.${at % 60}`,
      session: `s-${at}`,
      question: `What about ${at}?`,
      answer: `It is ${at * 7} of ${at % 13}.`,
      tools: [["look_up", `${at}`, at % 40 === 0]],
      failed: at % 40 === 0,
    });
  }
  for (let at = 0; at < 200; at += 1) {
    all.push({
      service: "big",
      agent: "long-agent",
      version: "1",
      session: "long",
      question: `Step ${at}?`,
      answer: `Done with ${at * 31}, on to ${at * 17}.`,
      tools: [
        ["read", `${at}`, false],
        ["write", `${at}`, at % 50 === 7],
      ],
      failed: at % 50 === 7,
    });
  }
  await turns(otlp, all);
  await until("all sessions", async () => (await (await fetch(`${base}/api/v1/fleet`)).json()).totals.traces >= 5200);
  for (const [label, width, height] of WIDTHS) {
    for (const scheme of ["light", "dark"]) {
      const window = await open(browser, base, width, height, scheme);
      const { page } = window;
      const took = Date.now();
      await page.goto(`${base}/`);
      await page.locator("tbody").getByRole("link", { name: "busy-agent" }).waitFor();
      check(Date.now() - took < 5000, `${window.at}: the fleet took ${Date.now() - took} ms`);
      check((await page.locator("tbody tr").count()) === 2, `${window.at}: versions are one row`);
      check(
        (await page.locator(".card, .well").first().boundingBox()).y < height,
        `${window.at}: whether anything is wrong is on the first screen`,
      );
      await page.getByRole("button", { name: /60 versions/ }).click();
      await page.locator("tr.version").first().waitFor();
      await look(window, "large fleet", `${label}-${scheme}-large-fleet`);
      await page.locator("tbody").getByRole("link", { name: "busy-agent" }).click();
      await page.getByRole("heading", { name: "busy-agent", level: 1 }).waitFor();
      await look(window, "large agent", `${label}-${scheme}-large-agent`);
      await page.goto(`${base}/#/session/long`);
      await page.getByRole("heading", { name: "Session long" }).waitFor();
      check((await page.locator(".block").count()) === 200, `${window.at}: 200 turns are 200 blocks`);
      const overview = await page.locator(".overview").boundingBox();
      check(overview.height < height, `${window.at}: the overview is ${overview.height} high`);
      await page.getByText("if content is kept").first().waitFor();
      check((await page.getByText("no problems").count()) >= 4, `${window.at}: good turns are a line`);
      await look(window, "long session", `${label}-${scheme}-large-session`);
      await page.getByRole("button", { name: /Next bad turn/ }).click();
      check(await page.evaluate(() => document.activeElement.matches("summary")), `${window.at}: the next bad turn has the focus`);
      await page.getByRole("button", { name: "Turn 20: no problem" }).click();
      check(/^Turn 20/.test(await page.evaluate(() => document.activeElement.textContent)), `${window.at}: a block leads to its turn`);
      await window.close();
    }
  }
  check((await stop()) === 0, "the daemon with many sessions did not end well");
}

/** The demo, up to the drop of the new version. */
async function told(browser) {
  const { line, stop } = await start(["demo"], {
    AGENTGAUGE__LISTEN__OTLP_GRPC: "127.0.0.1:0",
    AGENTGAUGE__LISTEN__OTLP_HTTP: "127.0.0.1:0",
    AGENTGAUGE__LISTEN__HTTP: "127.0.0.1:0",
  });
  const base = line.match(/http:\/\/[^/]+/)[0];
  const wrong = async () => (await (await fetch(`${base}/api/v1/problems`)).json()).problems;
  const has = (problems, name, kind) =>
    problems.some((problem) => problem.kind === kind && problem.severity === "critical" && problem.agent.agent_name === name);
  const since = Date.now();
  await until("the demo to tell of the new version", async () => has(await wrong(), "refunds", "drop"), 200_000);
  check(Date.now() - since < 170_000, `the drop came after ${(Date.now() - since) / 1000} s`);
  check(has(await wrong(), "analyst", "loop"), "the demo loops");
  check(!(await wrong()).some((problem) => problem.agent.agent_name === "support"), "support is well");
  for (const [label, width, height] of WIDTHS) {
    for (const scheme of ["light", "dark"]) {
      const window = await open(browser, base, width, height, scheme);
      const { page } = window;
      await page.goto(`${base}/`);
      await page.locator(".card").first().waitFor();
      check(
        (await page.locator(".card").first().boundingBox()).y < height / 2,
        `${window.at}: the demo's problems are on the first screen`,
      );
      await look(window, "demo", `${label}-${scheme}-demo-fleet`);
      await page.locator(".card").filter({ hasText: "refunds 1.5" }).first().getByRole("link", { name: "refunds" }).click();
      await page.getByRole("heading", { name: "refunds 1.5", level: 1 }).waitFor();
      await page.locator(".chart canvas").first().waitFor();
      await look(window, "demo's agent", `${label}-${scheme}-demo-agent`);
      await page.goto(`${base}/`);
      await page.locator(".card").filter({ hasText: "Loops" }).first().getByRole("link", { name: "Show an example" }).click();
      await page.locator(".waterfall .loop").first().waitFor();
      await page.locator(".waterfall .loop > summary").first().click();
      await look(window, "demo's loop", `${label}-${scheme}-demo-session`);
      await window.close();
    }
  }
  check((await stop()) === 0, "the demo did not end well");
}

/** A drop is over once somebody takes its level for the usual one. */
async function accepted(browser, http) {
  const window = await open(browser, http, 1280, 900, "light");
  const { page } = window;
  await page.goto(`${http}/#/agent?service_name=shop&agent_name=refund-agent&agent_version=5&environment=test`);
  await page.getByRole("button", { name: "Accept this level as usual" }).first().click();
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Cancel" }).waitFor({ state: "detached" });
  await page.getByRole("button", { name: "Accept this level as usual" }).first().click();
  await page.getByRole("button", { name: "Accept", exact: true }).click();
  await page.getByRole("region", { name: /Failing traces up/ }).waitFor({ state: "detached" });
  await window.close();
}

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu"],
});
try {
  for (const scheme of ["light", "dark"]) await empty(browser, scheme);
  await guarded(browser);
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
  await chosen(browser, base);
  await blocked(browser, base);
  await accepted(browser, base);
  check((await stop()) === 0, "the daemon did not end well");
  await alerted(browser);
  await large(browser);
  await told(browser);
} catch (error) {
  problems.push(`${error.stack}`);
} finally {
  running.forEach((child) => child.kill());
  await browser.close();
}
problems.forEach((problem) => console.error(problem));
console.log(`${checks - problems.length} passed, ${problems.length} failed; screenshots in ${shots}`);
process.exit(problems.length ? 1 : 0);
