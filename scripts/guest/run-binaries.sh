#!/bin/bash
# In a guest: runs the test binaries that tests.sh lists in $KV_RIG_OUT/binaries, as cargo would.
#
#   run-binaries.sh [ARGUMENT]...    for the binaries
set -uo pipefail
status=0
while IFS=$'\t' read -r name directory binary; do
    printf '\n     Running %s (%s)\n' "$name" "$binary"
    (cd "$directory" && CARGO_MANIFEST_DIR=$directory "$binary" --include-ignored "$@" </dev/null) || status=1
done <"$KV_RIG_OUT/binaries"
exit "$status"
