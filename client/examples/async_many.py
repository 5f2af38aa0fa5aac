"""Speak many sentences in one voice at the same time: one stream each, all over one connection.

$ python async_many.py NAME < sentences.txt
"""

import asyncio
import sys

from voice_clone_client import AsyncClient, Overloaded, VoiceCloneError, WavWriter


async def say(client: AsyncClient, voice: str, number: int, sentence: str) -> None:
    while True:
        try:
            samples, rate = await client.speak(sentence, voice=voice, seed=number).read()
            break
        except Overloaded:  # all slots and the queue are taken
            await asyncio.sleep(0.5)
    path = f"{number:03}.wav"
    with open(path, "wb") as file, WavWriter(file, rate) as wav:
        wav.write(samples)
    print(f"{path}: {wav.seconds:.2f} s of {sentence!r}")


async def main(voice: str) -> None:
    sentences = [line.strip() for line in sys.stdin if line.strip()]
    async with AsyncClient() as client:
        await client.prepare(voice)
        await asyncio.gather(*(say(client, voice, number, sentence) for number, sentence in enumerate(sentences)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except (VoiceCloneError, OSError) as error:
        sys.exit(f"async_many.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
