#!/bin/sh
# Ends what start.sh started on this machine, by the process ids that are written down.
set -u
here=$$(cd "$$(dirname "$$0")" && pwd)
for file in "$$here"/nodes/*/process "$$here/server/process"; do
    [ -f "$$file" ] || continue
    process=$$(cat "$$file")
    kill "$$process" 2> /dev/null || true
    tries=0
    while kill -0 "$$process" 2> /dev/null && [ "$$tries" -lt 50 ]; do
        sleep 0.2
        tries=$$((tries + 1))
    done
    kill -9 "$$process" 2> /dev/null || true
    rm -f "$$file"
done
