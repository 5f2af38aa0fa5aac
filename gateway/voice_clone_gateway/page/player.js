// Plays samples while they arrive, without gaps: each piece starts at the exact sample at which the one before ends.

const LEAD = 0.05; // seconds between the arrival of the first piece and its sound; the second may be late by as much
const LONGEST_LEAD = 1.0;
const PATIENCE = 200; // milliseconds in which a context starts
const FADE = 0.015;

export class Player {
  // `sampleRate` in Hz, or undefined if it is not known yet. Create it in a click: browsers play no sound before one.
  constructor(sampleRate) {
    this.use(contextOf(sampleRate));
    this.pieces = []; // { at, from, seconds }: start on the context's clock, start in the speech, length
    this.seconds = 0;
    this.gaps = 0; // how many pieces arrived too late
    this.lead = LEAD;
    this.over = false;
    this.context.resume();
  }

  use(context) {
    this.context = context;
    this.gain = context.createGain();
    this.gain.connect(context.destination);
  }

  // Call this before the first piece. A context that runs at the rate of the speech resamples nothing, so it changes no
  // sample at the seams. If the browser starts no new context outside a click, the first one stays and resamples.
  async setRate(sampleRate) {
    if (this.context.sampleRate === sampleRate) return;
    const context = contextOf(sampleRate);
    await Promise.race([
      context.resume().catch(() => {}),
      new Promise((resolve) => setTimeout(resolve, PATIENCE)),
    ]);
    if (this.over || context.state !== "running") {
      context.close();
      return;
    }
    this.context.close();
    this.use(context);
  }

  // Schedules a piece; returns the seconds until its sound.
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
    this.over = true;
    const now = this.context.currentTime;
    this.gain.gain.setValueAtTime(1, now);
    this.gain.gain.linearRampToValueAtTime(0, now + FADE);
    setTimeout(() => this.close(), 4000 * FADE);
  }

  close() {
    this.over = true;
    if (this.context.state !== "closed") this.context.close();
  }
}

function contextOf(sampleRate) {
  return new AudioContext({ ...(sampleRate ? { sampleRate } : {}), latencyHint: "interactive" });
}
