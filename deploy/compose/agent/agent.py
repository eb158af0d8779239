"""A sample agent: no model behind it, but the spans of one, as OpenTelemetry's GenAI conventions have them.

A session is three turns. In a turn the model calls a tool, the tool answers, the model answers. Once in LOOP_EVERY
sessions the tool never finds anything, and the agent repeats the call: a loop.
"""

import itertools
import json
import os
import random
import time
import uuid

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind

LOOP_EVERY = int(os.environ.get("LOOP_EVERY", "5"))
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "2"))
SESSIONS = int(os.environ.get("SESSIONS", "0"))  # 0: without end
LOOP_CALLS = 12

QUESTIONS = [
    ("Where is my order {}?", "Order {} has left our warehouse and arrives tomorrow."),
    ("Can I send {} back?", "Yes: within thirty days, with the label in the box of {}."),
    ("What did {} cost?", "You have paid 49 euros for {}, shipping included."),
]


def messages(role, text):
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}])


def ask_model(tracer, question, answer):
    with tracer.start_as_current_span("chat sample-model", kind=SpanKind.CLIENT) as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": "sample",
                "gen_ai.request.model": "sample-model",
                "gen_ai.usage.input_tokens": random.randint(200, 400),
                "gen_ai.usage.output_tokens": random.randint(20, 60),
                "gen_ai.input.messages": messages("user", question),
                "gen_ai.output.messages": messages("assistant", answer),
            }
        )
        time.sleep(0.02)


def call_tool(tracer, order, found):
    with tracer.start_as_current_span("execute_tool find_order") as span:
        result = {"order": order, "state": "sent"} if found else {"error": "no such order"}
        span.set_attributes(
            {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": "find_order",
                "gen_ai.tool.call.id": f"call_{uuid.uuid4().hex[:12]}",
                "gen_ai.tool.call.arguments": json.dumps({"order": order}),
                "gen_ai.tool.call.result": json.dumps(result),
            }
        )
        time.sleep(0.01)


def turn(tracer, session, question, answer, order, loops):
    with tracer.start_as_current_span("invoke_agent support") as span:
        span.set_attributes(
            {
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "support",
                "gen_ai.agent.version": "1.0",
                "gen_ai.conversation.id": session,
            }
        )
        for _ in range(LOOP_CALLS if loops else 1):
            ask_model(tracer, question, "Let me look at that order.")
            call_tool(tracer, order, found=not loops)
        ask_model(tracer, question, "I cannot find it." if loops else answer)


def main():
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=500))
    trace.set_tracer_provider(provider)
    tracer = trace.get_tracer("sample.agent")
    numbers = range(1, SESSIONS + 1) if SESSIONS else itertools.count(1)
    for number in numbers:
        session = f"sample-{uuid.uuid4()}"
        order = f"A-{random.randint(1000, 9999)}"
        loops = LOOP_EVERY > 0 and number % LOOP_EVERY == 0
        for question, answer in QUESTIONS:
            turn(tracer, session, question.format(order), answer.format(order), order, loops)
            time.sleep(PAUSE_SECONDS)
        print(f"session {session}: {'looped' if loops else 'went well'}", flush=True)
    provider.shutdown()


if __name__ == "__main__":
    main()
