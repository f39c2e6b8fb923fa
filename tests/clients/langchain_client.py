# SPDX-License-Identifier: Apache-2.0
"""LangChain's ChatOpenAI: a call, a stream and a batch."""
import sys

from langchain_openai import ChatOpenAI


def main(url, model):
    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_retries=0,
                      max_tokens=10, temperature=0, seed=1)
    whole = chat.invoke("import numpy as")
    assert whole.usage_metadata["output_tokens"] <= 10, whole.usage_metadata
    streamed = "".join(part.content for part in chat.stream("import numpy as"))
    assert streamed == whole.content, (streamed, whole.content)
    answers = chat.batch(["import numpy as"] * 3)
    assert [answer.content for answer in answers] == [whole.content] * 3


if __name__ == "__main__":
    main(*sys.argv[1:])
