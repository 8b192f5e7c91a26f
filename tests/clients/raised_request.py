"""Raises a waiting stream of OpenAI's client with `tiercel ctl`. Usage: raised_request.py BASE_URL MODEL PROGRAM CONTROL_URL

The server must be busy with background requests. The last line of the output is JSON: the step of the change, the step of
the first token, and the timeline of the request.
"""

import json
import subprocess
import sys

from openai import OpenAI

BASE_URL, MODEL, PROGRAM, CONTROL_URL = sys.argv[1:]
client = OpenAI(base_url=BASE_URL, api_key="anyone", max_retries=0, timeout=120)


def ctl(*arguments):
    command = [PROGRAM, "ctl", "--url", CONTROL_URL, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


stream = client.chat.completions.create(
    model=MODEL, messages=[{"role": "user", "content": "Name three colours."}], max_tokens=900,
    service_tier="flex", stream=True, extra_body={"ignore_eos": True},
)
chunks = iter(stream)
# The head of the response and the chunk with the id come while the request waits.
first = next(chunks)
assert first.id.startswith("chatcmpl-") and first.service_tier == "flex", first
assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == "", first
# A request that arrived after the latest snapshot has no position yet.
while "position" not in (row := ctl("show", first.id)["requests"][0]):
    assert row["state"] == "waiting", row
assert row["state"] == "waiting" and row["output_tokens"] == 0 and row["position"] > 1, row
change = ctl("reprioritize", first.id, "premium")["changes"][0]
assert (change["before"]["tier"], change["after"]["tier"]) == ("background", "premium"), change
token = next(chunk for chunk in chunks if chunk.choices[0].delta.content)
assert token.id == first.id and token.service_tier == "priority", token
row = ctl("show", first.id)["requests"][0]
happened = [moment["what"] for moment in row["timeline"]["moments"]]
print(json.dumps({"change": change["step"], "first": row["first_token_step"], "happened": happened}))
stream.close()
