// The list of voices: choose, prepare, delete.

import * as api from "./api.js";
import { ask, element, find, icon, showError } from "./dom.js";

const POLL = 1000; // milliseconds, while a voice is being prepared
const SAID = {
  ready: "ready",
  processing: "being prepared",
  pending: "not prepared yet",
  failed: "failed",
  unsupported: "cannot be spoken here",
};

let chosen = null; // name of a voice
let poll = 0;

export const chosenVoice = () => chosen;

// Shows the voices as they are now. `choose` is the name of one to choose.
export async function refreshVoices(choose = chosen) {
  clearTimeout(poll);
  let voices;
  try {
    voices = await api.listVoices();
  } catch (error) {
    showError("voices-error", error);
    throw error;
  }
  showError("voices-error", null);
  const names = voices.map((voice) => voice.name);
  chosen = names.includes(choose) ? choose : (names[0] ?? null);
  find("no-voices").hidden = voices.length > 0;
  show(voices);
  if (voices.some((voice) => voice.cache_status === "processing" || voice.cache_status === "pending")) {
    poll = setTimeout(() => refreshVoices().catch(() => {}), POLL);
  }
  return voices;
}

function show(voices) {
  const focused = document.activeElement?.id;
  find("voices").replaceChildren(...voices.map(entry));
  if (focused) find(focused)?.focus();
}

function entry(voice, index) {
  const radio = element("input", { type: "radio", name: "voice", value: voice.name, id: `voice-${index}` });
  radio.checked = voice.name === chosen;
  radio.addEventListener("change", () => (chosen = voice.name));
  const kind = voice.embedding_source === "direct" ? "Embedding" : "Clip";
  const state = [`${kind}, ${SAID[voice.cache_status]}`, voice.cache_reason].filter(Boolean).join("; ");
  const what = element("span", { className: "what", textContent: state });
  what.dataset.status = voice.cache_status;
  const who = element("span", { className: "who", textContent: voice.name, title: voice.name });
  const row = element("li", { className: "voice" }, element("label", { htmlFor: radio.id }, radio, who, what));
  if (voice.cache_status === "failed") {
    row.append(button(`prepare-${index}`, "Try again", [], () => api.prepareVoice(voice.name)));
  }
  row.append(
    button(`delete-${index}`, `Delete ${voice.name}`, [icon("bin")], async () => {
      const dialog = find("delete-dialog");
      find("delete-title").textContent = `Delete ${voice.name}?`;
      if ((await ask(dialog)) === "delete") await api.deleteVoice(voice.name);
    }),
  );
  return row;
}

function button(id, label, content, act) {
  const made = element("button", { id, type: "button", className: "plain" }, ...(content.length ? content : [label]));
  made.setAttribute("aria-label", label);
  made.title = label;
  made.addEventListener("click", async () => {
    try {
      await act();
      await refreshVoices();
    } catch (error) {
      showError("voices-error", error);
    }
  });
  return made;
}
