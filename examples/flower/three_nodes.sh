#!/bin/sh
# A federation of three clients on three Flower nodes, all on this machine, each a process of its own.
#
#   examples/flower/three_nodes.sh [FOLDER]      default: flower-demo
#
# Makes the folder (certificates, keys, settings, scripts), starts a SuperLink and three SuperNodes,
# makes a run and ends what it started, by process id. Logs, ids and results stay in the folder:
# server/superlink.log, nodes/*/supernode.log, nodes/*/trainer.log, runs/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-flower-demo}
[ -e "$folder" ] || atlas deploy init "$folder" "$here/federation.yaml"
trap '"$folder/stop.sh"' EXIT INT TERM
"$folder/start.sh"
for part in server nodes/*; do
    for file in "$folder"/$part/process; do
        [ -f "$file" ] && echo "process $(cat "$file"): ${file%/process}"
    done
done
atlas deploy run "$folder"
