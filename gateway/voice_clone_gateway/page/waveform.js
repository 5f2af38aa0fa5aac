// Draws samples as bars on a canvas while they arrive. Bars up to `position` seconds have the strong colour.

const BAR = 3; // CSS pixels
const SPACE = 2;
const GRAIN = 0.02; // seconds of one stored peak

export class Waveform {
  // The bars fill the width from `least` seconds on; before, they grow from the left.
  constructor(canvas, least) {
    this.canvas = canvas;
    this.least = least;
    this.clear();
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  clear() {
    this.peaks = [];
    this.seconds = 0;
    this.position = 0;
    this.loudest = 0.25; // softer samples are drawn smaller
    this.rest = { count: 0, peak: 0 };
    this.draw();
  }

  push(samples, sampleRate) {
    const grain = Math.round(GRAIN * sampleRate);
    for (const sample of samples) {
      this.rest.peak = Math.max(this.rest.peak, Math.abs(sample));
      if (++this.rest.count === grain) {
        this.peaks.push(this.rest.peak);
        this.loudest = Math.max(this.loudest, this.rest.peak);
        this.rest = { count: 0, peak: 0 };
      }
    }
    this.seconds += samples.length / sampleRate;
  }

  draw() {
    const { canvas } = this;
    const scale = devicePixelRatio || 1;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    if (!width) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const [rest, strong, line] = ["--wave-rest", "--accent", "--line"].map((name) => style.getPropertyValue(name));
    const bars = Math.floor((width - 2 * BAR) / (BAR + SPACE));
    const shown = Math.max(this.seconds, this.least);
    for (let bar = 0; bar < bars; bar++) {
      const from = (bar / bars) * shown;
      const begin = Math.floor(from / GRAIN);
      const end = Math.max(begin + 1, Math.floor((((bar + 1) / bars) * shown) / GRAIN));
      const peak = Math.max(0, ...this.peaks.slice(begin, end));
      const there = begin < this.peaks.length;
      const size = there ? Math.max(BAR, (peak / this.loudest) * (height - 16)) : BAR;
      pen.fillStyle = !there ? line : from < this.position ? strong : rest;
      pen.beginPath();
      pen.roundRect(BAR + bar * (BAR + SPACE), (height - size) / 2, BAR, size, BAR / 2);
      pen.fill();
    }
  }
}
