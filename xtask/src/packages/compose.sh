# Starts the Compose file and asks the server from outside of the container: compose.sh QUELL, in a
# network of its own.
set -eu
ip link set lo up
compose() { python3 -m podman_compose --file packages/docker/compose.yaml "$@"; }
ended() { compose down --volumes >/dev/null 2>&1; }
trap ended EXIT
compose up --detach
tries=0
until "$1" health --server "http://127.0.0.1:$QUELL_PORT"; do
    tries=$((tries + 1))
    test "$tries" -lt 200
    sleep 0.1
done
"$1" queue list --server "http://127.0.0.1:$QUELL_PORT"
