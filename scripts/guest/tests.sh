#!/bin/bash
# The tests that need an RDMA device, in guests that have one: a stage of scripts/test.sh, and by itself for development.
#
#   scripts/guest/tests.sh [-p PACKAGE] [ARGUMENT]...
#   scripts/guest/tests.sh --iwarp          what rdma_cm connects, on software iWARP; no stage of scripts/test.sh
#
# ARGUMENTs go to the test binaries: a test's name, --nocapture. Without -p the binaries of all packages are built and run.
# Which: integration test binaries, of any package, whose name begins with "verbs" run in one guest; those whose name
# begins with "wire" run in two at once, one test after the other, and KV_RIG_ROLE tells the sides apart: see run.sh. In
# both a test that needs the device says #[ignore = "needs an RDMA device"], so that `cargo test` passes without one: here
# ignored tests run, too. KV_RIG=host runs the first kind on a device of this machine.
# What cannot run is added to the file that KV_TESTS_NOT_RUN names. All boots together take about ten minutes on two
# quiet cores, and are ended after 40 minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. scripts/lib.sh

packages=(--workspace)
iwarp=()
if [ "${1:-}" = --iwarp ]; then
    iwarp=(--iwarp)
    # Of the tests by rdma_cm those that no other device than RoCE's is needed for.
    set -- -p kv-tests process_cm:: verbs_cm:: a_flood_of_requests_stops_nobody never_ask_or_never_confirm
fi
if [ "${1:-}" = -p ]; then
    [ $# -ge 2 ] || die "-p wants a package"
    packages=(-p "$2")
    shift 2
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list=${KV_TESTS_NOT_RUN:-$work/not-run}
need_rust
need python3 python3 "it finds the test binaries in cargo's messages"
# The programs that tests start, and the tests.
cargo build --profile test --quiet -p kv-server -p kv-bench --bin kv-server --bin kv-bench
# A guest need not look whether they are up to date.
export KV_TESTS_PROGRAMS=${KV_TESTS_PROGRAMS:-${CARGO_TARGET_DIR:-$PWD/target}/debug}
cargo test "${packages[@]}" --no-run --quiet --message-format=json >"$work/messages"
for kind in verbs wire; do
    mkdir "$work/$kind"
    python3 scripts/guest/binaries.py "$kind" <"$work/messages" >"$work/$kind/binaries"
done

# not_run KIND WHY: notes each test of these binaries that `cargo test` leaves out.
not_run() {
    local name directory binary test
    while IFS=$'\t' read -r name directory binary; do
        (cd "$directory" && "$binary" --list --ignored --format terse) | sed -n 's/: test$//p' | while read -r test; do
            echo "$name $test: $2"
        done
    done <"$work/$1/binaries" >>"$list"
}

# run KIND OPTION... -- ARGUMENT...: the binaries of this kind, if there are any.
run() {
    local kind=$1 options=() status=0
    [ -s "$work/$kind/binaries" ] || return 0
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    KV_TESTS_NOT_RUN=$work/$kind/not-run scripts/guest/run.sh "${options[@]}" --memory 2GiB --hugepages 128 \
        --out "$work/$kind" bash scripts/guest/run-binaries.sh "${@:2}" || status=$?
    [ ! -e "$work/$kind/not-run" ] || cat "$work/$kind/not-run" >>"$list"
    return "$status"
}

failed=0
guests=yes
if ! scripts/guest/run.sh --prepare 2>&1 | tee "$work/prepare"; then
    guests=
    why="no guest with soft-RoCE can be booted here: $(tail -n 1 "$work/prepare")"
    echo "guests: $why" >>"$list"
fi
end=$((SECONDS + 2400))
[ -z "$guests" ] || [ "${#iwarp[@]}" -gt 0 ] || scripts/guest/selftest.sh --one
if [ "${KV_RIG:-}" = host ]; then
    run verbs --host --timeout 300 -- "$@" || failed=1
elif [ -n "$guests" ]; then
    # A minute to boot two guests on a busy machine, and time for what they do, if there is anything for two.
    [ -s "$work/wire/binaries" ] && reserve=300 || reserve=0
    run verbs "${iwarp[@]}" --timeout $((end - SECONDS - reserve)) -- "$@" || failed=1
else
    not_run verbs "$why"
fi
if [ "${#iwarp[@]}" -gt 0 ]; then
    :
elif [ -n "$guests" ]; then
    # Both sides say how their tests ended; the client's counts.
    run wire --two --timeout $((end - SECONDS)) -- --test-threads=1 "$@" |
        sed -u 's/^\[client\] test result:/test result:/' || failed=1
else
    not_run wire "$why"
fi
[ "${KV_TESTS_NOT_RUN:-}" ] || [ ! -s "$list" ] || { say "not run"; cat "$list"; }
[ "$failed" -eq 0 ]
