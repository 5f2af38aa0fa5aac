// Puts the page together.

import * as api from "./api.js";
import { setUpDesign } from "./design.js";
import { ask, find } from "./dom.js";
import { watchHealth } from "./health.js";
import { refreshModels, showTraits } from "./models.js";
import { setUpNewVoice } from "./new-voice.js";
import { setUpSpeech } from "./speech.js";
import { refreshVoices, setUpVoices, showVoices } from "./voices.js";

let running = null; // the refresh that runs
let refused = null; // the key for which the page has asked for another

async function askForKey(hint) {
  if (hint) find("key-hint").textContent = hint;
  find("key-input").value = api.key.get();
  if ((await ask(find("key-dialog"))) !== "save") return;
  api.key.set(find("key-input").value.trim());
  await refresh();
}

// Shows models and voices as they are now. The list of voices starts a server that is idle, so it waits for `use`.
function refresh(use = false) {
  running ??= showAll(use).finally(() => (running = null));
  return running;
}

async function showAll(use) {
  const state = use ? null : await api.health().catch(() => null);
  if (state?.status === "idle") return;
  await refreshModels().catch(() => {}); // without a list the server's default model speaks
  try {
    const voices = await refreshVoices();
    if (voices.length === 0) find("new-voice").open = true; // the user may have opened it already
  } catch (error) {
    if (error.status !== 401 || refused === api.key.get() || document.querySelector("dialog[open]")) return;
    refused = api.key.get(); // once for each
    const what = refused ? "This gateway does not know the key." : "This gateway requires a key.";
    askForKey(`${what} Ask its operator for one; the page keeps it until this tab is closed.`);
  }
}

setUpVoices();
setUpNewVoice();
setUpDesign();
setUpSpeech();
find("open-key").addEventListener("click", () => askForKey());
find("model").addEventListener("change", () => {
  showTraits();
  showVoices(); // their state is that for the model
});
// Meanwhile voices may have been registered or deleted elsewhere.
document.addEventListener("visibilitychange", () => document.hidden || refresh());
addEventListener("focus", () => refresh());
for (const use of ["pointerdown", "keydown"]) {
  addEventListener(use, () => find("health").dataset.state === "idle" && refresh(true));
}
watchHealth(refresh);
refresh();
