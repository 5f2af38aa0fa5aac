"""Register a voice from a clip of speech, then say something else in it.

$ python upload_and_speak.py clip.wav "What is said in the clip." "What shall be said." out.wav
"""

import sys

from voice_clone_client import Client, WavWriter


def main(clip: str, transcript: str, text: str, path: str) -> None:
    with Client("localhost:8001") as client:
        voice = client.upload("example", clip, reference_text=transcript, consent="my own voice", wait=True)
        print(f"{voice.name} is registered, generation {voice.generation}")
        with client.speak(text, voice="example", language="English") as speech, open(path, "wb") as file:
            first = next(speech)  # about the time to first audio; the rest is still being made
            with WavWriter(file, first.sample_rate) as wav:
                wav.write(first.samples)
                for chunk in speech:
                    wav.write(chunk.samples)
        print(f"{wav.seconds:.2f} s in {path}; {speech.info}")


if __name__ == "__main__":
    main(*sys.argv[1:])
