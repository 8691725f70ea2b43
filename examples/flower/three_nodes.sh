#!/bin/sh
# A federation of three clients on three Flower nodes, all on this machine, each a process of its own.
#
#   examples/flower/three_nodes.sh [FOLDER]      default: flower-demo
#
# Makes the folder (certificates, keys, settings, scripts), starts a SuperLink and three SuperNodes,
# makes a run and ends what it started, by process id. Called again with the same folder it goes on
# with a run that was stopped, or makes another one. Logs, ids and results stay in the folder:
# server/superlink.log, nodes/*/supernode.log, nodes/*/trainer.log, runs/.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-flower-demo}
[ -e "$folder" ] || atlas deploy init "$folder" "$here/federation.yaml"
stopped=
for run in "$folder"/runs/*/; do
    if [ -f "${run}config.yaml" ] && [ ! -f "${run}summary.json" ]; then
        stopped=$(basename "$run")
    fi
done
trap '"$folder/stop.sh"' EXIT
trap 'echo "stopped; to go on: $0 $folder" >&2; exit 130' INT TERM
"$folder/start.sh"
for file in "$folder"/server/process "$folder"/nodes/*/process; do
    echo "process $(cat "$file"): ${file%/process}"
done
if [ -n "$stopped" ]; then
    echo "going on with $folder/runs/$stopped"
    atlas deploy run "$folder" --resume "$stopped"
else
    atlas deploy run "$folder"
fi
