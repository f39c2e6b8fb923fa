#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The command `llm` with a model of its extra-openai-models.yaml.
set -euo pipefail
url=$1 model=$2
LLM_USER_PATH=$(mktemp -d)
export LLM_USER_PATH
trap 'rm -rf "$LLM_USER_PATH"' EXIT
cat >"$LLM_USER_PATH/extra-openai-models.yaml" <<YAML
- model_id: fleet
  model_name: $model
  api_base: $url/v1
- model_id: fleet-completion
  model_name: $model
  api_base: $url/v1
  completion: true
YAML
export OPENAI_API_KEY=none
options=(-o max_tokens 8 -o temperature 0 -o seed 1)
streamed=$(llm -m fleet "${options[@]}" 'import os')
whole=$(llm -m fleet --no-stream "${options[@]}" 'import os')
[[ -n $whole && $streamed == "$whole" ]] || {
  echo "streamed '$streamed', whole '$whole'" >&2
  exit 1
}
[[ -n $(llm -m fleet-completion "${options[@]}" 'import os') ]]
