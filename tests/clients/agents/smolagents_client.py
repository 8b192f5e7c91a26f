"""Tests smolagents: a ToolCallingAgent, whole and streamed. Usage: smolagents_client.py BASE_URL MODEL"""

import sys
from importlib.metadata import version

from smolagents import OpenAIServerModel, ToolCallingAgent, tool

BASE_URL, MODEL = sys.argv[1:]
asked = []


@tool
def get_weather(city: str) -> str:
    """Returns the weather of a city.

    Args:
        city: Name of the city.
    """
    asked.append(city)
    return "21 °C"


model = OpenAIServerModel(model_id=MODEL, api_base=BASE_URL, api_key="none")
for stream in (False, True):
    agent = ToolCallingAgent(tools=[get_weather], model=model, max_steps=3, verbosity_level=0, stream_outputs=stream)
    answer = agent.run("What is the weather in Paris?")
    assert answer == "It is 21 °C in Paris." and asked.pop() == "Paris", answer
    print(f"\nPASS smolagents {version('smolagents')}: ToolCallingAgent, {'streamed' if stream else 'whole'}")
