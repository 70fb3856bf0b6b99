#!/bin/bash
# Runs a command where there is an RDMA device, on a machine that has none: boots the distribution's kernel in an emulator,
# with soft-RoCE (rdma_rxe), and runs the command in it. Debian or Ubuntu; installs what is missing and says why.
#
#   scripts/guest/run.sh [OPTION]... COMMAND [ARGUMENT]...
#
#   scripts/guest/run.sh ibv_devinfo
#   scripts/guest/run.sh --memory 2GiB --hugepages 128 bash -c 'cd common && ../target/debug/deps/verbs-0123456789abcdef'
#   scripts/guest/run.sh --two --timeout 120 ./what-to-do-by-role.sh
#
#   --two          two guests with a wire between them; both run COMMAND, KV_RIG_ROLE tells them apart
#   --iwarp        software iWARP (siw0) in place of soft-RoCE; where the distribution's kernel has no such module it is built
#   --host         no guest: a device of this machine, or soft-RoCE added to it (root) for the time of the command
#   --memory SIZE  of each guest (1GiB)          --hugepages N  2 MiB each, out of that memory (0)
#   --cpus N       of each guest (2)             --timeout S    for all, boot included (300)
#   --out DIR      the shared output directory; without it there is one that is removed at the end
#   --prepare      without COMMAND: installs and downloads what guests need; 125 says that this machine cannot have guests
#
# Guests see this machine's whole file system, at the same paths, and may change it, which only they see. What lasts
# is what they write to $KV_RIG_OUT, the same directory for both and for the host. Standard input is empty.
# Exit status: that of COMMAND (of two: of the first that fails); 124 if the time is over; 125 if the
# rig failed. Of two guests, when one has failed the other has 15 more seconds.
#
# In the environment of COMMAND, besides PATH, HOME, CI, KV_*, RUST* and CARGO* of the caller:
#   KV_RIG_ROLE      both (one guest), server or client     KV_RIG_OUT        the output directory
#   KV_RIG_ADDRESS   this guest's IPv4 address              KV_RIG_PEER       the other's; in one guest its own
#   KV_RIG_DEVICE    the RDMA device, rxe0                  KV_RIG_GID_INDEX  of its RoCE v2 GID: -x of perftest
#   KV_RIG_NETDEV    the interface of the device
# Loss:  tc qdisc replace dev $KV_RIG_NETDEV root netem loss 2%     (what this guest sends; between two guests only)
# A cut: tc qdisc replace dev $KV_RIG_NETDEV root netem loss 100%   Healed: tc qdisc delete dev $KV_RIG_NETDEV root
# `tell NAME` and `await NAME [SECONDS]` of scripts/guest/lib.sh let guests meet without the wire.
set -euo pipefail
guest_scripts=$(cd "$(dirname "$0")" && pwd)
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. "$guest_scripts/../lib.sh"
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$guest_scripts/lib.sh"
# shellcheck source-path=SCRIPTDIR source=kernel.sh
. "$guest_scripts/kernel.sh"

# Exit status of die: not one that COMMAND might have.
# shellcheck disable=SC2034 # by die
die_status=125
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; exit 2; }

cache=${CARGO_TARGET_DIR:-$guest_scripts/../../target}
mkdir -p "$cache/guest"
cache=$(cd "$cache/guest" && pwd)
roles=(both)
host=
iwarp=
prepare=
memory=1GiB
hugepages=0
cpus=2
limit_s=300
out=
while [[ ${1:-} == --* ]]; do
    case $1 in
    --two) roles=(server client) ;;
    --host) host=yes ;;
    --iwarp) iwarp=yes ;;
    --prepare) prepare=yes ;;
    --memory | --hugepages | --cpus | --timeout | --out)
        [ $# -ge 2 ] || usage
        case $1 in
        --memory) memory=$2 ;;
        --hugepages) hugepages=$2 ;;
        --cpus) cpus=$2 ;;
        --timeout) limit_s=$2 ;;
        --out) out=$2 ;;
        esac
        shift ;;
    *) usage ;;
    esac
    shift
done
[ $# -ge 1 ] || [ -n "$prepare" ] || usage

memory_mib=$(($(numfmt --from=auto -- "${memory%B}") / 1048576)) || die "--memory $memory: not a size such as 1GiB"
for number in "$hugepages" "$cpus" "$limit_s"; do
    [[ $number =~ ^[0-9]+$ ]] || die "$number: not a number"
done

declare -A running=()
work=$(mktemp -d)
host_device=
clean_up() {
    local role
    for role in "${!running[@]}"; do
        kill "${running[$role]}" 2>/dev/null || true
        wait "${running[$role]}" || true
    done
    [ -z "$host_device" ] || loopback_down || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mkdir -p "${out:=$work/out}"
out=$(realpath "$out")
echo "$out" >"$work/out-path"

# address ROLE: 192.0.2.0/24 is reserved for examples, so it collides with nothing.
address() { if [ "$1" = client ]; then echo 192.0.2.2; else echo 192.0.2.1; fi; }
peer() { if [ "$1" = server ]; then address client; else address server; fi; }

# job ROLE COMMAND...: writes what a guest does, as a script.
job() {
    mkdir "$work/$1"
    {
        local name
        for name in PATH HOME CI "${!KV_@}" "${!RUST@}" "${!CARGO@}"; do
            [ -z "${!name+set}" ] || printf 'export %s=%q\n' "$name" "${!name}"
        done
        printf 'export KV_RIG_ROLE=%q KV_RIG_OUT=%q KV_RIG_ADDRESS=%q KV_RIG_PEER=%q\n' \
            "$1" "$out" "$(address "$1")" "$(peer "$1")"
        [ -z "$iwarp" ] || printf 'export KV_RIG_SIW=%q\n' "$siw"
        printf 'cd %q\nexec' "$PWD"
        printf ' %q' bash "$guest_scripts/inside.sh" "${@:2}"
        echo
    } >"$work/$1/job"
}

# boot ROLE [ARGUMENT]...: starts a guest, with more arguments for the emulator, and shows what it says.
boot() {
    local role=$1 prefix=
    [ "$role" = both ] || prefix="[$role] "
    : >"$work/$role/output"
    timeout --kill-after=5 "$limit_s" qemu-system-x86_64 "${accelerator[@]}" -machine q35 -m "$memory_mib" -smp "$cpus" \
        -nodefaults -no-user-config -display none -no-reboot -serial "file:$work/$role/console" \
        -kernel "$kernel" -initrd "$initramfs" \
        -append "console=ttyS0 tsc=reliable quiet panic=-1 net.ifnames=0 hugepages=$hugepages GUEST_ROLE=$role" \
        -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap -device virtio-9p-pci,fsdev=root,mount_tag=root \
        -fsdev "local,id=rig,path=$work,security_model=none" -device virtio-9p-pci,fsdev=rig,mount_tag=rig \
        -fsdev "local,id=out,path=$out,security_model=none,multidevs=remap" -device virtio-9p-pci,fsdev=out,mount_tag=out \
        "${@:2}" </dev/null >"$work/$role/qemu" 2>&1 &
    running[$role]=$!
    tail -n +1 -f -s 0.2 --pid="${running[$role]}" "$work/$role/output" | sed -u "s/^/$prefix/" &
    followers+=($!)
}

# wire SIDE: the emulator's arguments for the one end of the wire. By a socket in the file system: nothing of the network is used.
wire() {
    echo -netdev "stream,id=wire,server=$([ "$1" = server ] && echo on || echo off),addr.type=unix,addr.path=$work/wire"
    echo -device "virtio-net-pci,netdev=wire,romfile=,mac=52:54:00:00:00:0$([ "$1" = server ] && echo 1 || echo 2)"
}

# status ROLE CODE: what became of a guest, given the exit status of its emulator.
status() {
    if [ -s "$work/$1/status" ]; then
        cat "$work/$1/status"
    elif [ "$2" -eq 124 ] || [ "$2" -eq 137 ]; then
        echo "run.sh: $1: not done after $limit_s s: ended" >&2
        echo 124
    else
        { echo "run.sh: $1: the guest ended without a result; its console:"
          tail -n 30 "$work/$1/qemu" "$work/$1/console"; } >&2 || true
        echo 125
    fi
}

in_guests() {
    guest_packages >&2
    make_guest "$cache" "$guest_scripts/init" >&2
    [ -z "$iwarp" ] || make_siw "$cache" >&2
    [ -z "$prepare" ] || return 0

    local role
    for role in "${roles[@]}"; do job "$role" "$@"; done
    if [ "${#roles[@]}" -eq 1 ]; then
        boot both
    else
        # shellcheck disable=SC2046 # words
        boot server $(wire server)
        until [ -S "$work/wire" ] || ! kill -0 "${running[server]}" 2>/dev/null; do sleep 0.1; done
        # shellcheck disable=SC2046
        boot client $(wire client)
    fi
    await_guests
}

# await_guests: waits until all have ended and gives the exit status of the first that failed.
await_guests() {
    local result=0 grace='' finished code role
    while [ "${#running[@]}" -gt 0 ]; do
        code=0
        wait -n -p finished "${running[@]}" ${grace:+"$grace"} || code=$?
        if [ "$finished" = "$grace" ]; then
            grace=
            echo "run.sh: ending the other guest, too" >&2
            kill "${running[@]}" 2>/dev/null || true
            continue
        fi
        for role in "${!running[@]}"; do
            [ "${running[$role]}" = "$finished" ] || continue
            unset "running[$role]"
            code=$(status "$role" "$code")
            if [ "$result" -eq 0 ] && [ "$code" -ne 0 ]; then
                result=$code
                sleep 15 &
                grace=$!
            fi
        done
    done
    [ -z "$grace" ] || kill "$grace"
    wait "${followers[@]}"
    return "$result"
}

# on_host COMMAND...: without a guest.
on_host() {
    [ "${#roles[@]}" -eq 1 ] || die "--host gives one machine, and a wire needs two"
    [ -z "$iwarp" ] || die "--host takes the device that is there, and --iwarp is for guests"
    local found
    if ! found=$(active_device); then
        [ "$(id -u)" -eq 0 ] || die "no active RDMA device here, and only root can add soft-RoCE"
        modprobe -q crc32_generic || true
        modprobe -q rdma_rxe || [ -d /sys/module/rdma_rxe ] || die "no active RDMA device here, and no module rdma_rxe"
        host_device=rxe0
        loopback_up "$(address both)" || die "cannot add soft-RoCE here"
        found="rxe0 kvrig0"
    fi
    # shellcheck disable=SC2086 # device and interface
    use_device $found || die "the device $found cannot be used"
    KV_RIG_ADDRESS=$(ip -4 -o addr show dev "$KV_RIG_NETDEV" 2>/dev/null | sed -n 's/.* inet \([0-9.]*\).*/\1/p' | head -n1)
    : "${KV_RIG_ADDRESS:=127.0.0.1}"
    export KV_RIG_ROLE=both KV_RIG_OUT=$out KV_RIG_ADDRESS KV_RIG_PEER=$KV_RIG_ADDRESS
    timeout --kill-after=5 "$limit_s" "$@" </dev/null &
    running[both]=$!
    local code=0
    wait "${running[both]}" || code=$?
    unset 'running[both]'
    return "$code"
}

followers=()
if [ -n "$host" ]; then on_host "$@"; else in_guests "$@"; fi
