"""Tests pydantic-ai: an agent with a tool, structured output by a tool and by a schema, and a stream.
Usage: pydantic_ai_client.py BASE_URL MODEL"""

import asyncio
import sys
from importlib.metadata import version

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL, MODEL = sys.argv[1:]
model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key="none"))


class Person(BaseModel):
    name: str
    age: int


def passed(what):
    print(f"PASS pydantic-ai {version('pydantic-ai-slim')}: {what}")


agent = Agent(model)
asked = []


@agent.tool_plain
def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return "21 °C"


async def streamed():
    async with agent.run_stream("What is the weather in Paris?") as run:
        return [part async for part in run.stream_text(delta=True, debounce_by=None)]


result = agent.run_sync("What is the weather in Paris?")
assert (result.output, asked) == ("It is 21 °C in Paris.", ["Paris"]), (result.output, asked)
parts = asyncio.run(streamed())
assert "".join(parts) == "It is 21 °C in Paris." and len(parts) > 1 and len(asked) == 2, (parts, asked)
passed("an agent with a tool, whole and streamed")

found = Agent(model, output_type=Person).run_sync("Final: Ann is 41 years old.").output
assert found == Person(name="Ann", age=41), found
found = Agent(model, output_type=NativeOutput(Person)).run_sync("JSON: Ann is 41 years old.").output
assert found == Person(name="Ann", age=41), found
passed("structured output by a required tool and by a JSON schema")
