#!/bin/bash
# Instructions that one GET from the index cache costs the client, counted by callgrind: they do not vary with the noise
# of the machine. With --check, fails if a cost is more than 10 % above the one recorded in docs/bench/get-cost.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

need_rust
need valgrind valgrind "callgrind counts instructions"
cargo build --release --quiet -p kv-server -p kv-bench --bin kv-server --example get_cost
bin=${CARGO_TARGET_DIR:-target}/release
# shellcheck source-path=SCRIPTDIR source=server.sh
. scripts/server.sh
export KV_URL="kv+shm://$work/kv.sock"
start_server "$bin/kv-server" --memory 64MiB --listen none --hugepages off --log-level error

gets=16000
for value_bytes in 64 1024; do
    for mark in get_each get_into_each multi_get_each; do
        total=$(valgrind --tool=callgrind --toggle-collect="get_cost::$mark" --callgrind-out-file=/dev/null \
            "$bin/examples/get_cost" "$value_bytes" "$gets" 2>&1 | sed -n 's/.*Collected : //p')
        echo "$mark $value_bytes $((total / gets))"
    done
done | tee "$work/found"

if [ "${1:-}" = --check ]; then
    while read -r mark value_bytes cost; do
        recorded=$(awk -v m="$mark" -v v="$value_bytes" '$1 == m && $2 == v { print $3 }' docs/bench/get-cost.txt)
        [ -n "$recorded" ] || die "docs/bench/get-cost.txt has no line for $mark $value_bytes"
        [ "$cost" -le $((recorded * 110 / 100)) ] ||
            die "$mark of $value_bytes bytes costs $cost instructions, $recorded are recorded"
    done <"$work/found"
fi
