// The list of voices: choose, hear, prepare, delete.

import * as api from "./api.js";
import { confirmed, element, find, icon, showError } from "./dom.js";
import { listen, markListening } from "./listening.js";
import { chosenFamily } from "./models.js";

const POLL = 1000; // milliseconds, while a voice is being prepared; each time a little longer
const SLOWEST_POLL = 15000;
const NEUTRAL = "neutral";
const MANY = 8; // voices; more get a field to search them
const SAID = {
  ready: "ready",
  processing: "preparing",
  pending: "not prepared yet",
  failed: "failed",
  unsupported: "cannot be spoken here",
};
const TRANSCRIPT = {
  yes: ["with transcript", "The words of its clip are known, so it is cloned in context, which is more similar."],
  no: ["no transcript", "It is cloned by its x-vector alone. Register its clip again with the words spoken in it: that is more similar."],
  embedding: ["embedding", "It was registered as a speaker embedding, without a clip."],
};
const PRESET = ["preset", "It comes with the model, and cannot be deleted."];
const DEFAULT = ["default", "It speaks if a request names no voice."];

let voices = []; // as listed
let fallback = null; // name of the gateway's default voice
let aliases = {}; // further names, each with its voice
let chosen = null; // name of a voice
let fresh = {}; // the voice that this page registered last
let shown = ""; // what the rows are made of
let turn = 0; // counts refreshes: only the latest shows its list
let poll = 0;
let wait = POLL;

export const chosenVoice = () => chosen;

// The style in which the chosen voice speaks; null: its first clip.
export const chosenStyle = () => {
  const style = document.querySelector("#styles input:checked")?.value;
  return style && style !== NEUTRAL ? style : null;
};

// The listed voice of that name; case does not matter.
const voiceNamed = (name) => voices.find((voice) => key(voice.name) === key(name));
const key = (name) => name.normalize("NFC").trim().toLowerCase();

export function setUpVoices() {
  find("find-voice").addEventListener("input", filter);
}

// Shows the voices as they are now, and returns them. `registered` is a voice that has just been registered: it is chosen.
// If the server cannot answer now, this is tried again.
export async function refreshVoices(registered = null) {
  if (registered) {
    fresh = registered;
    chosen = registered.name;
    wait = POLL;
  }
  clearTimeout(poll);
  const mine = ++turn;
  let answer;
  try {
    answer = await api.listVoices();
  } catch (error) {
    if (mine === turn) showFailure(error);
    throw error;
  }
  if (mine !== turn) return voices; // a later refresh shows its own
  const listed = [...answer.uploaded_voices, ...presetsOf(answer)];
  const unchanged = JSON.stringify(voices) === JSON.stringify(listed);
  voices = listed;
  fallback = answer.default_voice ?? null;
  aliases = answer.voice_aliases;
  wait = unchanged ? Math.min(1.5 * wait, SLOWEST_POLL) : POLL;
  showError("voices", null);
  find("voices-away").hidden = true;
  showVoices();
  if (voices.some((voice) => ["processing", "pending"].includes(stateOf(voice).state))) again();
  return voices;
}

// The preset voices of models, as listed ones; a registered voice of the same name speaks in place of one.
function presetsOf(answer) {
  const found = {};
  for (const { name, model, registered } of answer.preset_voices ?? []) {
    if (registered) continue;
    found[name] ??= { name, embedding_source: "preset", artifacts: [] };
    found[name].artifacts.push({ model_type: model, mode: "preset", state: "ready" });
  }
  return Object.values(found);
}

const isPreset = (voice) => voice.embedding_source === "preset";

function again() {
  poll = setTimeout(() => refreshVoices().catch(() => {}), wait);
}

function showFailure(error) {
  const later = !error.status || error.status >= 500;
  if (later) {
    wait = Math.min(2 * wait, SLOWEST_POLL);
    again();
  }
  find("no-voices").hidden = true;
  find("voices-away").hidden = !later || voices.length > 0;
  showError("voices", later ? null : error);
}

// Shows the listed voices; `chosen` becomes one of them.
export function showVoices() {
  const before = chosen;
  const usual = () => voices.find((voice) => stateOf(voice).state !== "unsupported") ?? voices[0];
  chosen = (voiceNamed(chosen ?? "") ?? voiceNamed(fallback ?? "") ?? usual())?.name ?? null;
  if (before !== null && !voiceNamed(before)) note(`${before} was deleted${chosen ? `; ${chosen} is chosen now` : ""}.`);
  find("no-voices").hidden = voices.length > 0;
  find("find-voice-field").hidden = voices.length <= MANY;
  showChosen();
  showRows();
  filter();
  if (chosen !== before) scrollToChosen();
}

// Replaces the rows if they change. Otherwise what the user has open in them stays.
function showRows() {
  const made = JSON.stringify([voices, fallback, aliases, fresh, chosenFamily()]);
  if (made !== shown) {
    shown = made;
    const focused = document.activeElement?.dataset?.focus;
    find("voices").replaceChildren(...voices.map(entry));
    markListening();
    if (focused) [...document.querySelectorAll("[data-focus]")].find((each) => each.dataset.focus === focused)?.focus();
  }
  for (const radio of find("voices").querySelectorAll("input")) radio.checked = radio.value === chosen;
}

// Registers a voice, and returns it. Asks before it takes the place of another one; null: the user does not want that.
export async function registerVoice(fields) {
  await refreshVoices();
  if (fields.style) return addStyle(fields);
  let taken = voiceNamed(fields.name);
  if (!taken) {
    try {
      return await api.uploadVoice(fields);
    } catch (error) {
      if (error.code !== "voice_exists") throw error;
      taken = await api.describeVoice(fields.name).catch(() => null); // it has come meanwhile, or the list is not whole
      if (!taken) throw error; // another owner's
    }
  }
  const replace = await confirmed({
    title: `Replace ${taken.name}?`,
    text: "There is a voice of this name. The new clip takes the place of its clip and of everything computed from it. It cannot be undone.",
    action: "Replace",
  });
  return replace ? api.uploadVoice({ ...fields, replace }) : null;
}

// Adds a clip to a voice, as `registerVoice`.
async function addStyle(fields) {
  try {
    return await api.uploadVoice(fields);
  } catch (error) {
    if (error.code !== "voice_exists") throw error;
  }
  const replace = await confirmed({
    title: `Replace ${fields.style} of ${fields.name}?`,
    text: "The voice has a clip of this style. The new clip takes its place. It cannot be undone.",
    action: "Replace",
  });
  return replace ? api.uploadVoice({ ...fields, replace }) : null;
}

// Shows a voice that has just been registered, and moves the focus to the text.
export async function showRegistered(voice) {
  await refreshVoices(voice).catch(() => {}); // it tries again by itself
  note(`${voice.name} is registered.`);
  find("text").focus();
}

// Says what happened to the list.
const note = (text) => (find("voices-note").textContent = text);

function showChosen() {
  find("speaking-voice").textContent = find("speaking-voice").title = chosen ?? "none yet";
  const before = chosenStyle();
  const styles = Object.keys(voiceNamed(chosen ?? "")?.styles ?? {});
  const tabs = styles.length ? [NEUTRAL, ...styles] : [];
  find("styles").hidden = !tabs.length;
  find("styles").replaceChildren(...tabs.map((value) => {
    const checked = value === (tabs.includes(before) ? before : NEUTRAL);
    const label = element("label", {}, element("input", { type: "radio", name: "style", value, checked }), value);
    const name = chosen;
    const act = () => removeStyle(name, value).catch((error) => showError("voice", error));
    return value === NEUTRAL ? label : element("span", {}, label, button(icon("bin"), `Delete ${value} of ${name}`, act));
  }));
}

function scrollToChosen() {
  const list = find("voices");
  const row = list.querySelector(".voice:has(input:checked)");
  if (row) list.scrollTop = row.offsetTop - list.offsetTop - (list.clientHeight - row.offsetHeight) / 2;
}

function filter() {
  const wanted = find("find-voice-field").hidden ? "" : key(find("find-voice").value);
  const rows = [...find("voices").children];
  for (const row of rows) row.hidden = !key(row.dataset.name).includes(wanted);
  find("none-found").hidden = !rows.length || rows.some((row) => !row.hidden);
}

// State, reason and mode of a voice for the chosen model; while the models are not known, the best of all.
function stateOf(voice) {
  const family = chosenFamily();
  if (!family) return isPreset(voice) ? { state: "ready" } : { state: voice.cache_status, reason: voice.cache_reason };
  const entries = voice.artifacts.filter((each) => each.model_type === family);
  const owners = () => [...new Set(voice.artifacts.map((each) => each.model_type))].join(" and ");
  const none = isPreset(voice) ? { state: "unsupported", reason: `a preset of ${owners()}` } : { state: "pending" };
  return entries.find((each) => each.mode === "icl") ?? entries[0] ?? none;
}

function transcriptOf(voice) {
  if (isPreset(voice)) return PRESET;
  if (voice.embedding_source === "direct") return TRANSCRIPT.embedding;
  const modes = voice.artifacts.filter(({ state }) => state !== "unsupported").map(({ mode }) => mode);
  if (voice.reference_text || modes.includes("icl")) return TRANSCRIPT.yes;
  return modes.includes("x_vector") ? TRANSCRIPT.no : null; // unknown: another mode, and a key that does not show texts
}

function aliasesOf({ name }) {
  const found = Object.keys(aliases).filter((alias) => key(aliases[alias]) === key(name));
  return found.length ? [`also ${found.join(", ")}`, "Further names of this voice in requests to the gateway.", "label names"] : null;
}

function entry(voice, index) {
  const { name } = voice;
  const radio = element("input", { type: "radio", name: "voice", value: name, id: `voice-${index}` });
  radio.dataset.focus = `choose ${name}`;
  radio.addEventListener("change", () => {
    chosen = name;
    note("");
    showError("voice", null);
    showChosen();
  });
  const { state, reason } = stateOf(voice);
  const what = element("span", { className: "what", textContent: [SAID[state], reason].filter(Boolean).join("; ") });
  what.dataset.status = state;
  const facts = element("span", { className: "about" }, what);
  for (const label of [transcriptOf(voice), key(name) === key(fallback ?? "") && DEFAULT, aliasesOf(voice)]) {
    if (!label) continue;
    const [textContent, title, className = "label"] = label;
    facts.append(", ", element("span", { className, textContent, title }));
  }
  const who = element("span", { className: "who", textContent: name, title: name });
  const row = element("li", { className: "voice" }, element("label", { htmlFor: radio.id }, radio, who, " ", facts));
  row.dataset.name = name;
  const problem = element("p", { id: `voice-${index}-problem-error`, className: "error", role: "alert", hidden: true });
  const attempt = (act) => async () => {
    showError(`voice-${index}-problem`, null);
    await act().catch((error) => {
      if (error.code === "voice_not_found") refreshVoices().catch(() => {});
      else if (problem.isConnected) showError(`voice-${index}-problem`, error);
    });
  };
  if (isPreset(voice)) return row;
  if (voice.embedding_source !== "direct") row.append(clipButton(name, attempt));
  if (state === "failed") row.append(button(icon("again"), `Prepare ${name} again`, attempt(() => prepare(name))));
  row.append(button(icon("bin"), `Delete ${name}`, attempt(() => remove(name))), ...warnings(voice), problem);
  return row;
}

function button(content, label, act) {
  const made = element("button", { type: "button", className: "plain", title: label }, content);
  made.setAttribute("aria-label", label);
  made.dataset.focus = label;
  made.addEventListener("click", act);
  return made;
}

function clipButton(name, attempt) {
  const made = button(icon("play"), `Play the clip of ${name}`, attempt(() => listen(`voice ${name}`, () => api.clipOf(name))));
  Object.assign(made.dataset, { listen: `voice ${name}`, play: made.title, stop: "Stop the clip" });
  return made;
}

// What may make the voice worse, as the server saw its clip; it is open for the voice that was just registered.
function warnings(voice) {
  const mine = voice.name === fresh.name ? fresh : {};
  const found = voice.warnings ?? mine.warnings ?? [];
  if (!found.length) return [];
  const title = found.length === 1 ? "1 warning" : `${found.length} warnings`;
  const lines = found.map(({ message }) => element("li", { textContent: api.sentence(message) }));
  const box = element("details", { className: "warnings", open: "name" in mine });
  box.append(element("summary", { textContent: `${title} about the clip` }), element("ul", {}, ...lines));
  return [box];
}

async function prepare(name) {
  await api.prepareVoice(name);
  await refreshVoices();
}

async function removeStyle(name, style) {
  const question = {
    title: `Delete ${style} of ${name}?`,
    text: "This deletes the clip of this style and everything computed from it. It cannot be undone.",
    action: "Delete",
  };
  if (!(await confirmed(question))) return;
  await api.deleteStyle(name, style);
  await refreshVoices();
}

async function remove(name) {
  const question = {
    title: `Delete ${name}?`,
    text: "This deletes its clip and everything computed from it. It cannot be undone.",
    action: "Delete",
  };
  if (!(await confirmed(question))) return;
  await api.deleteVoice(name);
  await refreshVoices();
}
