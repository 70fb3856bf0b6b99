#!/bin/bash
# Everything that must hold, in one command: format, lints, licences, documentation, all tests (unit, property, real
# processes, the simulation with its mutants), doc tests, loom's exploration of the atomic cores, and in guests with
# soft-RoCE the tests that need an RDMA device.
#
#   scripts/test.sh
#
# Installs what is missing and says why. Ends with the number of tests that passed, failed, and could not run here; with
# CI=true a test that could not run is a failure. KV_SIM_SEEDS=N plays N random seeds of the simulation (docs/verification.md).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

need_rust
need python3 python3 "the worked example of docs/layout.md is checked by an implementation of its own"
if ! cargo deny --version >/dev/null 2>&1; then
    say "installing cargo-deny: it checks the licences and sources of the dependencies (takes some minutes, once)"
    cargo install --locked --debug --quiet --version '^0.20' cargo-deny
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Nothing is built twice with a change between here, so what cargo keeps for that is only disk.
export CARGO_INCREMENTAL=0
export KV_TESTS_NOT_RUN="$work/not-run"
touch "$KV_TESTS_NOT_RUN"
log="$work/log"
failed=0

# stage NAME COMMAND...: runs it, keeps its output for the counts, goes on if it fails.
stage() {
    say "$1"
    local started=$SECONDS
    if ! "${@:2}" 2>&1 | tee -a "$log"; then
        failed=$((failed + 1))
        echo "$1: FAILED" | tee -a "$work/failed"
    fi
    echo "$1: $((SECONDS - started)) s" >>"$work/times"
}

stage "format" cargo fmt --all --check
stage "lints" cargo clippy --workspace --all-targets --quiet -- -D warnings
stage "licences, bans, sources" cargo deny --log-level error check licenses bans sources
stage "documentation" env RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
stage "layout example" python3 docs/layout_example.py
# The programs that the tests start, without the features that tests switch on.
stage "programs" cargo build --profile test --quiet -p kv-server -p kv-bench --bin kv-server --bin kv-bench
stage "tests" cargo test --workspace --no-fail-fast
# The largest value that there can be; no other test takes so much memory.
if [ "$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)" -ge $((8 << 20)) ]; then
    stage "a value of 1 GiB" cargo test --quiet -p kv-tests --test process -- --ignored large::
else
    echo "kv-tests process large::: less than 8 GiB of memory are free" >>"$KV_TESTS_NOT_RUN"
fi
stage "loom" env RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom \
    cargo test -p kv-common --lib --release -- loom

stage "guests" scripts/guest/tests.sh
stage "cost of a GET" scripts/get-cost.sh --check

say "times"
cat "$work/times"
if [ -s "$KV_TESTS_NOT_RUN" ]; then
    say "not run here"
    cat "$KV_TESTS_NOT_RUN"
    [ "${CI:-}" != true ] || failed=$((failed + 1))
fi
if [ -s "$work/failed" ]; then
    say "failed"
    cat "$work/failed"
fi

# count WORD: the sum of the runner's own counts, over all of its closing lines.
count() { sed -nE "s/^test result: .* ([0-9]+) $1;.*/\1/p" "$log" | awk '{ sum += $1 } END { print sum + 0 }'; }
passed_tests=$(count passed)
failed_tests=$(count failed)
not_run=$(wc -l <"$KV_TESTS_NOT_RUN")
[ "$passed_tests" -gt 0 ] || failed=$((failed + 1))
say "$([ "$failed" -eq 0 ] && echo "all stages passed" || echo "$failed stages failed")"
echo "$passed_tests passed, $failed_tests failed, $not_run skipped"
[ "$failed" -eq 0 ]
