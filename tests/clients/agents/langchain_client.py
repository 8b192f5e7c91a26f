"""Tests LangChain: `with_structured_output` with all of its methods, and an agent.

Usage: langchain_client.py BASE_URL MODEL
"""

import sys
from importlib.metadata import version

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
model = ChatOpenAI(model=MODEL, base_url=BASE_URL, api_key="none", max_retries=0)


class Person(BaseModel):
    """A person."""

    name: str
    age: int


def passed(what):
    print(f"PASS langchain-openai {version('langchain-openai')}, langchain {version('langchain')}: {what}")


for method, start in (("json_schema", "JSON"), ("function_calling", "Person"), ("json_mode", "JSON")):
    found = model.with_structured_output(Person, method=method).invoke(f"{start}: Ann is 41 years old.")
    assert found == Person(name="Ann", age=41), (method, found)
passed("with_structured_output by json_schema, function_calling and json_mode")

asked = []


def get_weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return "21 °C"


agent = create_agent(model, tools=[get_weather])
question = {"messages": [{"role": "user", "content": "Tell me the weather in Paris and Rome."}]}
answer = agent.invoke(question)["messages"][-1]
assert answer.content == "It is 21 °C in Paris and 21 °C in Rome." and sorted(asked) == ["Paris", "Rome"], answer
parts = [part for part, _ in agent.stream(question, stream_mode="messages") if part.content]
text = "".join(part.content for part in parts if part.type == "AIMessageChunk")
assert text == "It is 21 °C in Paris and 21 °C in Rome." and len(asked) == 4, (text, asked)
passed("an agent that calls two tools at a time, whole and streamed")
