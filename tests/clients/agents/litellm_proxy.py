"""Tests LiteLLM as a proxy between openai-python and the server. Usage: litellm_proxy.py BASE_URL MODEL"""

import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.metadata import version

from openai import OpenAI

BASE_URL, MODEL = sys.argv[1:]
WAIT_S = 120
with socket.socket() as one:
    one.bind(("127.0.0.1", 0))
    PORT = one.getsockname()[1]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Returns the weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}
# The proxy does not start without a key.
KEY = f"sk-{secrets.token_hex(32)}"
folder = tempfile.TemporaryDirectory()
config = pathlib.Path(folder.name) / "config.yaml"
config.write_text(f"""
model_list:
  - model_name: tiercel
    litellm_params: {{model: "hosted_vllm/{MODEL}", api_base: "{BASE_URL}", api_key: none}}
""")
environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": KEY}
command = [pathlib.Path(sys.executable).parent / "litellm", "--config", config, "--host", "127.0.0.1", "--port", str(PORT)]
log = open(pathlib.Path(folder.name) / "log", "w+")
proxy = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
try:
    until = time.monotonic() + WAIT_S
    while True:
        time.sleep(0.3)
        log.seek(0)
        assert proxy.poll() is None and time.monotonic() < until, log.read()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health/liveliness", timeout=5)
            break
        except OSError:
            pass
    client = OpenAI(base_url=f"http://127.0.0.1:{PORT}", api_key=KEY, max_retries=0)
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    whole = client.chat.completions.create(model="tiercel", messages=messages, tools=[WEATHER]).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.tool_calls[0].function.name == "get_weather", whole
    with client.chat.completions.stream(model="tiercel", messages=messages, tools=[WEATHER]) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0].message.tool_calls[0].function
    assert streamed.arguments.replace(" ", "") == '{"city":"Paris"}', streamed
    assert events.count("tool_calls.function.arguments.delta") > 1, events
    schema = {"name": "Person", "strict": True, "schema": {
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": False}}
    answer = client.chat.completions.create(
        model="tiercel", messages=[{"role": "user", "content": "JSON: Ann is 41 years old."}],
        response_format={"type": "json_schema", "json_schema": schema}).choices[0].message
    assert answer.content == '{"name": "Ann", "age": 41}', answer
    print(f"PASS litellm proxy {version('litellm')}: tool calls, whole and streamed, and structured output")
finally:
    proxy.terminate()
    proxy.wait()
