#!/bin/bash
# What tests on soft-RoCE cannot show about a network adapter, measured on a real one: device facts that the read path
# relies on, and rates beside perftest's.
#
#   scripts/nic-checklist.sh server [ADDRESS]      on one host; ADDRESS is one of its addresses, default 127.0.0.1
#   scripts/nic-checklist.sh client ADDRESS        on the other (or the same), while the first waits
#
# DEVICE=mlx5_0 chooses a device. The server's side listens on ADDRESS, ports 7410, 7412 and 18515, until the client's side is done.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. scripts/lib.sh

role=${1:-} address=${2:-127.0.0.1}
[ "$role" = server ] || { [ "$role" = client ] && [ -n "${2:-}" ]; } ||
    die "usage: nic-checklist.sh server [ADDRESS] | client ADDRESS"
need_rust
need ib_read_lat perftest "its figures stand beside ours"
need ibv_devinfo ibverbs-utils "it names firmware and limits"
cargo build --release --quiet -p kv-client -p kv-server -p kv-bench --bins
bin=${CARGO_TARGET_DIR:-target}/release
device=${DEVICE:-$(find /sys/class/infiniband -mindepth 1 -printf '%f\n' 2>/dev/null | sort | head -n 1)}
[ -n "$device" ] || { "$bin/kv" devices || true; die "no RDMA device"; }

losses() {
    local file
    for file in /sys/class/infiniband/"$device"/ports/*/hw_counters/*; do
        [ -r "$file" ] && printf '%s %s\n' "$file" "$(cat "$file")"
    done
}

say "host, device"
uname -srm
numactl --hardware 2>/dev/null | head -n 3 || true
printf 'NUMA node of %s: ' "$device"
cat "/sys/class/infiniband/$device/device/numa_node" 2>/dev/null || echo unknown
ibv_devinfo -d "$device" -v | grep -E 'fw_ver|vendor|max_mr_size|max_qp_rd_atom|max_qp_init_rd_atom|atomic_cap|active_mtu|link_layer|rate' || true
"$bin/kv" devices --peer "$address"

if [ "$role" = server ]; then
    say "device facts: 8-byte words under READ, order of lines, completion after visibility"
    cargo test --quiet -p kv-common --test verbs -- --ignored --nocapture --test-threads=1 facts
    say "waiting for the client's side at $address"
    "$bin/kv-server" --memory 1GiB --listen "$address:7410" --rdma on --rdma-device "$device" --socket "$(mktemp -u)" &
    server=$!
    trap 'kill -TERM "$server" 2>/dev/null || true' EXIT
    for tool in ib_read_lat ib_read_bw ib_send_lat; do
        "$tool" -d "$device" -R -s 128 -F >/dev/null
    done
    "$bin/kv-bench" raw --listen "$address:7412" --device "$device"
    exit
fi

before=$(losses)
url="kv+rdma://$address:7410?device=$device"
say "doctor"
"$bin/kv" doctor --url "$url" || true
for tool in ib_read_lat ib_read_bw ib_send_lat; do
    say "$tool, 128 bytes"
    for attempt in 1 2 3 4 5 6 7 8 9 10; do
        "$tool" -d "$device" -R -s 128 -F "$address" && break
        [ "$attempt" -lt 10 ] || die "$tool does not reach $address"
        sleep 1
    done
done
say "kv-bench raw"
"$bin/kv-bench" raw --connect "$address:7412" --device "$device"
for bytes in 64 1024; do
    say "GETs of $bytes bytes, with raw READs of the same bytes between them"
    "$bin/kv-bench" load --url "$url" --recordcount 100000 --value-size "$bytes"
    "$bin/kv-bench" run --url "$url" --workload c --recordcount 100000 --value-size "$bytes" --duration 10 --warmup 2
done
say "counters that changed"
diff <(echo "$before") <(losses) || true
