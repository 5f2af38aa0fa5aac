// The text of a speech, whose words light up while they are heard.

import { element } from "./dom.js";

export class SpokenText {
  constructor(box) {
    this.box = box;
  }

  // Shows a text, none of whose words has times yet.
  begin(text) {
    this.points = [...text]; // spans count code points
    this.place = 0; // behind the last word with times
    this.words = []; // { start, end, mark }: seconds of the speech, and the element
    this.rest = document.createTextNode(text);
    this.box.replaceChildren(this.rest);
    this.box.hidden = false;
  }

  // Takes the next words, as the gateway's events have them.
  add(words) {
    for (const { span, start, end } of words) {
      const [from, to] = [Math.max(span[0], this.place), span[1]];
      if (to <= from) continue; // it was spoken again
      const mark = element("span", { textContent: this.points.slice(from, to).join("") });
      this.rest.before(this.points.slice(this.place, from).join(""), mark);
      this.words.push({ start, end, mark });
      this.place = to;
    }
    this.rest.textContent = this.points.slice(this.place).join("");
  }

  // Lights up what is heard when so many seconds were played.
  light(position) {
    for (const { start, end, mark } of this.words) {
      const state = position >= end ? "heard" : position >= start ? "now" : "";
      if ((mark.dataset.state ?? "") === state) continue;
      mark.dataset.state = state;
      if (state === "now") this.box.scrollTop = mark.offsetTop - this.box.offsetTop - this.box.clientHeight / 2;
    }
  }
}
