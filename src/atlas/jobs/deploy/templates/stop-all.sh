#!/bin/sh
# Ends what start.sh started on this machine, by the process ids that are written down, and what
# those have started themselves: a SuperNode that is killed would leave its children behind.
set -u
here=$$(cd "$$(dirname "$$0")" && pwd)

family() { # a process and all that came of it, by id
    echo "$$1"
    for child in $$(ps -A -o pid= -o ppid= | awk -v of="$$1" '$$2 == of { print $$1 }'); do
        family "$$child"
    done
}

living() {
    for process in "$$@"; do
        kill -0 "$$process" 2> /dev/null && echo "$$process"
    done
}

end() { # the processes of some files: asked to end, and after ten seconds made to
    all=
    for file in "$$@"; do
        [ -f "$$file" ] || continue
        process=$$(cat "$$file")
        rm -f "$$file"
        case $$(ps -ww -p "$$process" -o args= 2> /dev/null) in
            *flower-super* | *"$$here"*) # and no other program that has got the number since
                all="$$all $$(family "$$process")"
                kill "$$process" 2> /dev/null || true
                ;;
        esac
    done
    tries=0
    while [ -n "$$(living $$all)" ] && [ "$$tries" -lt 50 ]; do
        sleep 0.2
        tries=$$((tries + 1))
    done
    for process in $$(living $$all); do
        kill -9 "$$process" 2> /dev/null || true
    done
}

end "$$here"/nodes/*/process
end "$$here/server/process"
