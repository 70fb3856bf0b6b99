#!/bin/bash
# In the guest, before the command: the network and its soft-RoCE device, or with KV_RIG_SIW that of software iWARP, whose
# modules lie there.
#
#   inside.sh COMMAND [ARGUMENT]...
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

kind=rxe
if [ -n "${KV_RIG_SIW:-}" ]; then
    kind=siw
    while read -r module; do
        # Some are there already.
        insmod "$KV_RIG_SIW/$module" 2>/dev/null || true
    done <"$KV_RIG_SIW/order"
    # It counts also what root locks.
    ulimit -l unlimited
fi
ip link set lo up
if [ "$KV_RIG_ROLE" = both ]; then
    loopback_up "$KV_RIG_ADDRESS" "$kind"
    use_device "${kind}0" kvrig0
else
    roce_up eth0 "$KV_RIG_ADDRESS" "$kind"
    use_device "${kind}0" eth0
fi
echo up >"/rig/$KV_RIG_ROLE/up"
exec "$@"
