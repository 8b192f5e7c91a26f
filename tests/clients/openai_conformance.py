"""Checks a server with OpenAI's official client. Usage: openai_conformance.py BASE_URL MODEL CHECK...

Each CHECK is a function of this script; `all` stands for the functions in ALL. The first failed check ends the run.
"""

import asyncio
import sys

import openai
from openai import AsyncOpenAI, OpenAI

BASE_URL, MODEL, *CHECKS = sys.argv[1:]
client = OpenAI(base_url=BASE_URL, api_key="anyone", max_retries=0, timeout=120)
HELLO = [{"role": "user", "content": "Name three colours."}]
# `ignore_eos` is vLLM's extension of the API. The mock device's made-up output holds end tokens now and then, which
# must not end an answer.
LONG = {"ignore_eos": True}


def chat(**more):
    arguments = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0, **more}
    return client.chat.completions.create(extra_body=LONG, **arguments)


def text(**more):
    arguments = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}
    return client.completions.create(extra_body=LONG, **{**arguments, **more})


def models():
    listed = client.models.list().data
    assert [model.id for model in listed] == [MODEL], listed
    assert client.models.retrieve(MODEL).object == "model"


def chat_whole():
    answer = chat()
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12
    assert answer.service_tier == "default"
    parts = [{"role": "user", "content": [{"type": "text", "text": HELLO[0]["content"]}]}]
    assert chat(messages=parts).choices[0].message.content == choice.message.content


def chat_stream():
    whole = chat().choices[0].message.content
    chunks = list(chat(stream=True, stream_options={"include_usage": True}))
    first, *middle, last = chunks
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    assert last.choices == [] and last.usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert middle[-1].choices[0].finish_reason == "length"
    assert len({chunk.id for chunk in chunks}) == 1
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert streamed == whole, (streamed, whole)


def chat_stream_helper():
    """Checks that the client's own accumulator turns a response stream into the text of a response in one piece."""
    arguments = {"model": MODEL, "messages": HELLO, "max_tokens": 12, "temperature": 0}
    with client.chat.completions.stream(extra_body=LONG, **arguments) as stream:
        for _ in stream:
            pass
        try:
            final = stream.get_final_completion()
        except openai.LengthFinishReasonError as cut:
            final = cut.completion
    assert final.choices[0].finish_reason == "length"
    assert final.choices[0].message.content == chat().choices[0].message.content


def several_choices():
    answer = chat(n=3, seed=7, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.completion_tokens == 36
    texts = {}
    for chunk in chat(n=3, seed=7, temperature=1, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    assert [texts[i] for i in range(3)] == [choice.message.content for choice in answer.choices]
    again = chat(seed=8, temperature=1).choices[0].message.content
    assert again == answer.choices[1].message.content, "choice i has seed + i"


def stops():
    whole = chat(max_tokens=24).choices[0].message.content
    middle = len(whole) // 2
    stop = whole[middle : middle + 3]
    expected = whole[: whole.find(stop)]
    answer = chat(max_tokens=24, stop=stop)
    assert answer.choices[0].message.content == expected, (answer, whole)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens <= 24
    chunks = list(chat(max_tokens=24, stop=["never to be seen", stop], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == expected
    assert chunks[-1].choices[0].finish_reason == "stop"


def logprobs():
    answer = chat(logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert len(content) == 12
    for token in content:
        # The mock device is certain of its one token, so it returns no alternatives.
        assert token.logprob <= 0
        assert len(token.top_logprobs) == (1 if MODEL.startswith("mock") else 3)
        assert max(token.top_logprobs, key=lambda top: top.logprob).token == token.token
    spelled = b"".join(bytes(token.bytes) for token in content).decode("utf-8", "replace")
    assert spelled == answer.choices[0].message.content, spelled
    streamed = []
    for chunk in chat(logprobs=True, top_logprobs=3, stream=True):
        if chunk.choices[0].logprobs:
            streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in content]
    legacy = text(logprobs=2).choices[0].logprobs
    assert len(legacy.tokens) == len(legacy.token_logprobs) == len(legacy.top_logprobs) == 12
    assert legacy.text_offset[0] == 0
    assert chat().choices[0].logprobs is None


def completions():
    answer = text()
    assert answer.object == "text_completion" and answer.usage.completion_tokens == 12
    assert answer.choices[0].finish_reason == "length"
    streamed = "".join(chunk.choices[0].text for chunk in text(stream=True))
    assert streamed == answer.choices[0].text
    several = text(prompt=["Once upon a time", "The end"], n=2)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    assert several.choices[0].text == answer.choices[0].text, "greedy whatever the company"
    tokens = text(prompt=[10, 11, 12]).choices[0].text
    assert text(prompt=[[10, 11, 12], [13]]).choices[0].text == tokens
    assert client.completions.create(model=MODEL, prompt="x").usage.completion_tokens <= 16


def tiers():
    for asked, used in [("auto", "default"), ("default", "default"), ("flex", "flex"), ("priority", "priority")]:
        assert chat(service_tier=asked).service_tier == used
    assert {chunk.service_tier for chunk in chat(service_tier="flex", stream=True)} == {"flex"}


def fails(kind, call):
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        assert error.body["message"], error
        return error
    raise AssertionError(f"no {kind.__name__}")


def errors():
    error = fails(openai.BadRequestError, lambda: chat(temperature=9))
    assert (error.param, error.type) == ("temperature", "invalid_request_error"), error
    assert fails(openai.BadRequestError, lambda: chat(messages=[])).param == "messages"
    error = fails(openai.BadRequestError, lambda: text(prompt="word " * 100_000))
    assert (error.code, error.param) == ("context_length_exceeded", "prompt"), error
    assert "This model's maximum context length is" in error.message, error
    error = fails(openai.BadRequestError, lambda: chat(max_tokens=10_000_000))
    assert (error.code, error.param) == ("context_length_exceeded", "max_tokens"), error
    assert "This model's maximum context length is" in error.message, error
    error = fails(openai.NotFoundError, lambda: chat(model="gpt-4"))
    assert (error.code, error.param) == ("model_not_found", "model"), error
    fails(openai.NotFoundError, lambda: client.models.retrieve("gpt-4"))
    unsupported = fails(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="x"))
    assert unsupported.code == "unsupported", unsupported
    unsupported = fails(openai.BadRequestError, lambda: client.responses.create(model=MODEL, input="x"))
    assert "/v1/chat/completions" in unsupported.message, unsupported
    error = fails(openai.BadRequestError, lambda: chat(functions=[{"name": "f", "parameters": {}}]))
    assert error.code == "unsupported", error
    stream = {"stream": True, "temperature": -1}
    fails(openai.BadRequestError, lambda: chat(**stream))


def leave_stream():
    """Closes a response stream after its first delta. The test that runs this script checks that the server notices."""
    stream = chat(max_tokens=900, stream=True)
    next(iter(stream))
    stream.close()


def leave_whole():
    """Cancels a request that does not stream, before its answer."""

    async def cancel():
        async with AsyncOpenAI(base_url=BASE_URL, api_key="anyone", max_retries=0) as patient:
            create = patient.chat.completions.create(
                model=MODEL, messages=HELLO, max_tokens=900, extra_body=LONG
            )
            try:
                await asyncio.wait_for(create, timeout=0.5)
            except (asyncio.TimeoutError, openai.APITimeoutError):
                return
            raise AssertionError("too fast to be cancelled")

    asyncio.run(cancel())


def refused():
    """Checks the error of a full queue, which the test that runs this script has filled."""
    error = fails(openai.RateLimitError, chat)
    assert error.code == "queue_full", error
    assert int(error.response.headers["retry-after-ms"]) >= 1000


def unauthorized():
    """Checks the error of a server that requires an API key that this client does not have."""
    assert fails(openai.AuthenticationError, chat).code == "invalid_api_key"


ALL = [
    models, chat_whole, chat_stream, chat_stream_helper, several_choices, stops, logprobs,
    completions, tiers, errors,
]

for name in CHECKS:
    for check in ALL if name == "all" else [globals()[name]]:
        check()
        print("ok", check.__name__, flush=True)
