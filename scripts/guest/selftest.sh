#!/bin/bash
# Is the rig to be trusted? A rig that loses an exit status makes every test in it pass.
#
#   scripts/guest/selftest.sh          everything, in some minutes
#   scripts/guest/selftest.sh --one    what one boot can show
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source-path=SCRIPTDIR source=../lib.sh
. scripts/lib.sh

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# expect STATUS OPTION... COMMAND...: run.sh must end with it.
expect() {
    local status=0
    scripts/guest/run.sh "${@:2}" 2>&1 | tee "$work/output" || status=$?
    [ "$status" -eq "$1" ] || die "run.sh ${*:2}: ended with $status, expected $1"
}
# emulators: those of this test, which are known by its directories. (The brackets keep grep from finding itself.)
emulators() { grep -lsz "path=${work/#\//[/]}" /proc/[0-9]*/cmdline; }

say "one guest"
expect 7 --timeout 300 --hugepages 16 --out "$work/one" bash scripts/guest/check-one.sh
[ -e "$work/one/kept" ] || die "what the guest wrote to the output directory is not here"
[ ! -e written-by-a-guest ] || die "a guest wrote to the host's files"
grep -q '^check: and takes it away' "$work/output" || die "the guest's output is not complete"

say "a guest that takes too long"
expect 124 --timeout 3 --out "$work/slow" sleep 1000
! emulators || die "an emulator is left"

[ "${1:-}" != --one ] || exit 0

say "two guests"
expect 5 --two --timeout 300 --out "$work/two" bash scripts/guest/check-two.sh
grep -q '^\[client\] check: a healed wire' "$work/output" || die "the guests' output is not complete"
say "two guests, one of which fails while the other waits"
# shellcheck disable=SC2016 # expanded in the guest
expect 9 --two --timeout 300 --out "$work/failing" bash -c '[ $KV_RIG_ROLE = server ] && sleep 1000; exit 9'
say "interrupted"
scripts/guest/run.sh --timeout 60 --out "$work/interrupted" sleep 1000 &
run=$!
until emulators >/dev/null; do sleep 0.1; done
kill -TERM $run
status=0
wait $run || status=$?
[ "$status" -eq 143 ] || die "run.sh ended with $status after SIGTERM"
! emulators || die "an emulator is left"
say "the rig is as promised"
