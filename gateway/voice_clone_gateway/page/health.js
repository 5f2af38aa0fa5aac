// Whether the server can speak. While it cannot, the page says why and asks again by itself.

import * as api from "./api.js";
import { find } from "./dom.js";

const EVERY = 15000; // milliseconds
const EVERY_AWAY = 3000;
const SAID = {
  ready: ["Ready", ""],
  idle: ["Idle", "The speech server was idle and has ended. It starts again as soon as you use this page."],
  away: ["Not ready", "The speech server is not ready yet. This page tries again by itself."],
  unreachable: ["Not reachable", "The gateway cannot be reached. This page tries again by itself."],
  "no-model": ["No model", "The server has no model that speaks. As soon as it is started with a checkpoint, this page goes on by itself."],
};

// Asks now and for ever. Calls `whenReady` each time that the server has become ready after it was not.
export async function watchHealth(whenReady) {
  const state = await askForState();
  const before = find("health").dataset.state;
  if (state !== before) {
    const [word, notice] = SAID[state];
    find("health").dataset.state = state;
    find("health").textContent = word;
    find("notice").textContent = notice;
    find("notice").hidden = !notice;
    if (state === "ready" && before !== "unknown") whenReady();
  }
  setTimeout(() => watchHealth(whenReady), state === "ready" ? EVERY : EVERY_AWAY);
}

async function askForState() {
  try {
    return (await api.health()).status;
  } catch (error) {
    if (!error.status) return "unreachable";
  }
  const models = await api.listModels().catch(() => null);
  return models?.length === 0 ? "no-model" : "away";
}
