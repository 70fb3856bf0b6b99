#!/bin/bash
# Bytes per key of kv-server, of Redis and of memcached: each is filled with the same records (keys of 16 bytes, values of 32),
# one after the other, and looked at again and again meanwhile.
#
#   scripts/memory-compare.sh [RECORDS [FROM]]     RECORDS: 10000000; compared from FROM on, a tenth of them
#
# Takes some 140 bytes of memory per record.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ $# -le 2 ] || die "usage: scripts/memory-compare.sh [RECORDS [FROM]]"
records=${1:-10000000}
from=${2:-$((records / 10))}
memory_mib=$((records * 112 / 1024 / 1024 + 64))
available_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
[ $((records * 150 / 1024 / 1024)) -lt "$available_mib" ] || die "$records records do not fit into $available_mib MiB"

need_rust
need python3 python3 "it fills Redis and memcached, and asks all three for their bytes"
need redis-server redis-server "it is compared with"
need memcached memcached "it is compared with"
say "building in release"
cargo build --release --quiet -p kv-server -p kv-client -p kv-bench
bin=${CARGO_TARGET_DIR:-target}/release

# shellcheck source-path=SCRIPTDIR source=server.sh
. scripts/server.sh
start_server "$bin/kv-server" --memory "${memory_mib}MiB" --workers 1 --hugepages off --listen none --rdma off --log-level error
say "$records records"
python3 scripts/memory_compare.py fill kv "$work" "$records" "$bin"
kill -TERM "$server_pid"
wait "$server_pid"
server_pid=
for peer in redis memcached; do
    python3 scripts/memory_compare.py fill "$peer" "$work" "$records" "$bin"
done
python3 scripts/memory_compare.py compare "$work" "$records" "$from"
