#!/usr/bin/env bash
# Runs all parts of a run on this machine; see --help. Paths in a config are relative to the project's root.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# The path of the config itself may be relative to the caller's working folder.
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
