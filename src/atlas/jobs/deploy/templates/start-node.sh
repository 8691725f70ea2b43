#!/bin/sh
# Starts this node's SuperNode; the folder may lie on any machine that reaches $address.
set -eu
here=$$(cd "$$(dirname "$$0")" && pwd)
export PATH="$${ATLAS_PROGRAMS:-$programs}:$$PATH"
export FLWR_HOME="$$here/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export FLWR_SUPEREXEC_TASK_POLL_INTERVAL=0.2
mkdir -p "$$FLWR_HOME"
echo $$$$ > "$$here/process"
exec flower-supernode --superlink $address --root-certificates "$$here/ca.pem" \
    --auth-supernode-private-key "$$here/node.key" --host 127.0.0.1 --port $node_port \
    --ssl-ca-certfile "$$here/ca.pem" --ssl-certfile "$$here/tls.pem" \
    --ssl-keyfile "$$here/tls.key" --node-config "folder='$$here'" \
    >> "$$here/supernode.log" 2>&1
