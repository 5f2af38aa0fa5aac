"""The image for a CPU with torch, which serves a family that needs it."""

from __future__ import annotations

from pathlib import Path

from tests.images.engine import Engine, Ports
from tests.images.serving import CONFINED, over_grpc, over_http, serve, upload
from tests.support.official.deployment_files import defaults
from tools.families.toolkit import checkpoint_maker


def test_another_family_speaks(engine: Engine, tmp_path: Path) -> None:
    """VoxCPM2, with random weights, beside the demo's checkpoint: two families in one container."""
    engine.build("cpu", f"--build-arg=TORCH={defaults('packages')['TORCH']}+cpu", name="cpu-torch")
    checkpoint_maker("voxcpm2").make_checkpoint("tiny", 0, tmp_path / "voxcpm2", "bf16", 1)
    tmp_path.chmod(0o755)  # pytest's own is for its user alone
    cache, ports = engine.volume(), Ports()
    mounts = (f"--volume={tmp_path}:/more:ro", f"--volume={cache}:/cache", f"--volume={engine.volume()}:/voices")
    command = serve("/more/voxcpm2", "--checkpoint=/checkpoint", *ports.options)
    with engine.container("cpu-torch", *mounts, "--user=12345:0", *CONFINED, command=command) as container:
        container.ready()
        upload(ports, "rms")
        assert len(over_http(ports, "rms")) > 1000
        for model in ("voxcpm2", "qwen3_tts"):
            with ports.client(model) as client:
                assert over_grpc(client, "rms") > 1000
