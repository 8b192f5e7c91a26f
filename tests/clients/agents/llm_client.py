"""Tests llm: a chat with a tool, and a schema. Usage: llm_client.py BASE_URL MODEL"""

import os
import sys
import tempfile
from importlib.metadata import version

BASE_URL, MODEL = sys.argv[1:]
# An empty folder keeps llm from reading the settings of the user.
os.environ["LLM_USER_PATH"] = tempfile.mkdtemp()

import llm
from llm.default_plugins.openai_models import Chat

model = Chat("tiercel", model_name=MODEL, api_base=BASE_URL, supports_schema=True, supports_tools=True)
model.key = "none"


def passed(what):
    print(f"PASS llm {version('llm')}: {what}")


asked = []


def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return "21 °C"


for stream in (False, True):
    text = model.chain("What is the weather in Paris?", tools=[get_weather], stream=stream).text()
    assert text.endswith("It is 21 °C in Paris.") and asked.pop() == "Paris", text
passed("a chain with a tool, whole and streamed")

schema = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
          "required": ["name", "age"], "additionalProperties": False}
assert model.prompt("JSON: Ann is 41 years old.", schema=schema, stream=False).text() == '{"name": "Ann", "age": 41}'
assert len(list(model.prompt("Say hello."))) > 1
passed("a schema, and a stream")
