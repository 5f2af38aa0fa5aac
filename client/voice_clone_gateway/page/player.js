// Plays samples while they come, without gaps: each piece starts at the exact sample at which the one before ends.

const LEAD = 0.05; // seconds between the arrival of the first piece and its sound: what the second may be late
const LONGEST_LEAD = 1.0;
const FADE = 0.015;

export class Player {
  // `sampleRate` in Hz; the context runs at that rate, so that nothing is resampled at the seams. Make it in a click:
  // browsers let no page sound before one.
  constructor(sampleRate) {
    this.context = new AudioContext({ sampleRate, latencyHint: "interactive" });
    this.gain = this.context.createGain();
    this.gain.connect(this.context.destination);
    this.pieces = []; // { at, from, seconds }: on the context's clock, in the speech, long
    this.seconds = 0;
    this.gaps = 0; // how often a piece came too late
    this.lead = LEAD;
    this.context.resume();
  }

  // Schedules a piece; returns the seconds until it sounds.
  push(samples, sampleRate) {
    if (!samples.length) return 0;
    const now = this.context.currentTime;
    const last = this.pieces.at(-1);
    let at = last ? last.at + last.seconds : now + this.lead;
    if (last && at < now) {
      this.gaps += 1;
      this.lead = Math.min(2 * this.lead + 0.1, LONGEST_LEAD); // collect more before going on
      at = now + this.lead;
    }
    const buffer = this.context.createBuffer(1, samples.length, sampleRate);
    buffer.copyToChannel(samples, 0);
    const source = new AudioBufferSourceNode(this.context, { buffer });
    source.connect(this.gain);
    source.start(at);
    this.pieces.push({ at, from: this.seconds, seconds: buffer.duration });
    this.seconds += buffer.duration;
    return at - now + (this.context.outputLatency || this.context.baseLatency || 0);
  }

  // Seconds of the speech that have sounded.
  get position() {
    const now = this.context.currentTime;
    const piece = this.pieces.findLast((each) => each.at <= now);
    return piece ? piece.from + Math.min(now - piece.at, piece.seconds) : 0;
  }

  get finished() {
    return this.position >= this.seconds - 1e-3;
  }

  // Silence at once, without a click.
  stop() {
    const now = this.context.currentTime;
    this.gain.gain.setValueAtTime(1, now);
    this.gain.gain.linearRampToValueAtTime(0, now + FADE);
    setTimeout(() => this.close(), 4000 * FADE);
  }

  close() {
    if (this.context.state !== "closed") this.context.close();
  }
}
