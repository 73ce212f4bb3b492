#!/usr/bin/env bash
# Runs all checks: lint, format, types, then the tests in one pytest run, whose summary is printed last.
#
#   tests/run.sh [unit|contract|integration|chaos|all] [pytest arguments]
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
which=all
case ${1:-} in
    unit | contract | integration | chaos | all) which=$1; shift ;;
esac
folders=("tests/$which")
if [ "$which" = all ]; then folders=(tests/unit tests/contract tests/integration tests/chaos); fi

launch/setup.sh --test
bin=.venv/bin
# Several processes share the cores: one thread each, unless the environment sets another number.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} TOKENIZERS_PARALLELISM=false

echo "== ruff" && $bin/ruff check .
echo "== ruff format" && $bin/ruff format --check .
echo "== mypy" && $bin/mypy
echo "== pytest ${folders[*]}"
exec $bin/python -m pytest -m "not nightly" "${folders[@]}" "$@"
