"""Tests openai-agents with its chat-completions model: an agent with a tool, structured output and a handoff, whole and
streamed.
Usage: openai_agents_client.py BASE_URL MODEL"""

import asyncio
import sys
from importlib.metadata import version

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
set_tracing_disabled(True)
client = AsyncOpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)


class Person(BaseModel):
    name: str
    age: int


asked = []


@function_tool
def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return "21 °C"


def passed(what):
    print(f"PASS openai-agents {version('openai-agents')}: {what}")


async def main():
    agent = Agent(name="weather", model=model, tools=[get_weather])
    result = await Runner.run(agent, "What is the weather in Paris?")
    assert (result.final_output, asked) == ("It is 21 °C in Paris.", ["Paris"]), (result, asked)
    run = Runner.run_streamed(agent, "What is the weather in Paris?")
    kinds = [event.type async for event in run.stream_events()]
    assert run.final_output == "It is 21 °C in Paris." and len(asked) == 2, run
    assert kinds.count("raw_response_event") > 3, kinds
    passed("an agent with a tool, whole and streamed")
    agent = Agent(name="reader", model=model, output_type=Person)
    result = await Runner.run(agent, "JSON: Ann is 41 years old.")
    assert result.final_output == Person(name="Ann", age=41), result
    passed("structured output")


asyncio.run(main())
