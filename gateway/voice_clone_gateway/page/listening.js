// Plays one sound at a time for a button with `data-listen`, whose value names the sound: "clip", "speech", "voice Ada".
// While it plays, the button stops it.

import { ApiError } from "./api.js";

let current = null; // { name, audio, url, follow }

// Plays what `load` returns, a Blob or the promise of one; the button's second press stops it. `follow` gets the position
// in seconds again and again, and null at the end.
export async function listen(name, load, follow = () => {}) {
  const stops = current?.name === name;
  stopListening();
  if (stops) return;
  const mine = (current = { name, follow });
  markListening();
  try {
    const blob = await load();
    if (current !== mine) return;
    mine.url = URL.createObjectURL(blob);
    mine.audio = new Audio(mine.url);
    mine.audio.addEventListener("pause", () => end(mine)); // comes before `ended` too
    await mine.audio.play();
    step(mine);
  } catch (error) {
    if (current !== mine) return; // stopped
    end(mine);
    throw error instanceof ApiError ? error : new Error("This browser cannot play the clip.");
  }
}

export function stopListening() {
  if (!current) return;
  const mine = current;
  mine.audio?.pause();
  end(mine);
}

// Shows on every such button whether its sound plays. Call it when there are new buttons.
export function markListening() {
  for (const button of document.querySelectorAll("[data-listen]")) {
    const on = button.dataset.listen === current?.name;
    button.querySelector("use").setAttribute("href", on ? "#stop" : "#play");
    const label = on ? button.dataset.stop : button.dataset.play;
    const text = button.querySelector("span");
    if (text) text.textContent = label;
    else {
      button.setAttribute("aria-label", label);
      button.title = label;
    }
  }
}

function step(mine) {
  if (current !== mine) return;
  mine.follow(mine.audio.currentTime);
  requestAnimationFrame(() => step(mine));
}

function end(mine) {
  if (current !== mine) return;
  current = null;
  if (mine.url) URL.revokeObjectURL(mine.url);
  mine.follow(null);
  markListening();
}
