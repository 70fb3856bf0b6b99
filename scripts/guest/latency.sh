#!/bin/bash
# GETs and PUTs over RDMA beside the bare verbs of perftest, where there is an RDMA device:
#
#   cargo build --release -p kv-server -p kv-bench
#   scripts/guest/run.sh --cpus 2 --timeout 600 scripts/guest/latency.sh [ROUNDS]
#
# A round measures, one after the other: GETs with bare READs of the same length between them, ib_read_lat of that length,
# PUTs, ib_send_lat of the value's length. Each ratio is of medians, and of the smallest, of one round; of the rounds (5) the
# median, and all in order. The smallest of some thousand is what it takes when nobody else runs. In an emulated machine every instruction costs some ten times what it should, and the wire nothing: there the
# ratios overstate what the client and the server compute.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. scripts/lib.sh
# shellcheck source-path=SCRIPTDIR source=../server.sh
. scripts/server.sh
rounds=${1:-5}
bin=${CARGO_TARGET_DIR:-target}/release
device=(-d "$KV_RIG_DEVICE" -x "$KV_RIG_GID_INDEX" -F)
export KV_URL=kv+rdma://127.0.0.1:7410
start_server "$bin/kv-server" --memory 256MiB --hugepages off --workers 1 --log-level error

# field FILE PATH: a number of a report, such as ops.read.latency_ns.p50.
field() {
    python3 -c 'import functools, json, sys
print(functools.reduce(dict.__getitem__, sys.argv[2].split("."), json.load(open(sys.argv[1]))))' "$1" "$2"
}

# perftest TOOL BYTES: its t_typical and t_min in ns.
perftest() {
    local peer tries
    "$1" "${device[@]}" -s "$2" -n 3000 >/dev/null 2>&1 &
    peer=$!
    for tries in {1..50}; do
        ss -Hltn 'sport = :18515' | grep -q . && break
        [ "$tries" -lt 50 ] || { echo "$1 does not listen" >&2; return 1; }
        sleep 0.1
    done
    "$1" "${device[@]}" -s "$2" -n 3000 127.0.0.1 | awk -v bytes="$2" '$1 == bytes { printf "%d %d\n", $5 * 1000, $3 * 1000 }'
    wait "$peer"
}

for ((round = 1; round <= rounds; round++)); do
    for value_bytes in 64 1024; do
        records=(--recordcount 1000 --value-size "$value_bytes")
        "$bin/kv-bench" load "${records[@]}" --json "$work/load" >/dev/null
        "$bin/kv-bench" run "${records[@]}" --workload c --operationcount 4000 --warmup 0s --warm-index --raw-every 2 \
            --json "$work/gets" >/dev/null
        "$bin/kv-bench" run "${records[@]}" --workload a --operationcount 4000 --warmup 0s --warm-index --raw-every 0 \
            --json "$work/puts" >/dev/null
        read_bytes=$(python3 -c 'import sys; print(round(float(sys.argv[1])))' "$(field "$work/gets" bytes_per_get)")
        line="$value_bytes $read_bytes"
        for figure in gets.ops.read.latency_ns gets.raw_read_ns puts.ops.update.latency_ns load.ops.insert.latency_ns; do
            for which in p50 min; do
                line+=" $(field "$work/${figure%%.*}" "${figure#*.}.$which")"
            done
        done
        echo "$line $(perftest ib_read_lat "$read_bytes") $(perftest ib_send_lat "$value_bytes")"
    done
done | tee "$work/rounds" |
    sed -u 's/^/value, READ; p50 and min of GET, raw READ, update, insert, ib_read_lat, ib_send_lat (bytes; ns): /' >&2

python3 - "$work/rounds" <<'END'
import statistics, sys

rows = [[int(cell) for cell in line.split()] for line in open(sys.argv[1])]
for value_bytes in sorted({row[0] for row in rows}):
    print(f"{value_bytes} B:")
    for what, over, under in (("GET / raw READ", 2, 4), ("GET / ib_read_lat", 2, 10),
                              ("update / ib_send_lat", 6, 12), ("insert / ib_send_lat", 8, 12)):
        for which in (0, 1):
            ratios = sorted(row[over + which] / row[under + which] for row in rows if row[0] == value_bytes)
            name = what + (", smallest" if which else "")
            print(f"  {name:31} {statistics.median(ratios):5.2f}   ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")
END
