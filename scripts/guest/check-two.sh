#!/bin/bash
# In two guests: does the wire between them carry, lose and break as ordered? Run by selftest.sh.
# shellcheck disable=SC2317 # functions that check calls
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

# A retransmission after 67 ms (-u 14), seven of them before a queue pair gives up.
read_latency=(ib_read_lat -d "$KV_RIG_DEVICE" -x "$KV_RIG_GID_INDEX" -s 4096 -n 300 -u 14)

if [ "$KV_RIG_ROLE" = server ]; then
    for run in clean lossy; do
        "${read_latency[@]}" >/dev/null 2>&1 &
        listening 18515
        tell "$run"
        wait $!
    done
    await finished 120
    exit 0
fi

reads() {
    "${read_latency[@]}" "$KV_RIG_PEER" 2>/dev/null |
        awk '$1 == 4096 { print $2 " reads, typical " $5 " us, worst " $4 " us"; found = 1 } END { exit !found }'
}
answered() { ping -q -c 3 -i 0.2 -W 5 "$KV_RIG_PEER" | grep -q ' 0% packet loss'; }
unanswered() { ! ping -q -c 3 -i 0.2 -W 2 "$KV_RIG_PEER" >/dev/null; }
dropped() { tc -s qdisc show dev "$KV_RIG_NETDEV" | sed -n 's/.*dropped \([0-9]*\),.*/\1/p'; }
lost() { [ "$(dropped)" -gt "$1" ]; }
netem() { tc qdisc replace dev "$KV_RIG_NETDEV" root netem loss "$1"; }

await clean
check "ping" answered
check "ib_read_lat over the wire" reads
netem 2%
# 600 packets: that none is lost has a chance of 1 in 180,000.
ping -q -i 0.002 -c 600 -W 5 "$KV_RIG_PEER" | grep loss
check "2 % loss loses packets" lost 0
await lossy
before=$(dropped)
check "ib_read_lat over a lossy wire" reads
echo "$(($(dropped) - before)) packets of it were lost"
netem 100%
check "a cut wire carries nothing" unanswered
tc qdisc delete dev "$KV_RIG_NETDEV" root
check "a healed wire carries again" answered
tell finished
# The server's guest has ended well by now, or will.
exit 5
