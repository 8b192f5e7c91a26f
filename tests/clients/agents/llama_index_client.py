"""Tests LlamaIndex: a FunctionAgent, and structured output. Usage: llama_index_client.py BASE_URL MODEL"""

import asyncio
import sys
from importlib.metadata import version

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
llm = OpenAILike(model=MODEL, api_base=BASE_URL, api_key="none", is_chat_model=True,
                 is_function_calling_model=True, max_retries=0)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def passed(what):
    print(f"PASS llama-index-core {version('llama-index-core')}: {what}")


asked = []


def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return "21 °C"


async def ask():
    handler = FunctionAgent(tools=[get_weather], llm=llm).run("What is the weather in Paris?")
    parts = [event.delta async for event in handler.stream_events() if isinstance(event, AgentStream)]
    return parts, str(await handler)


parts, answer = asyncio.run(ask())
assert (answer, asked) == ("It is 21 °C in Paris.", ["Paris"]), (answer, asked)
assert "".join(parts) == answer and len(parts) > 2, parts
passed("a FunctionAgent with a tool, streamed")

found = llm.structured_predict(Person, PromptTemplate("Person: Ann is 41 years old."))
assert found == Person(name="Ann", age=41), found
passed("structured_predict")
