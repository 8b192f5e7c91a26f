"""Asks for a tier through LiteLLM with two keys. Usage: litellm_tier.py BASE_URL MODEL CAPPED_KEY PREMIUM_KEY

The highest tier of the first key is standard, so its requests for `priority` must be served, and answered, as `default`. The
second key may have premium, so the same requests must be answered as `priority`.
"""

import os
import sys

# LiteLLM otherwise fetches a table of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

BASE_URL, MODEL, CAPPED, PREMIUM = sys.argv[1:]


def complete(key, **more):
    return litellm.completion(
        model=f"openai/{MODEL}", api_base=BASE_URL, api_key=key, max_tokens=8, num_retries=0,
        messages=[{"role": "user", "content": "Name three colours."}], **more,
    )


for key, tier in (CAPPED, "default"), (PREMIUM, "priority"):
    asked = complete(key, service_tier="priority")
    assert asked.service_tier == tier, asked
    assert asked.usage.completion_tokens <= 8, asked
    chunks = list(complete(key, service_tier="priority", stream=True))
    assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices), chunks
    told = {getattr(chunk, "service_tier", None) for chunk in chunks} - {None}
    assert told == {tier}, chunks
    assert litellm.stream_chunk_builder(chunks).service_tier == tier, chunks
    # A request that asks for no tier gets the default one, whatever its key may have.
    assert complete(key).service_tier == "default"
try:
    complete(CAPPED, temperature=9)
except litellm.BadRequestError as error:
    assert "temperature" in str(error), error
else:
    raise AssertionError("the server accepted a temperature of 9")
