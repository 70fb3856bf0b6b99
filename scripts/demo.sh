#!/bin/bash
# The whole store on this machine, in a few minutes: builds it, starts a server, stores a directory of real files, reads
# them back from another process and compares, stops the server's process to show that GETs go on without it, runs
# YCSB-B for ten seconds, and stops what it started.
#
#   scripts/demo.sh [DIR]     DIR: the files to store; /usr/share/doc unless told otherwise
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/lib.sh

[ $# -le 1 ] || die "usage: scripts/demo.sh [DIR]"
files=${1:-/usr/share/doc}
if [ ! -d "$files" ]; then
    [ $# -eq 0 ] || die "$files is no directory"
    files=$PWD
fi
seconds=${KV_DEMO_SECONDS:-10}

need_rust
say "building in release"
cargo build --release --quiet -p kv-server -p kv-client -p kv-bench
bin=${CARGO_TARGET_DIR:-target}/release

# shellcheck source-path=SCRIPTDIR source=server.sh
. scripts/server.sh
export KV_URL="kv+shm://$work/kv.sock"
say "starting kv-server"
start_server "$bin/kv-server" --memory 1GiB --listen none
echo "$ready"

say "storing the files under $files"
"$bin/kv" load "$files" --skip-too-large
say "reading them back from another process and comparing"
"$bin/kv" verify "$files" --skip-too-large

say "the same with the server's process stopped (SIGSTOP): GETs of a connected client read its memory, not its CPU"
"$bin/kv" put proof 'read while the server is stopped' >/dev/null
coproc reader { exec "$bin/kv" shell; }
reader_pid=$reader_PID
echo 'get proof' >&"${reader[1]}"
read -r first <&"${reader[0]}"
kill -STOP "$server_pid"
echo 'get proof' >&"${reader[1]}"
read -r second <&"${reader[0]}" || die "the GET failed while the server was stopped"
kill -CONT "$server_pid"
eval "exec ${reader[1]}>&-"
wait "$reader_pid"
printf 'running: %s\nstopped: %s\n' "$first" "$second"
[ "$first" = "$second" ] || die "the two reads differ"

say "YCSB-B (95 % reads, 5 % updates, zipfian) for $seconds s"
"$bin/kv-bench" load --workload b --recordcount 100000
"$bin/kv-bench" run --workload b --recordcount 100000 --duration "${seconds}s" --verify

say "what the server counted (read from its memory, too)"
"$bin/kv" stat
say "stopping the server"
kill -TERM "$server_pid"
wait "$server_pid"
server_pid=
say "done. Next: README.md"
