"""The launchers of the tools: what they do before Python code of ours runs; in a checkout of their own."""

from __future__ import annotations

import contextlib
import os
import platform
import pty
import shutil
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from voice_clone import __version__
from voice_clone_server.server_log import has_gpu
from voice_clone_server.triton_server import ROOT

FOLDERS = ("tools", "tools/demo_voice", "perf")
LAUNCHERS = sorted(
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS
    for path in (ROOT / folder).iterdir()
    if path.is_file() and not path.suffix and "env.sh" in path.read_text(encoding="utf-8")
)
# A Python that says which one it is, and makes an environment whose pip tells of itself and waits, like a download.
PYTHON = """#!/bin/bash
case "$1" in
-c) echo {version} ;;
-m) mkdir -p .venv/bin
    pip='#!/bin/bash\\ntouch "%s/installing"\\nsleep {seconds}\\necho "ERROR: cancelled" >&2\\nexit 1\\n'
    printf "$pip" "$PWD" > .venv/bin/pip
    chmod +x .venv/bin/pip ;;
esac
"""
# One whose pip and uv write down what they are called with, and fail as the file `fails` says.
RECORDING = """#!/bin/bash
case "$1" in
-c) echo 3.11 ;;
-) echo "$IMAGE" ;;
-m) mkdir -p .venv/bin .venv/lib/python3.11/site-packages
    cat > .venv/bin/pip <<'END'
#!/bin/bash
if [ "$1" = config ]; then echo "$CONFIGURED"; exit; fi
echo "$(basename "$0") $*" >> "$(dirname "$0")/../../calls"
if [ -f fails ]; then cat fails >&2; exit 1; fi
END
    chmod +x .venv/bin/pip; cp .venv/bin/pip .venv/bin/uv ;;
esac
"""
CPU_TORCH = "uv pip install --quiet --python .venv/bin/python --torch-backend cpu torch==2.13.0"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The launchers, with no environment and no Python that fits on PATH."""
    for name in FOLDERS:
        (tmp_path / name).mkdir()
    for name in (*LAUNCHERS, "tools/env.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("client", "client/command", "gateway"):
        (tmp_path / name).mkdir(exist_ok=True)
        shutil.copy(ROOT / name / "pyproject.toml", tmp_path / name)
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "bin").mkdir()
    return tmp_path


def python(checkout: Path, version: str, seconds: float = 0) -> Path:
    path = checkout / "bin" / f"python-{version}"
    path.write_text(PYTHON.format(version=version, seconds=seconds))
    path.chmod(0o755)
    return path


def call(checkout: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / words[0], *words[1:]], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help_installs_nothing(checkout: Path, launcher: str, word: str) -> None:
    before = sorted(checkout.rglob("*"))
    done = call(checkout, launcher, word, PYTHON=str(python(checkout, "3.11")))
    assert done.returncode == 0 and not done.stderr
    comment = (ROOT / launcher).read_text(encoding="utf-8").splitlines()[1]
    assert done.stdout.splitlines()[0] == comment.removeprefix("# ")
    assert sorted(checkout.rglob("*")) == sorted([*before, checkout / "bin" / "python-3.11"])


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_version_is_there_without_an_installation(checkout: Path, launcher: str) -> None:
    (checkout / "voice_clone").mkdir()
    shutil.copy(ROOT / "voice_clone" / "__init__.py", checkout / "voice_clone")
    done = call(checkout, launcher, "--version", PYTHON="no-such-python")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"voice-clone {__version__}\n", "")
    assert not (checkout / ".venv").exists()


def recorded(checkout: Path, terminal: bool = False, **environment: str) -> tuple[str, list[str]]:
    """What an installation writes to stderr, a terminal or a pipe, and the calls of pip and uv."""
    (checkout / "bin" / "recording").write_text(RECORDING)
    (checkout / "bin" / "recording").chmod(0o755)
    mine, other = pty.openpty() if terminal else os.pipe()
    environment = {**os.environ, "PYTHON": str(checkout / "bin" / "recording"), **environment}
    try:
        subprocess.run([checkout / "tools" / "demo"], env=environment, stderr=other, cwd=checkout, timeout=60)
    finally:
        os.close(other)
    reported = b""
    with contextlib.suppress(OSError):  # a terminal whose other end is closed
        while piece := os.read(mine, 4096):
            reported += piece
    os.close(mine)
    return reported.decode(), (checkout / "calls").read_text().splitlines()


def test_a_pip_with_an_index_of_its_own_is_left_alone(checkout: Path) -> None:
    for configured in ("global.index-url='a'", ":env:.find-links='b'", "global.extra-index-url='c'"):
        shutil.rmtree(checkout / ".venv", ignore_errors=True)
        (checkout / "calls").unlink(missing_ok=True)
        reported, calls = recorded(checkout, CONFIGURED=configured)
        assert "No GPU" not in reported
        assert calls[0] == "pip install --quiet --disable-pip-version-check torch==2.13.0"


def test_the_torch_of_an_image_is_taken(checkout: Path) -> None:
    """No other is installed, and none is asked for: the image's may be of another version."""
    reported, calls = recorded(checkout, CONFIGURED="", IMAGE="/opt/torch")
    assert "The torch of /opt/torch is used" in reported and not any("torch==" in call for call in calls)
    own = [
        "-c",
        ".venv/constraints.txt",
        "-e",
        ".[server,onnx]",
        "-e",
        "./client",
        "-e",
        "./client/command",
        "-e",
        "./gateway",
    ]
    assert calls[0].split()[4:] == own
    pins = (checkout / ".venv" / "constraints.txt").read_text()
    assert "numpy==" in pins and "\ntorch==" not in pins
    [path] = checkout.glob(".venv/lib/*/site-packages/*.pth")
    assert path.read_text() == "/opt/torch\n"


def test_a_python_with_our_torch_lends_it(checkout: Path) -> None:
    """Also one that is itself a virtual environment, whose packages --system-site-packages would leave out."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", checkout / ".venv"], check=True, timeout=60)
    asked = 'import torch; print(torch.__version__.partition("+")[0])'
    script = f". tools/env.sh; cd {checkout}; use_torch_of {sys.executable}; .venv/bin/python -W error -c '{asked}'"
    done = subprocess.run(["bash", "-c", script], cwd=checkout, capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.returncode) == (metadata.version("torch").partition("+")[0], 0), done.stderr


@pytest.mark.skipif(has_gpu() or platform.machine() != "x86_64", reason="here the default build of torch is right")
def test_without_a_gpu_torch_is_the_build_for_cpus(checkout: Path) -> None:
    reported, calls = recorded(checkout, CONFIGURED="global.timeout='180'")
    assert "No GPU is found here, so torch's CPU build is taken" in reported
    assert calls[0].startswith("pip install") and "uv==" in calls[0] and calls[1] == CPU_TORCH
    assert not any(call.startswith("pip") and "torch==" in call for call in calls)


def test_pip_shows_its_progress_on_a_terminal_alone(checkout: Path) -> None:
    _, calls = recorded(checkout, terminal=True, CONFIGURED="global.index-url='a'")
    installs = [call for call in calls if call.startswith("pip install")]
    assert installs and not any("--quiet" in call for call in installs)
    shutil.rmtree(checkout / ".venv")
    (checkout / "calls").unlink()
    _, calls = recorded(checkout, CONFIGURED="global.index-url='a'")
    installs = [call for call in calls if call.startswith("pip install")]
    assert installs and all("--quiet" in call for call in installs)


@pytest.mark.parametrize("cause", ["NewConnectionError('Name or service not known')", "ProxyError('refused')"])
def test_no_network_is_reported_as_such(checkout: Path, cause: str) -> None:
    (checkout / "fails").write_text(
        f"WARNING: Retrying (Retry(total=0)) after connection broken by '{cause}': /simple/torch/\n"
        "ERROR: Could not find a version that satisfies the requirement torch==2.13.0 (from versions: none)\n"
        "ERROR: No matching distribution found for torch==2.13.0\n"
    )
    reported, _ = recorded(checkout, CONFIGURED="global.index-url='a'")
    _, reason, what_to_do = reported.splitlines()
    assert "no network" in reason and "https_proxy" in what_to_do and "Retry" not in reported


@pytest.mark.parametrize("launcher", ["tools/serve", "tools/gateway", "perf/load"])
def test_help_lists_the_options_where_there_is_an_environment(checkout: Path, launcher: str) -> None:
    """By the modules of this checkout; the environment is one that would have to be brought up to date first."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").write_text(f'#!/bin/bash\nexec "{sys.executable}" "$@"\n')
    (checkout / ".venv" / "bin" / "python").chmod(0o755)
    path = os.pathsep.join(str(ROOT / each) for each in (".", "client", "gateway"))
    done = call(checkout, launcher, "--help", PYTHONPATH=path)
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stdout
    assert not (checkout / ".venv.lock").exists()


@pytest.mark.parametrize(
    ("version", "said"), [("3.9", "is Python 3.9; 3.11 or 3.12 is needed"), ("", "is Python ; 3.11 or 3.12 is needed")]
)
def test_a_python_that_does_not_fit_is_refused(checkout: Path, version: str, said: str) -> None:
    done = call(checkout, "tools/demo", PYTHON=str(python(checkout, version)))
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1
    done = call(checkout, "tools/demo", PYTHON="no-such-python")
    assert done.returncode == 1 and done.stderr.startswith("PYTHON=no-such-python cannot be run")
    assert not (checkout / ".venv").exists()


def test_a_python_that_is_not_that_of_the_environment_is_refused(checkout: Path) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(python(checkout, "3.11"), checkout / ".venv" / "bin" / "python")
    done = call(checkout, "tools/demo", PYTHON=str(python(checkout, "3.12")))
    assert done.returncode == 1 and "is Python 3.12, but .venv has 3.11; unset PYTHON, or remove .venv" in done.stderr


def test_ctrl_c_while_it_installs_ends_in_one_line(checkout: Path) -> None:
    environment = {**os.environ, "PYTHON": str(python(checkout, "3.11", seconds=60))}
    process = subprocess.Popen(
        [checkout / "tools" / "demo"], env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not (checkout / "installing").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    _, error = process.communicate(timeout=30)
    assert process.returncode == 130
    installing, empty, stopped = error.splitlines()
    assert installing.startswith("Installing into .venv") and not empty
    assert stopped == "Stopped; the next call goes on with the installation."


def test_what_pip_complains_of_is_reported(checkout: Path) -> None:
    done = call(checkout, "tools/demo", PYTHON=str(python(checkout, "3.11")))
    assert done.returncode == 1 and done.stderr.endswith("ERROR: cancelled\n")


# The Python of an image, and all programs of the environments that it makes: they write down what they are called with.
IN_CONTAINER = """#!/bin/bash
if [ "$1" = -c ]; then
    case "$2" in *version_info*) echo {version} ;; esac
elif [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    for name in python pip uv ruff mypy; do cp "$0" "$3/bin/$name"; done
elif [ "$1" != config ]; then
    echo "$(basename "$0") $VOICE_CLONE_TRITON_DIR $*" >> {calls}
    case "$*" in *torchaudio*)
        mkdir -p .venv/official/torchaudio/compliance
        touch .venv/official/torchaudio/compliance/kaldi.py ;;
    esac
fi
"""


def in_container(checkout: Path, version: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`tools/test --in-container` with an image's Python of this version first on PATH."""
    python = checkout / "bin" / "python3"
    python.write_text(IN_CONTAINER.format(version=version, calls=checkout / "calls"))
    python.chmod(0o755)
    path = f"{checkout / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return call(checkout, "tools/test", "--in-container", *words, **{"PATH": path, "PYTHON": "", **environment})


def triton(checkout: Path) -> Path:
    """A folder as /opt/tritonserver, as far as a launcher looks at it."""
    server = checkout / "opt" / "bin" / "tritonserver"
    server.parent.mkdir(parents=True)
    server.write_text("")
    server.chmod(0o755)
    return checkout / "opt"


def test_in_container_wants_a_triton(checkout: Path) -> None:
    done = in_container(checkout, "3.12", VOICE_CLONE_TRITON_DIR=str(checkout))
    assert done.returncode == 1 and f"There is no {checkout}/bin/tritonserver" in done.stderr
    assert "nvcr.io/nvidia/tritonserver:RELEASE-py3" in done.stderr and not (checkout / "calls").exists()


def test_in_container_wants_a_python_on_which_the_tests_run(checkout: Path) -> None:
    done = in_container(checkout, "3.10", VOICE_CLONE_TRITON_DIR=str(triton(checkout)))
    assert done.returncode == 1 and "PYTHON=python3 is Python 3.10; 3.11 or 3.12 is needed" in done.stderr


@pytest.mark.parametrize(
    ("words", "tests"),
    [
        ((), ["tests/server"]),
        (("-k", "voices"), ["tests/server", "-k", "voices"]),
        (("tools/env.sh::test_a", "-x"), ["tools/env.sh::test_a", "-x"]),
    ],
)
def test_in_container_runs_the_tests_that_start_a_server(
    checkout: Path, words: tuple[str, ...], tests: list[str]
) -> None:
    folder = triton(checkout)
    done = in_container(checkout, "3.12", *words, VOICE_CLONE_TRITON_DIR=str(folder))
    assert done.returncode == 0, done.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert any(call.startswith("pip ") and "-e .[server,test]" in call for call in calls), "it installs what is needed"
    last = calls[-1].split()
    assert last[:4] == ["python", str(folder), "-m", "pytest"] and last[-len(tests) :] == tests
    assert " -m not long " in calls[-1] and not any(call.startswith(("ruff", "mypy")) for call in calls)


@pytest.mark.parametrize(
    ("stamps", "wanted", "installs"),
    [
        (["server,test", "server,onnx"], "server", False),
        (["server,onnx"], "onnx,server", False),
        (["server"], "server,onnx", True),
        (["server,test"], "test,onnx", True),
        ([], "server", True),
    ],
)
def test_an_environment_with_more_extras_is_used_as_it_is(
    checkout: Path, stamps: list[str], wanted: str, installs: bool
) -> None:
    """An installation into an environment in use would change what runs."""
    (checkout / ".venv").mkdir()
    for stamp in stamps:
        (checkout / ".venv" / f".installed-{stamp}").write_text("digest\n")
    (checkout / ".venv" / ".installed-server,onnx,test").write_text("that of another state\n")
    check = f". tools/env.sh; has_extras {wanted} digest"
    found = subprocess.run(["bash", "-c", check], cwd=checkout, capture_output=True)
    assert found.returncode == installs, found.stderr
