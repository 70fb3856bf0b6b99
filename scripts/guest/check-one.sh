#!/bin/bash
# In one guest: is it what run.sh promises? Run by selftest.sh.
# shellcheck disable=SC2317 # functions that check calls
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=lib.sh
. scripts/guest/lib.sh

# latency TOOL: typical time in microseconds, of TOOL with itself. perftest measures the processor's clock when it starts,
# and prints "inf" if it could not, which happens on a busy host: then once more.
latency() {
    local tries found
    for tries in {1..5}; do
        "$1" -d "$KV_RIG_DEVICE" -x "$KV_RIG_GID_INDEX" -s 64 -n 500 >/dev/null 2>&1 &
        listening 18515
        found=$("$1" -d "$KV_RIG_DEVICE" -x "$KV_RIG_GID_INDEX" -s 64 -n 500 "$KV_RIG_PEER" 2>/dev/null |
            awk '$1 == 64 { print $5 }')
        wait
        [ "$found" = inf ] || break
        echo "$1: no clock, try $tries" >&2
    done
    echo "$found"
}
link_active() { rdma link show | grep -q "^link $KV_RIG_DEVICE/1 state ACTIVE .* netdev $KV_RIG_NETDEV"; }
port_active() { ibv_devinfo -d "$KV_RIG_DEVICE" | grep -q PORT_ACTIVE; }
quietly() { "$@" >/dev/null; }
positive() { awk "BEGIN { exit !($1 > 0) }" </dev/null; }
hugepages() { [ "$(cat /proc/sys/vm/nr_hugepages)" = "$1" ]; }

check "the processor has AVX2" grep -qw avx2 /proc/cpuinfo
check "two processors" test "$(nproc)" = 2
check "hugepages as ordered" hugepages 16
check "rdma knows an active link" link_active
check "ibv_devinfo shows an active port" port_active
read_us=$(latency ib_read_lat)
check "ib_read_lat with itself: ${read_us:-no result} us" positive "${read_us:-0}"
send_us=$(latency ib_send_lat)
check "ib_send_lat with itself: ${send_us:-no result} us" positive "${send_us:-0}"

check "--host uses a device that is there" \
    scripts/guest/run.sh --host bash -c "[ \$KV_RIG_DEVICE = $KV_RIG_DEVICE ] && [ \$KV_RIG_ADDRESS = $KV_RIG_ADDRESS ]"
check "and leaves it" link_active
loopback_down
check "--host adds soft-RoCE where there is no device" quietly scripts/guest/run.sh --host ibv_devinfo -d rxe0
check "and takes it away" test -z "$(rdma link show)"

touch "$PWD/written-by-a-guest" "$KV_RIG_OUT/kept"
# What is left running must not keep the guest.
sleep 1000 &
exit 7
