# SPDX-License-Identifier: Apache-2.0
"""OpenAI's own client: files and batches."""
import json
import sys
import time
import uuid

import openai

CHAT = "/v1/chat/completions"


def line(custom_id, text="def add(a, b):", **fields):
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 6, "temperature": 0, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}


def upload(client, lines, **fields):
    text = "".join(json.dumps(entry) + "\n" for entry in lines)
    return client.files.create(file=("in.jsonl", text.encode()), purpose="batch", **fields)


def create(client, file, **fields):
    return client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", **fields)


def wait(client, batch):
    deadline = time.monotonic() + 200
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


def lines_of(client, file_id):
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def refused(error, call, *arguments, **fields):
    try:
        call(*arguments, **fields)
    except error as found:
        return str(found)
    raise AssertionError(f"{call} was accepted")


def main(url, model):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    lines = [line(f"request-{i}", model=model) for i in range(5)]
    lines.insert(2, line("too-long", "x " * 20000, model=model))
    lines.insert(4, line("wrong", model=model, messages=[{"rolez": "user"}]))
    file = upload(client, lines, expires_after={"anchor": "created_at", "seconds": 3600})
    assert file.purpose == "batch" and file.filename == "in.jsonl"
    assert file.expires_at == file.created_at + 3600
    assert client.files.retrieve(file.id) == file
    content = client.files.content(file.id)
    assert content.text.count("\n") == len(lines)
    assert content.response.headers["content-length"] == str(file.bytes)
    assert file.filename in content.response.headers["content-disposition"]

    metadata = {"run": "nightly", "tags": "a,b"}
    key = {"Idempotency-Key": str(uuid.uuid4())}
    batch = create(client, file, metadata=metadata, extra_headers=key)
    assert create(client, file, metadata=metadata, extra_headers=key).id == batch.id
    assert batch.metadata == metadata and batch.completion_window == "24h"
    batch = wait(client, batch)
    assert batch.status == "completed", batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (7, 5, 2), counts
    assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens
    assert batch.in_progress_at and batch.finalizing_at and batch.completed_at
    outputs = lines_of(client, batch.output_file_id)
    assert [entry["custom_id"] for entry in outputs] == [f"request-{i}" for i in range(5)]
    whole = client.chat.completions.create(**lines[0]["body"])
    for entry in outputs:
        assert entry["response"]["status_code"] == 200 and entry["error"] is None
        answer = entry["response"]["body"]["choices"][0]["message"]
        assert answer["content"] == whole.choices[0].message.content
    errors = lines_of(client, batch.error_file_id)
    assert [entry["custom_id"] for entry in errors] == ["too-long", "wrong"]
    assert all(entry["error"]["message"] for entry in errors), errors
    refused(openai.ConflictError, client.batches.cancel, batch.id)

    bad = upload(client, [line("a", model=model), line("a", model=model),
                          line("b", model=model) | {"url": "/v1/embeddings"}, line("c"),
                          line("d", model="other"), line("e", model=model, stream=True)])
    failed = wait(client, create(client, bad))
    assert failed.status == "failed" and failed.failed_at
    found = [(error.line, error.code, error.param) for error in failed.errors.data]
    assert found == [(2, "duplicate_custom_id", "custom_id"), (3, "invalid_url", "url"),
                     (4, "invalid_request", "body.model"), (5, "model_not_found", "body.model"),
                     (6, "streaming_unsupported", "body.stream")], failed.errors

    slow = upload(client, [line(f"slow-{i}", model=model, max_tokens=400, ignore_eos=True)
                           for i in range(50)])
    cancelling = client.batches.cancel(create(client, slow).id)
    assert cancelling.status in ("cancelling", "cancelled") and cancelling.cancelling_at
    assert wait(client, cancelling).status == "cancelled"
    assert client.batches.cancel(cancelling.id).status == "cancelled"

    ids = [entry.id for entry in client.batches.list(limit=1)]
    assert ids[:3] == [cancelling.id, failed.id, batch.id], ids
    files = [entry.id for entry in client.files.list(limit=2, purpose="batch")]
    assert files[:3] == [slow.id, bad.id, file.id], files
    for name in (file.id, bad.id, slow.id, batch.output_file_id, batch.error_file_id):
        assert client.files.delete(name).deleted
        refused(openai.NotFoundError, client.files.retrieve, name)
    assert client.batches.retrieve(batch.id).status == "completed"

    assert "purpose" in refused(openai.BadRequestError, client.files.create,
                                file=b"{}", purpose="fine-tune")
    lost = wait(client, create(client, file))
    assert lost.status == "failed" and lost.errors.data[0].param == "file_id", lost
    assert "/v1/completions" in refused(
        openai.BadRequestError, client.batches.create, input_file_id=file.id,
        endpoint="/v1/embeddings", completion_window="24h")
    assert "metadata.tags" in refused(openai.BadRequestError, create, client, file,
                                      metadata={"tags": ["a", "b"]})
    refused(openai.NotFoundError, client.batches.retrieve, "batch_none")


if __name__ == "__main__":
    main(*sys.argv[1:])
