"""Streams that are closed, time out or lose their client at any moment leave nothing behind."""

from __future__ import annotations

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from voice_clone_client import Client, VoiceCloneError

from tests.support.servers.server_metrics import wait_until_quiet
from tests.support.servers.server_processes import private_memory
from tests.support.waiting import WAIT
from voice_clone_server.triton_server import TritonServer

pytestmark = [pytest.mark.thorough, pytest.mark.share("servers")]

TEXT = "A story that takes a while to tell, with many words in it."


def one(client: Client, voice: str, number: int) -> str:
    """A stream that ends in one of several ways."""
    rng = random.Random(number)
    deadline = rng.choice([None, None, 0.05, 0.3])
    speech = client.speak(TEXT, voice=voice, seed=number, max_frames=rng.randint(2, 60), deadline=deadline)
    chunks = rng.choice([0, 1, 2, 3, 100])
    try:
        for index, _ in enumerate(speech):
            if index + 1 >= chunks:
                break
    except VoiceCloneError as error:
        return type(error).__name__
    finally:
        speech.close()
    return "closed"


ABANDON = """
import sys
from voice_clone_client import Client
client = Client(sys.argv[1])
speeches = [client.speak(sys.argv[2], voice=sys.argv[3], max_frames=60, seed=n) for n in range(4)]
next(speeches[0])
print("speaking", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("streams", [60, pytest.param(500, marks=pytest.mark.long)])
def test_chaos(server: TritonServer, client: Client, voice: str, streams: int) -> None:
    expected, _ = client.speak(TEXT, voice=voice, seed=1, max_frames=20).read()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: one(client, voice, number), range(20)))
    before = private_memory(server)
    killed = [
        subprocess.Popen(
            [sys.executable, "-c", ABANDON, server.url, TEXT, voice], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda number: one(client, voice, number), range(20, 20 + streams)))
    for process in killed:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"speaking\n"
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()
    assert set(outcomes) <= {"closed", "DeadlineExceeded", "Overloaded"}, set(outcomes)
    wait_until_quiet(server, WAIT)
    again, _ = client.speak(TEXT, voice=voice, seed=1, max_frames=20).read()
    np.testing.assert_allclose(again, expected, atol=5e-5)  # a chunk that goes out early is rounded in another way
    assert private_memory(server) < 1.05 * before + 20e6
