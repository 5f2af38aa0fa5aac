"""Register a voice from a clip of speech, then speak another text in it.

$ python upload_and_speak.py clip.wav "The words spoken in the clip." "The text." out.wav
"""

import sys

from voice_clone_client import Client, VoiceCloneError, WavWriter


def main(clip: str, transcript: str, text: str, path: str) -> None:
    with Client() as client:
        about = {"reference_text": transcript, "consent": "my own voice"}
        voice = client.upload("example", clip, **about, wait=True, replace=True)  # that of an earlier run
        print(f"{voice.name} is registered, generation {voice.generation}")
        with client.speak_long(text, voice="example", language="English") as speech, open(path, "wb") as file:
            first = next(speech)  # the server still makes the rest
            with WavWriter(file, first.sample_rate) as wav:
                wav.write(first.samples)
                for chunk in speech:
                    wav.write(chunk.samples)
        print(f"{wav.seconds:.2f} s in {path}; {speech.info}")


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except (VoiceCloneError, OSError) as error:
        sys.exit(f"upload_and_speak.py: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
