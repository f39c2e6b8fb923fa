#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lists the comment sentences of the product that begin with Of, What, Who,
# Whether or The same, and fails if there are more than MAX [9]: such a sentence
# hides its subject.
set -euo pipefail
cd "$(dirname "$0")/../.."
max=${1:-9}
found=$(find protos kernels cluster worker coordinator \
  \( -name '*.h' -o -name '*.cc' -o -name '*.proto' \) -print0 | sort -z |
  xargs -0 grep -nE '//( .*[.:])? (Of|What|Who|Whether|The same)\b' || true)
count=$(printf '%s' "$found" | grep -c '' || true)
[[ -z $found ]] || printf '%s\n' "$found"
echo "$count sentences, at most $max are wanted"
((count <= max))
