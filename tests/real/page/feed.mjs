// Sends spans as OTLP JSON: turns of agents as the GenAI convention names them.
import { randomBytes } from "node:crypto";

const attribute = (key, value) => ({ key, value: typeof value === "number" ? { doubleValue: value } : { stringValue: value } });
const messages = (role, content) => JSON.stringify([{ role, parts: [{ type: "text", content }] }]);
const hex = (bytes) => randomBytes(bytes).toString("hex");
const nanos = (millis) => `${BigInt(Math.round(millis * 1000)) * 1000n}`;

/** When the latest turn began, in milliseconds. */
let latest = 0;

/** One turn, sent; returns its trace id. */
export async function turn(otlp, told) {
  const { traceId, spans } = spansOf(told);
  await send(otlp, [spans]);
  return traceId;
}

/** Many turns, so many in one request. */
export async function turns(otlp, all, size = 200) {
  for (let at = 0; at < all.length; at += size)
    await send(
      otlp,
      all.slice(at, at + size).map((told) => spansOf(told).spans),
    );
}

async function send(otlp, resourceSpans) {
  const sent = await fetch(`http://${otlp}/v1/traces`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ resourceSpans }),
  });
  if (!sent.ok) throw new Error(`spans were refused: ${sent.status} ${await sent.text()}`);
}

/** A turn as spans; `tools` are [name, argument, failed], `more` and `call` further attributes of the agent's span and of the model call. */
function spansOf({ service, agent, version, session, question, answer, tools = [], failed = false, cost, more = {}, call = {} }) {
  const traceId = hex(16),
    root = hex(8);
  const spans = [];
  // Turns that begin together are in the order of their random ids.
  latest = Math.max(Date.now() - 5000, latest + 0.01);
  let at = latest;
  const span = (name, parentSpanId, attributes, error) => {
    const spanId = parentSpanId === undefined ? root : hex(8);
    const start = at;
    at += 20;
    spans.push({
      traceId,
      spanId,
      parentSpanId,
      name,
      kind: 1,
      startTimeUnixNano: nanos(start),
      endTimeUnixNano: nanos(at - 5),
      attributes: Object.entries(attributes)
        .filter(([, value]) => value !== undefined)
        .map(([key, value]) => attribute(key, value)),
      status: error ? { code: 2 } : {},
    });
    return spans.at(-1);
  };
  const whole = span(
    `invoke_agent ${agent}`,
    undefined,
    {
      "gen_ai.operation.name": "invoke_agent",
      "gen_ai.agent.name": agent,
      "gen_ai.agent.version": version,
      "gen_ai.conversation.id": session,
      "gen_ai.input.messages": messages("user", question),
      "gen_ai.output.messages": messages("assistant", answer),
      ...more,
    },
    failed,
  );
  span(
    "chat gpt-4o",
    root,
    {
      "gen_ai.operation.name": "chat",
      "gen_ai.request.model": "gpt-4o",
      "gen_ai.usage.input_tokens": 1200,
      "gen_ai.usage.output_tokens": 80,
      "gen_ai.usage.cost": cost,
      "gen_ai.input.messages": messages("user", question),
      "gen_ai.output.messages": messages("assistant", answer),
      ...call,
    },
    failed,
  );
  for (const [name, argument, bad] of tools) {
    span(
      `execute_tool ${name}`,
      root,
      {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": name,
        "gen_ai.tool.call.arguments": JSON.stringify({ query: argument }),
        "gen_ai.tool.call.result": bad ? undefined : `about ${argument}`,
      },
      bad,
    );
  }
  whole.endTimeUnixNano = nanos(at);
  const resource = { attributes: [attribute("service.name", service), attribute("deployment.environment.name", "test")] };
  return { traceId, spans: { resource, scopeSpans: [{ scope: { name: "test" }, spans }] } };
}
