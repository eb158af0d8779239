"""Regenerates the table of prices from LiteLLM's: the models of the main providers, in US dollars per million tokens.

    pip download --no-deps litellm && unzip -p litellm-*.whl litellm/model_prices_and_context_window_backup.json > table.json
    python3 deploy/prices.py table.json "litellm 1.109.1 (PyPI), 2026-11-23" > engine/src/prices.csv

If a price depends on the length of the input, that of short inputs is used.
"""

import json
import sys

PROVIDERS = [
    "anthropic", "openai", "gemini", "mistral", "deepseek", "xai", "zai", "moonshot", "dashscope", "cohere_chat", "vertex_ai-anthropic_models",
]
KEYS = [
    "input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost", "cache_creation_input_token_cost",
]


def main(table, source):
    models = {}
    for rank, provider in enumerate(PROVIDERS):
        for name, entry in json.load(open(table)).items():
            if entry.get("litellm_provider") != provider or entry.get("mode") not in ("chat", "responses"):
                continue
            prices = [entry.get(key) for key in KEYS]
            short = name.rsplit("/", 1)[-1]
            if None in prices[:2] or any(mark in short for mark in (":", "audio", "@", "lyria")) or not any(prices[:2]):
                continue
            # A provider's own entry precedes those of resellers, and a complete name precedes a shortened one.
            models.setdefault(short.lower(), []).append((rank, name != short, prices))
    print(f"# model,input,output,cache_read,cache_write in US dollars per million tokens; source: {source}")
    for name, found in sorted(models.items()):
        prices = min(found, key=lambda one: one[:2])[2]
        print(",".join([name, *("" if price is None else f"{price * 1e6:.10g}" for price in prices)]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
