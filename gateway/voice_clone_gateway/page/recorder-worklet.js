// Posts the microphone's samples, mixed to mono.
class Tap extends AudioWorkletProcessor {
  process([channels]) {
    if (channels.length) {
      const mono = new Float32Array(channels[0].length);
      for (const channel of channels) channel.forEach((sample, index) => (mono[index] += sample / channels.length));
      this.port.postMessage(mono, [mono.buffer]);
    }
    return true;
  }
}
registerProcessor("tap", Tap);
