// Records the microphone as samples; a container format of the browser's own would be none that the server reads.

// What browsers do to make calls clearer makes a voice less like itself.
const RAW = { channelCount: 1, echoCancellation: false, noiseSuppression: false, autoGainControl: false };

export class Recorder {
  // `onSamples` is called with each piece, a Float32Array. Throws an Error to show, if there is no microphone.
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
