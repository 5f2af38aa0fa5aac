# Sourced by the tools: makes .venv on the first run and whenever the pinned requirements change.
# shellcheck shell=bash
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"

find_python() { # the newest interpreter this project supports
    local candidate
    for candidate in "${PYTHON:-}" python3.11 python3.12 python3.10 python3; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.10, 3.11 or 3.12 is needed; set PYTHON to one." >&2
    return 1
}

make_environment() { # $1: extras to install; every use is additive
    local extras="$1" stamp=".venv/.installed-$1" wanted python
    wanted="$(cat pyproject.toml client/pyproject.toml tools/env.sh | sha256sum)"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    (
        flock 9 # two tools at once: the second waits, then finds the work done
        [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && exit 0
        python="$(find_python)"
        if [ ! -x .venv/bin/pip ]; then
            echo "Making .venv (the first time takes a few minutes) ..." >&2
            rm -rf .venv
            "$python" -m venv .venv || {
                echo "python3 -m venv failed. On Debian: apt-get install python3-venv" >&2
                exit 1
            }
        fi
        pip=(.venv/bin/pip install --quiet --disable-pip-version-check)
        # torch first and by itself: a plain '==' keeps pip from looking for another build
        "${pip[@]}" torch==2.13.0
        "${pip[@]}" -e ".[$extras]" -e ./client
        # Only the tritonserver binary and its libraries are wanted from this wheel, not its Python dependencies.
        "${pip[@]}" --no-deps nvidia-pytriton==0.7.0
        if [ "$extras" = server,test ]; then
            # The official implementation, for the parity tests: without the packages of its web demo.
            "${pip[@]}" --no-deps qwen-tts==0.1.1
            "${pip[@]}" transformers==4.57.3 accelerate==1.12.0 librosa==0.11.0 einops==0.8.2 onnxruntime==1.23.2 sox==1.5.0
        fi
        echo "$wanted" >"$stamp"
    ) 9>.venv.lock
}
