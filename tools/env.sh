# Sourced by the tools: makes .venv on the first run and whenever the pinned requirements change.
# shellcheck shell=bash
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

find_python() { # an interpreter that the gateway and the tests support; models and client run on 3.10, too
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or 3.12 is needed; set PYTHON to one." >&2
    return 1
}

make_environment() { # $1: extras of pyproject.toml to install
    local extras="$1" wanted python
    local stamp="$ROOT/.venv/.installed-$1"
    wanted="$(cat "$ROOT"/{pyproject.toml,client/pyproject.toml,tools/env.sh} | sha256sum)"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    (
        flock 9 # two tools at once: the second waits, then finds the work done
        [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0
        cd "$ROOT"
        python="$(find_python)"
        if [ ! -x .venv/bin/pip ]; then
            rm -rf .venv
            "$python" -m venv .venv || {
                echo "python3 -m venv failed. On Debian: apt-get install python3-venv" >&2
                exit 1
            }
        fi
        echo "Installing into .venv (the first time takes a few minutes) ..." >&2
        pip=(.venv/bin/pip install --quiet --disable-pip-version-check)
        # torch first and by itself: a plain '==' keeps pip from looking for another build
        "${pip[@]}" torch==2.13.0
        "${pip[@]}" -e ".[$extras]" -e "./client[gateway]"
        # Only the tritonserver binary and its libraries are wanted from this wheel, not its Python dependencies.
        "${pip[@]}" --no-deps nvidia-pytriton==0.7.0
        if [ "$extras" = server,test ]; then
            # The official implementation, for the parity tests: without the packages of its web demo.
            "${pip[@]}" --no-deps qwen-tts==0.1.1
        fi
        echo "$wanted" >"$stamp"
    ) 9>"$ROOT/.venv.lock"
}

make_apps_environment() { # apps that speak through the gateway, for its tests; their pins contradict the server's
    local stamp="$ROOT/.venv/apps/.installed" wanted="livekit-plugins-openai==1.8.9 pipecat-ai==1.14.0"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "Installing the apps of the gateway's tests into .venv/apps ..." >&2
    rm -rf "$ROOT/.venv/apps"
    "$ROOT/.venv/bin/python" -m venv "$ROOT/.venv/apps"
    # shellcheck disable=SC2086 # a list of packages
    "$ROOT/.venv/apps/bin/pip" install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >"$stamp"
}

run() { # $1: a module of this repository, then its arguments
    local module="$1"
    shift
    PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}" exec "$ROOT/.venv/bin/python" -m "$module" "$@"
}
