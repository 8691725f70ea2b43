#!/bin/sh
# Starts the server and all nodes on this machine; stop.sh ends them. Logs lie in their folders.
set -eu
here=$$(cd "$$(dirname "$$0")" && pwd)
export PATH="$${ATLAS_PROGRAMS:-$programs}:$$PATH"
rm -f "$$here/server/registered"
"$$here/server/start.sh" > "$$here/server/start.log" 2>&1 &
server=$$!
while [ ! -f "$$here/server/registered" ]; do # nodes that are not known yet would be refused
    kill -0 "$$server" || { cat "$$here/server/start.log"; exit 1; }
    sleep 0.2
done
for node in $nodes; do
    "$$here/nodes/$$node/start.sh" > /dev/null 2>&1 &
done
atlas deploy check "$$here" --wait 120
