#!/bin/sh
# Makes one cluster of these servers, the first half of them primaries; or finds that it is made. Waits until it works.
#
#   STORE_PASSWORD=… make-cluster.sh ADDRESS …
set -eu
port=${PORT:-6379}
# valkey-cli takes the password from there, and not from an argument.
REDISCLI_AUTH=$STORE_PASSWORD
VALKEYCLI_AUTH=$STORE_PASSWORD
export REDISCLI_AUTH VALKEYCLI_AUTH

servers=
for address in "$@"; do
    servers="$servers $address:$port"
done

state() { valkey-cli -h "$1" -p "$port" cluster info | tr -d '\r' | sed -n 's/^cluster_state://p'; }

# A server that is in no cluster yet knows itself alone.
known=$(valkey-cli -h "$1" -p "$port" cluster info | tr -d '\r' | sed -n 's/^cluster_known_nodes://p')
if [ "$known" = 1 ]; then
    # shellcheck disable=SC2086
    valkey-cli --cluster create $servers --cluster-replicas 1 --cluster-yes
fi
for _ in $(seq 60); do
    [ "$(state "$1")" = ok ] && exit 0
    sleep 1
done
echo "the cluster doesn't work after a minute" >&2
exit 1
