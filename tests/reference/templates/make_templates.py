"""Renders the chat templates beside this file as transformers' `apply_chat_template` does, and writes expected.json.

    python3 -m pip install transformers==4.57.1 jinja2==3.1.6 && python3 make_templates.py

Each template is in the style of the model family in its name. The beginning-of-text and end-of-text tokens come from
../tokenizer/hf_byte_level. If the program has a folder as its argument, it renders the templates of this folder, and
writes expected.json to this folder.
"""

import itertools
import json
import pathlib
import sys

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent


def text(role, content, **more):
    return {"role": role, "content": content, **more}


def call(id_, name, arguments):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = text("system", "  Be <brief> & \"kind\".\n")
USER = text("user", " What's 1 < 2?\nÜber 😀 ")
ANSWER = text("assistant", "\nYes.\n")
THOUGHT = text("assistant", "<think>\nHm.\n</think>\n\nYes: '1' is less. ")
APART = text("assistant", "Yes.", reasoning_content="Hm.", reasoning="Hm.")
AGAIN = text("user", "{{ 7 * 7 }} {% raw %} <|im_end|>")
CALLS = text("assistant", "", tool_calls=[
    call("abcdefgh1", "weather", {"where": "Zürich \"HB\"", "days": 2, "unit": None}),
    call("abcdefgh2", "now", {}),
])
ONE_CALL = text("assistant", "I look.", tool_calls=[call("abcdefgh1", "weather", {"z": [1, {"b": 2.5, "a": "<"}], "days": 2})])
RESULT = text("tool", "12 °C", tool_call_id="abcdefgh1", name="weather")
RESULT_2 = text("tool", "{\"hour\": 9}", tool_call_id="abcdefgh2", name="now")
TOOLS = [
    {"type": "function", "function": {
        "name": "weather", "description": " The weather. ", "parameters": {
            "type": "object",
            "properties": {
                "where": {"type": "string", "description": "A \"place\""},
                "days": {"type": ["integer", "null"], "minimum": 1},
                "tags": {"type": "array", "items": {"type": "string"}, "enum": ["ü", "<"]},
            },
            "required": ["where"],
        },
    }},
    {"type": "function", "function": {"name": "now", "description": "d", "parameters": {"type": "object", "properties": {}}}},
]
CONVERSATIONS = [
    ([USER], None, {}),
    ([SYSTEM, USER], None, {}),
    ([USER, ANSWER, AGAIN], None, {}),
    ([SYSTEM, USER, THOUGHT, AGAIN], None, {}),
    ([SYSTEM, USER, ANSWER], None, {}),
    ([USER, AGAIN], None, {}),
    ([ANSWER], None, {}),
    ([USER, SYSTEM, AGAIN], None, {}),
    ([text("user", "")], None, {}),
    ([text("user", "weather?"), text("assistant", "calling"), text("tool", "12 °C"), text("tool", "windy")], None, {}),
    ([USER, APART, AGAIN], None, {}),
    ([USER], None, {"enable_thinking": False}),
    ([USER], None, {"enable_thinking": True}),
    ([USER], TOOLS, {}),
    ([SYSTEM, USER, CALLS, RESULT, RESULT_2], TOOLS, {}),
    ([SYSTEM, USER, ONE_CALL, RESULT, ANSWER, AGAIN], TOOLS, {"enable_thinking": False}),
    ([USER, ONE_CALL, RESULT], TOOLS[:1], {}),
    ([USER, ONE_CALL, RESULT], None, {}),
]


def render(source, messages, tools, variables, ending):
    rendered, _ = render_jinja_template(
        [messages], tools=tools, chat_template=source,
        add_generation_prompt=ending == "open", continue_final_message=ending == "continued",
        bos_token="<|im_start|>", eos_token="<|im_end|>", **variables,
    )
    return rendered[0]


def main():
    folder = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    cases = []
    endings = ["open", "closed", "continued"]
    for path, conversation, ending in itertools.product(sorted(folder.glob("*.jinja")), CONVERSATIONS, endings):
        messages, tools, variables = conversation
        knows_tools = "tools" in path.read_text()
        last = messages[-1]
        if ending == "continued" and (last["role"] != "assistant" or "tool_calls" in last):
            continue
        # The server spells out tools for templates that know no tools; transformers would leave the tools out.
        if not knows_tools and (tools or any(message["role"] == "tool" for message in messages)):
            continue
        case = {"template": path.name, "messages": messages, "tools": tools or [], "variables": variables, "ending": ending}
        try:
            case["text"] = render(path.read_text(), messages, tools, variables, ending)
        except (TemplateError, ValueError, TypeError) as error:
            case["error"] = str(error)
        cases.append(case)
    lines = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (folder / "expected.json").write_text(f"[\n{lines}\n]\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "refused")


if __name__ == "__main__":
    main()
