// Puts the page together.

import * as api from "./api.js";
import { ask, find } from "./dom.js";
import { refreshModels } from "./models.js";
import { setUpNewVoice } from "./new-voice.js";
import { setUpSpeech } from "./speech.js";
import { refreshVoices } from "./voices.js";

const HEALTH_EVERY = 15000; // milliseconds

async function showHealth() {
  const place = find("health");
  const ready = await api.health().then(() => true, () => false);
  const state = ready ? "ready" : "away";
  if (place.dataset.state === state) return; // nothing to announce
  place.dataset.state = state;
  place.textContent = ready ? "Ready" : "Not ready";
  if (ready) showModels();
}

// Without a list the server's default model speaks.
const showModels = () => refreshModels().catch(() => {});

async function askForKey(hint) {
  if (hint) find("key-hint").textContent = hint;
  find("key-input").value = api.key.get();
  if ((await ask(find("key-dialog"))) !== "save") return;
  api.key.set(find("key-input").value.trim());
  showModels();
  await showVoices();
}

async function showVoices() {
  try {
    const voices = await refreshVoices();
    if (voices.length === 0) find("new-voice").open = true; // the user may have opened it already
  } catch (error) {
    if (error.status === 401) await askForKey("This gateway requires a key. Ask its operator for one; the page keeps it until this tab is closed.");
  }
}

setUpNewVoice();
setUpSpeech();
find("open-key").addEventListener("click", () => askForKey());
showHealth();
setInterval(showHealth, HEALTH_EVERY);
showVoices();
