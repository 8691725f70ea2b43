#!/bin/sh
# Starts Flower's SuperLink and makes the nodes' keys known to it; stays until it is ended.
set -eu
here=$$(cd "$$(dirname "$$0")" && pwd)
export PATH="$${ATLAS_PROGRAMS:-$programs}:$$PATH"
export ATLAS_DEPLOY=$$(dirname "$$here") FLWR_HOME="$$here/flwr"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
mkdir -p "$$FLWR_HOME"
rm -f "$$here/registered"
flower-superlink --host $listen --port $port --database "$$here/superlink.db" \
    --ssl-ca-certfile "$$here/ca.pem" --ssl-certfile "$$here/server.pem" \
    --ssl-keyfile "$$here/server.key" --enable-supernode-auth \
    --disable-runtime-dependency-installation >> "$$here/superlink.log" 2>&1 &
superlink=$$!
echo "$$superlink" > "$$here/process"
trap 'kill "$$superlink" 2> /dev/null || true' INT TERM
atlas deploy register "$$ATLAS_DEPLOY" || { kill "$$superlink"; exit 1; }
touch "$$here/registered"
wait "$$superlink"
