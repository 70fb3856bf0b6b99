# shellcheck shell=bash
# A kv-server for a script, which ends with it, and a directory `work`, which is removed. Sourced, after lib.sh.

work=$(mktemp -d)
server_pid=
clean_up() {
    if [ -n "$server_pid" ] && kill -0 "$server_pid" 2>/dev/null; then
        # A stopped process takes no other signal.
        kill -CONT "$server_pid" 2>/dev/null || true
        kill -TERM "$server_pid" 2>/dev/null || true
        wait "$server_pid" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT

# start_server PROGRAM ARGUMENT...: starts it and waits until it is ready; sets server_pid, and ready, what it says then.
start_server() {
    mkfifo "$work/ready"
    "$@" --socket "$work/kv.sock" >"$work/ready" &
    server_pid=$!
    # shellcheck disable=SC2034 # for whoever sources this
    read -r ready <"$work/ready" || die "kv-server did not start"
}
