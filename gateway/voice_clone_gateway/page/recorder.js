// Records the microphone as samples; the server does not read the container formats of browsers.

// The browser's processing for calls would change the voice.
const RAW = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };

export class Recorder {
  // Calls `onSamples` with each piece, a Float32Array. Throws an Error for the user if there is no microphone.
  static async start(onSamples) {
    if (!navigator.mediaDevices) throw new Error("Browsers record only on https pages and on localhost. Choose a clip instead.");
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: RAW });
    } catch (error) {
      const denied = error.name === "NotAllowedError";
      throw new Error(denied ? "The browser may not use the microphone; allow it in the address bar." : "No microphone was found.");
    }
    const context = new AudioContext();
    await context.audioWorklet.addModule(new URL("recorder-worklet.js", import.meta.url));
    const tap = new AudioWorkletNode(context, "tap", { numberOfOutputs: 0 });
    tap.port.onmessage = (event) => onSamples(event.data);
    context.createMediaStreamSource(stream).connect(tap);
    return new Recorder(stream, context);
  }

  constructor(stream, context) {
    this.stream = stream;
    this.context = context;
    this.sampleRate = context.sampleRate;
  }

  stop() {
    for (const track of this.stream.getTracks()) track.stop();
    this.context.close();
  }
}
