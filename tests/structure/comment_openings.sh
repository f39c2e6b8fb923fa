#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Lists the comment sentences in headers and protos that begin with Of, What,
# Who, Whether or The same, and fails if there are more than MAX [59]: such a
# sentence hides its subject.
set -euo pipefail
cd "$(dirname "$0")/../.."
max=${1:-59}
found=$(find protos kernels cluster worker coordinator \
  \( -name '*.h' -o -name '*.proto' \) -print0 | sort -z |
  xargs -0 grep -nE '//( .*[.:])? (Of|What|Who|Whether|The same)\b' || true)
count=$(printf '%s' "$found" | grep -c '' || true)
[[ -z $found ]] || printf '%s\n' "$found"
echo "$count sentences, at most $max are wanted"
((count <= max))
