#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# curl on every endpoint: status, shape, and the end of a stream.
set -euo pipefail
url=$1 model=$2

fail() {
  echo "$*" >&2
  exit 1
}
# status PATH [curl arguments]
status() { curl -s -o /dev/null -w '%{http_code}' "$url$1" "${@:2}"; }
post() { curl -s -H 'Content-Type: application/json' -d "$2" "$url$1"; }

for path in /health /ready /version /v1/models /metrics /tokenizer_info; do
  [[ $(status "$path") == 200 ]] || fail "$path: $(status "$path")"
done
[[ $(status /nothing) == 404 ]] || fail "/nothing: $(status /nothing)"
[[ $(status /v1/completions) == 405 ]] || fail "GET: $(status /v1/completions)"
[[ $(status /v1/completions -d x -H 'Content-Type: text/plain') == 415 ]] || fail "type"
[[ $(status /v1/completions -d '{' -H 'Content-Type: application/json') == 400 ]] || fail "JSON"
curl -s "$url/v1/models" | jq -e --arg model "$model" '.data[0].id == $model' >/dev/null ||
  fail "/v1/models: $(curl -s "$url/v1/models")"
tokens=$(post /tokenize '{"prompt": "def f", "add_special_tokens": false}' | jq -c .tokens)
[[ $(post /detokenize "{\"tokens\": $tokens}" | jq -r .prompt) == "def f" ]] ||
  fail "/detokenize of $tokens"
body='{"prompt": "def f", "max_tokens": 8, "temperature": 0, "stream": true}'
stream=$(post /v1/completions "$body")
[[ $stream == *$'\n\ndata: [DONE]'* ]] || fail "the stream ends with: ${stream: -200}"
streamed=$(sed -n 's/^data: {/{/p' <<<"$stream" | jq -j '.choices[0].text')
whole=$(post /v1/completions "${body/true/false}" | jq -j '.choices[0].text')
[[ $streamed == "$whole" ]] || fail "streamed '$streamed', whole '$whole'"
post /v1/chat/completions '{"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}' |
  jq -e '.choices[0].message.role == "assistant"' >/dev/null || fail "no chat"
