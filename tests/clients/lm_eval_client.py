# SPDX-License-Identifier: Apache-2.0
"""lm-eval: log likelihoods over HTTP are those of `ringfleet score`."""
import json
import os
import subprocess
import sys
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

# lm-eval encodes a context by itself: its last token must end there.
TEXTS = [("def add(a, b", "):\n    return a + b\n"), ("import", " os\nimport sys\n"),
         ("class Node:\n    def __init__(self", ", value):\n")]


def score(text):
    """Log probabilities of the ids of a text behind a BOS."""
    run = subprocess.run(
        [os.environ["RINGFLEET"], "score", "--model", os.environ["RINGFLEET_MODEL"],
         "--dtype", "f32", "-p", text, "--json"],
        check=True, capture_output=True, text=True)
    return json.loads(run.stdout)["logprobs"]


def main(url, model):
    client = LocalCompletionsAPI(
        base_url=f"{url}/v1/completions", model=model, tokenizer_backend="remote",
        num_concurrent=2, max_retries=1, batch_size=1)
    with urllib.request.urlopen(f"{url}/tokenizer_info") as info:
        bos = json.load(info)["bos_token"]
    requests = [Instance("loglikelihood", {}, (bos + context, continuation), index)
                for index, (context, continuation) in enumerate(TEXTS)]
    for (context, continuation), (total, _) in zip(TEXTS, client.loglikelihood(requests)):
        known = len(client.tok_encode(context))
        own = sum(score(context + continuation)[known:])
        assert abs(own - total) < 1e-4, (context, own, total)
    until = {"until": ["\n"], "max_gen_toks": 12, "temperature": 0}
    [text] = client.generate_until([Instance("generate_until", {}, ("def f(", until), 0)])
    assert "\n" not in text, text


if __name__ == "__main__":
    main(*sys.argv[1:])
