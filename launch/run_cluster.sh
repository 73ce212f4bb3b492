#!/usr/bin/env bash
# Everything on this machine: see --help. Paths in a config are relative to the project's root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The path of a config may be relative to the working folder of the caller.
arguments=()
for argument in "$@"; do
    case $argument in
        -*|*=*|/*) ;;
        *) if [ -f "$argument" ]; then argument=$(cd "$(dirname "$argument")" && pwd)/$(basename "$argument"); fi ;;
    esac
    arguments+=("$argument")
done

cd "$root"
launch/setup.sh
exec .venv/bin/python -m launch ${arguments[@]+"${arguments[@]}"}
