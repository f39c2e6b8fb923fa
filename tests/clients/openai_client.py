# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client: chats and completions, whole and streamed, errors."""
import sys

import openai


def main(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    assert [entry.id for entry in client.models.list()] == [model]

    messages = [{"role": "user", "content": "def add(a, b):"}]
    sampling = {"max_tokens": 12, "seed": 7, "temperature": 0.8}
    chat = client.chat.completions.create(
        model=model, messages=messages, logprobs=True, top_logprobs=2, **sampling)
    choice = chat.choices[0]
    assert choice.message.role == "assistant"
    assert choice.finish_reason in ("stop", "length")
    assert chat.usage.completion_tokens <= 12
    assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)

    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True,
        stream_options={"include_usage": True}, **sampling)
    text, finishes, usage = "", [], None
    for chunk in stream:
        usage = chunk.usage or usage
        for part in chunk.choices:
            text += part.delta.content or ""
            if part.finish_reason:
                finishes.append(part.finish_reason)
    assert text == choice.message.content, (text, choice.message.content)
    assert finishes == [choice.finish_reason]
    assert usage == chat.usage, (usage, chat.usage)

    several = client.completions.create(
        model=model, prompt=["x = ", "y = "], n=2, max_tokens=5, seed=3, temperature=1)
    assert [entry.index for entry in several.choices] == [0, 1, 2, 3]
    echo = client.completions.create(
        model=model, prompt="import os", echo=True, logprobs=1, max_tokens=1, temperature=0)
    scores = echo.choices[0].logprobs
    assert echo.choices[0].text.startswith("import os")
    assert scores.token_logprobs[0] is None
    assert all(value <= 0 for value in scores.token_logprobs[1:])
    stopped = client.completions.create(
        model=model, prompt="def f():\n", max_tokens=60, temperature=0, stop=["\n"])
    assert "\n" not in stopped.choices[0].text

    for field, value in [("tools", [{"type": "function", "function": {"name": "f"}}]),
                         ("response_format", {"type": "json_object"})]:
        try:
            client.chat.completions.create(model=model, messages=messages, **{field: value})
            raise AssertionError(f"{field} was accepted")
        except openai.BadRequestError as error:
            assert field in str(error), error
    try:
        client.completions.create(model=model, prompt="x", max_tokens=10**6)
        raise AssertionError("the context was exceeded")
    except openai.BadRequestError as error:
        assert error.code == "context_length_exceeded", error.code
    try:
        client.completions.create(model="another", prompt="x")
        raise AssertionError("another model answered")
    except openai.NotFoundError:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
