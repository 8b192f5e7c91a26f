"""Tests openai-python: `parse`, and the helpers for streams and tools. Usage: openai_python.py BASE_URL MODEL"""

import sys
from typing import Literal

import openai
from openai import OpenAI
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
client = OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


class Person(BaseModel):
    name: str
    age: int


class GetWeather(BaseModel):
    city: Literal["Paris", "Rome"]


WEATHER = openai.pydantic_function_tool(GetWeather, name="get_weather")


def user(text):
    return [{"role": "user", "content": text}]


def passed(what):
    print(f"PASS openai-python {openai.__version__}: {what}")


completion = client.chat.completions.parse(
    model=MODEL, messages=user("JSON: Ann is 41 years old."), response_format=Person)
assert completion.choices[0].message.parsed == Person(name="Ann", age=41), completion
with client.chat.completions.stream(
        model=MODEL, messages=user("JSON: Ann is 41 years old."), response_format=Person) as stream:
    parts = [event.delta for event in stream if event.type == "content.delta"]
    final = stream.get_final_completion().choices[0].message
assert len(parts) > 1 and final.parsed == Person(name="Ann", age=41), (parts, final)
passed("parse and stream of a pydantic model")

messages = user("What is the weather in Paris?")
message = client.chat.completions.parse(model=MODEL, messages=messages, tools=[WEATHER]).choices[0].message
call = message.tool_calls[0]
assert message.content is None and call.function.parsed_arguments == GetWeather(city="Paris"), message
with client.chat.completions.stream(model=MODEL, messages=messages, tools=[WEATHER]) as stream:
    events = list(stream)
    streamed = stream.get_final_completion().choices[0]
done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
pieces = [event for event in events if event.type == "tool_calls.function.arguments.delta"]
assert len(done) == 1 and done[0].name == "get_weather" and len(pieces) > 1, events
assert done[0].parsed_arguments == GetWeather(city="Paris"), done
assert streamed.finish_reason == "tool_calls", streamed
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "21 °C"}]
answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
assert answer.choices[0].message.content == "It is 21 °C in Paris.", answer
passed("parsed tool calls, whole and streamed, and their result")

for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
    forced = client.chat.completions.create(
        model=MODEL, messages=user("What is the weather in Paris?"), tools=[WEATHER], tool_choice=choice)
    assert forced.choices[0].message.tool_calls[0].function.name == "get_weather", forced
both = client.chat.completions.create(
    model=MODEL, messages=user("Tell me the weather in Paris and Rome."), tools=[WEATHER])
names = [call.function.arguments for call in both.choices[0].message.tool_calls]
assert len(names) == 2 and len({call.id for call in both.choices[0].message.tool_calls}) == 2, both
passed("tool_choice, and two calls at a time")

thought = client.chat.completions.create(model=MODEL, messages=user("Think: how much is 2 + 2?"))
message = thought.choices[0].message
assert (message.content, message.reasoning_content) == ("4", "Two and two are four."), message
passed("reasoning apart from content")
