"""Asks for a tier through LiteLLM with a key that may not have it. Usage: litellm_tier.py BASE_URL MODEL KEY

The key's highest tier is standard, so a request for `priority` must be served, and answered, as `default`.
"""

import os
import sys

# LiteLLM otherwise fetches a table of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm

BASE_URL, MODEL, KEY = sys.argv[1:]


def complete(**more):
    return litellm.completion(
        model=f"openai/{MODEL}", api_base=BASE_URL, api_key=KEY, max_tokens=8, num_retries=0,
        messages=[{"role": "user", "content": "Name three colours."}], **more,
    )


asked = complete(service_tier="priority")
assert asked.service_tier == "default", asked
assert asked.usage.completion_tokens <= 8, asked
chunks = list(complete(service_tier="priority", stream=True))
assert any(chunk.choices[0].delta.content for chunk in chunks if chunk.choices), chunks
try:
    complete(temperature=9)
except litellm.BadRequestError as error:
    assert "temperature" in str(error), error
else:
    raise AssertionError("the server accepted a temperature of 9")
