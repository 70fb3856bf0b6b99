#!/bin/bash
# In the guest, before the command: the network and its soft-RoCE device.
#
#   inside.sh COMMAND [ARGUMENT]...
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$(dirname "$0")/lib.sh"

ip link set lo up
if [ "$KV_RIG_ROLE" = both ]; then
    loopback_up "$KV_RIG_ADDRESS"
    use_device rxe0 kvrig0
else
    roce_up eth0 "$KV_RIG_ADDRESS"
    use_device rxe0 eth0
fi
echo up >"/rig/$KV_RIG_ROLE/up"
exec "$@"
