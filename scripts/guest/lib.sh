# shellcheck shell=bash
# Shared by the rig on the host, in its guests, and by commands that run there: soft-RoCE and meeting points. Sourced.

# roce_up NETDEV ADDRESS [KIND]: a software device rxe0 (or KIND and 0) on a network interface that is there already.
roce_up() {
    # 4200: room for RoCE's largest MTU, 4096, and its headers.
    ip link set "$1" mtu 4200 up
    ip addr add "$2/24" dev "$1"
    rdma link add "${3:-rxe}0" type "${3:-rxe}" netdev "$1"
}

# loopback_up ADDRESS [KIND]: the same on one end of a pair of virtual interfaces, for connections of this machine with itself.
loopback_up() {
    ip link add kvrig0 type veth peer name kvrig1
    ip link set kvrig1 mtu 4200 up
    roce_up kvrig0 "$@"
}

loopback_down() {
    rdma link delete rxe0
    ip link delete kvrig0
}

# active_device: the first RDMA device whose port 1 is active, as "DEVICE NETDEV".
active_device() {
    local port device
    for port in /sys/class/infiniband/*/ports/1; do
        grep -qs ACTIVE "$port/state" || continue
        device=${port#/sys/class/infiniband/}
        echo "${device%%/*} $(cat "$port/gid_attrs/ndevs/0" 2>/dev/null)"
        return 0
    done
    return 1
}

# gid_index DEVICE: the index of the first RoCE v2 GID that is an IPv4 address, what perftest calls -x. InfiniBand and iWARP
# have no such.
gid_index() {
    local gids=/sys/class/infiniband/$1/ports/1 index
    if grep -qs InfiniBand "$gids/link_layer" || grep -qs RNIC "/sys/class/infiniband/$1/node_type"; then
        echo 0
        return 0
    fi
    for index in {0..31}; do
        if grep -qs '^0000:0000:0000:0000:0000:ffff:' "$gids/gids/$index" &&
            grep -qs 'RoCE v2' "$gids/gid_attrs/types/$index" 2>/dev/null; then
            echo "$index"
            return 0
        fi
    done
    return 1
}

# use_device DEVICE NETDEV: waits until its port is active and says in KV_RIG_* what commands need to know.
use_device() {
    local tries
    for tries in {1..100}; do
        grep -qs ACTIVE "/sys/class/infiniband/$1/ports/1/state" && gid_index "$1" >/dev/null && break
        [ "$tries" -lt 100 ] || { echo "$1: no active port with a RoCE v2 GID of an IPv4 address" >&2; return 1; }
        sleep 0.1
    done
    export KV_RIG_DEVICE=$1 KV_RIG_NETDEV=$2 KV_RIG_GID_INDEX
    KV_RIG_GID_INDEX=$(gid_index "$1")
}

# tell NAME and await NAME [SECONDS]: two guests meet by files of the shared output directory, whatever befalls the wire.
tell() { : >"$KV_RIG_OUT/told.$1"; }
await() {
    local tries=$((${2:-60} * 10))
    until [ -e "$KV_RIG_OUT/told.$1" ]; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || { echo "$KV_RIG_ROLE: waited ${2:-60} s for $1" >&2; return 1; }
        sleep 0.1
    done
}

# check WHAT COMMAND...: ends the script, saying what does not hold, if the command fails.
check() {
    "${@:2}" || { echo "check FAILED: $1" >&2; exit 1; }
    echo "check: $1"
}

# listening PORT: waits until somebody of this machine listens there.
listening() { until ss -Hltn "sport = $1" | grep -q .; do sleep 0.1; done; }
