"""Tests instructor: structured output by a tool and by a JSON schema, whole and streamed.

Usage: instructor_client.py BASE_URL MODEL
"""

import sys
from importlib.metadata import version

import instructor
from openai import OpenAI
from pydantic import BaseModel

BASE_URL, MODEL = sys.argv[1:]
openai = OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)


class Person(BaseModel):
    name: str
    age: int


ANN = Person(name="Ann", age=41)
# For partial objects, instructor offers a function with the prefix `Partial` in its name.
for mode, whole, partial in ((instructor.Mode.TOOLS, "Person", "PartialPerson"),
                             (instructor.Mode.JSON_SCHEMA, "JSON", "JSON")):
    client = instructor.from_openai(openai, mode=mode)

    def ask(start):
        messages = [{"role": "user", "content": f"{start}: Ann is 41 years old."}]
        return {"model": MODEL, "messages": messages, "response_model": Person, "max_retries": 0}

    found = client.chat.completions.create(**ask(whole))
    assert found.model_dump() == ANN.model_dump(), found
    parts = list(client.chat.completions.create_partial(**ask(partial)))
    assert parts[-1].model_dump() == ANN.model_dump() and len(parts) > 1, parts
    print(f"PASS instructor {version('instructor')}: response_model in mode {mode.value}, whole and partial")
