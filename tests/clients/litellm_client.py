# SPDX-License-Identifier: Apache-2.0
"""LiteLLM: a chat and its stream, through its provider "openai"."""
import os
import sys

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Asks no other host.
import litellm


def main(url, model):
    request = {"model": f"openai/{model}", "api_base": f"{url}/v1", "api_key": "none",
               "messages": [{"role": "user", "content": "class A:"}],
               "max_tokens": 10, "temperature": 0, "seed": 1, "num_retries": 0}
    whole = litellm.completion(**request).choices[0].message.content
    streamed = "".join(part.choices[0].delta.content or ""
                       for part in litellm.completion(stream=True, **request)
                       if part.choices)
    assert streamed == whole, (streamed, whole)
    try:
        litellm.completion(**dict(request, model="openai/another"))
        raise AssertionError("another model answered")
    except litellm.NotFoundError:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
