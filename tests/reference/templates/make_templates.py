"""Renders the chat templates beside this file with Jinja2, set up as in transformers, and writes expected.json.

    python3 -m pip install jinja2==3.1.6 && python3 make_templates.py

Each template is in the style of the model family that it is named after. The beginning- and end-of-text
tokens are those of ../tokenizer/hf_byte_level.
"""

import itertools
import json
import pathlib

from jinja2.exceptions import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
SYSTEM = ("system", "  Be <brief> & \"kind\".\n")
USER = ("user", " What's 1 < 2?\nÜber 😀 ")
ANSWER = ("assistant", "\nYes.\n")
THOUGHT = ("assistant", "<think>\nHm.\n</think>\n\nYes: '1' is less. ")
AGAIN = ("user", "{{ 7 * 7 }} {% raw %} <|im_end|>")
CONVERSATIONS = [
    [USER],
    [SYSTEM, USER],
    [USER, ANSWER, AGAIN],
    [SYSTEM, USER, THOUGHT, AGAIN],
    [SYSTEM, USER, ANSWER],
    [USER, AGAIN],
    [ANSWER],
    [USER, SYSTEM, AGAIN],
    [("user", "")],
    [("user", "weather?"), ("assistant", "calling"), ("tool", "12 °C"), ("tool", "windy")],
]


def raise_exception(message):
    raise TemplateError(message)


def tojson(value, indent=None):
    return json.dumps(value, ensure_ascii=False, indent=indent)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    cases = []
    for path, pairs, open_ in itertools.product(sorted(HERE.glob("*.jinja")), CONVERSATIONS, [True, False]):
        messages = [{"role": role, "content": content} for role, content in pairs]
        case = {"template": path.name, "messages": messages, "open": open_}
        try:
            template = environment.from_string(path.read_text())
            case["text"] = template.render(
                messages=messages, add_generation_prompt=open_,
                bos_token="<|im_start|>", eos_token="<|im_end|>",
            )
        except TemplateError as error:
            case["error"] = str(error)
        cases.append(case)
    (HERE / "expected.json").write_text(json.dumps(cases, ensure_ascii=True, indent=0) + "\n")
    print(len(cases), "cases,", sum("error" in case for case in cases), "refused")


if __name__ == "__main__":
    main()
