"""Tests LiteLLM as a library with its provider `hosted_vllm`: tools, structured output and reasoning.

Usage: litellm_client.py BASE_URL MODEL
"""

import os
import sys
from importlib.metadata import version

# Without this variable, LiteLLM downloads a table of prices when it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]


class Person(BaseModel):
    name: str
    age: int


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}


def ask(text, **more):
    return litellm.completion(
        model=f"hosted_vllm/{MODEL}", api_base=BASE_URL, api_key="none", num_retries=0,
        messages=[{"role": "user", "content": text}], **more)


def passed(what):
    print(f"PASS litellm {version('litellm')}: {what}")


message = ask("What is the weather in Paris?", tools=[WEATHER]).choices[0].message
assert message.tool_calls[0].function.arguments.replace(" ", "") == '{"city":"Paris"}', message
chunks = list(ask("What is the weather in Paris?", tools=[WEATHER], stream=True))
whole = litellm.stream_chunk_builder(chunks).choices[0]
assert whole.message.tool_calls[0].function.name == "get_weather" and whole.finish_reason == "tool_calls", whole
passed("hosted_vllm: tool calls, whole and streamed")

message = ask("JSON: Ann is 41 years old.", response_format=Person).choices[0].message
assert Person.model_validate_json(message.content) == Person(name="Ann", age=41), message
message = ask("Think: how much is 2 + 2?").choices[0].message
assert (message.content, message.reasoning_content) == ("4", "Two and two are four."), message
passed("hosted_vllm: structured output and reasoning")
