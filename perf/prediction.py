# SPDX-License-Identifier: Apache-2.0
"""Predictions of `ringfleet plan` for rows that `ringfleet bench -o json` prints."""

import json
import subprocess
from operator import truediv
from statistics import median


def test_name(row):
    """As bench's table has it: pp512, tg16 @ d2048."""
    name = f"pp{row['n_prompt']}" if row["n_prompt"] else f"tg{row['n_gen']}"
    return name + (f" @ d{row['n_depth']}" if row["n_depth"] else "")


def predicted(ringfleet, model, fleet, row, tensor, strategy="auto"):
    """Tokens per second of the test of a row, of tensor ranks; None where plan
    does not say: of prompts behind others, several at once, or a strategy that
    it did not compare for this mesh."""
    prompt = row["n_prompt"] > 0
    if prompt and (row["n_depth"] > 0 or row["n_parallel"] > 1):
        return None
    # While tokens are generated the context is this long in the middle.
    context = row["n_depth"] + (row["n_prompt"] or row["n_gen"] // 2)
    plan = json.loads(subprocess.check_output(
        [ringfleet, "plan", "--model", model, "--fleet", fleet, "--context",
         str(context), "--batch", str(row["n_parallel"]), "-o", "json"]))
    mesh = {"data": 1, "expert": 1, "tensor": tensor}
    found = None
    for option in [plan, *plan["alternatives"]]:
        name = option.get("name", "")
        if option["mesh"] != mesh or "pipeline" in name:
            continue
        named = name.split(" prefill, ")[0] if " prefill, " in name else "auto"
        # Auto shares a prompt's rows out wherever that is worth it.
        if named == strategy or found is None and named == "auto" and (
                strategy == "sequence_parallel" or not prompt or tensor == 1):
            found = option
    if found is None:
        return None
    return found["prefill_tps" if prompt else "decode_tps"]


def error(said, real):
    """Median over the rounds of predicted over measured, as a difference."""
    return f"{100 * (median(map(truediv, said, real)) - 1):+.0f} %"
