#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prometheus' own check of /metrics. It dislikes vLLM's names, which have colons,
# and the end of one of them; nothing else.
set -euo pipefail
url=$1

if ! command -v promtool >/dev/null; then
  echo "no promtool; want the Debian package prometheus"
  exit 77
fi
curl -s -o /dev/null -H 'Content-Type: application/json' \
  -d '{"prompt": "x", "max_tokens": 4}' "$url/v1/completions"
metrics=
for ((i = 0; i < 300; ++i)); do # Until the worker's figures have come.
  metrics=$(curl -s "$url/metrics")
  grep -q '^ringfleet_worker_resident_memory_bytes{.*} [1-9]' <<<"$metrics" && break
  sleep 0.1
done
grep -q '^ringfleet_worker_resident_memory_bytes{.*} [1-9]' <<<"$metrics" || {
  echo "no figures of the worker: $metrics"
  exit 1
}
status=0
problems=$(promtool check metrics <<<"$metrics" 2>&1) || status=$?
if ((status != 0 && status != 3)); then # 3: it dislikes something.
  echo "promtool: $problems"
  exit 1
fi
problems=$(grep -vE -e "^vllm:[a-z0-9_]+ metric names should not contain ':'\$" \
  -e '^vllm:iteration_tokens_total non-counter metrics should not have "_total" suffix$' \
  <<<"$problems" || true)
if [[ -n $problems ]]; then
  echo "$problems"
  exit 1
fi
