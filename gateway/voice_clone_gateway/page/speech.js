// Speak a text, play it while it arrives, and show where the time went.

import * as api from "./api.js";
import { element, find } from "./dom.js";
import { clearErrors, fieldsAreValid, placeError, watchFields } from "./fields.js";
import { listen, stopListening } from "./listening.js";
import { chosenModel, chosenOptions, refreshModels } from "./models.js";
import { Player } from "./player.js";
import { SpokenText } from "./spoken-text.js";
import { setUpPreview } from "./preview.js";
import { chosenStyle, chosenVoice, refreshVoices } from "./voices.js";
import { encodeWav, join } from "./wav.js";
import { Waveform } from "./waveform.js";

const CACHE = { hit: "hit", miss: "miss, made now", restored: "restored from disk", none: "not used" };
const MODE = { icl: "in context", x_vector: "x-vector", auto: "any voice", zero_shot: "no voice", instruct: "instructions" };
const CUT = "cut at the longest length";
const FINISH = {
  length: CUT,
  budget: "not whole: the model did not end. Another seed may help",
  runaway: "not whole: the model repeated itself. Another seed may help",
  text_left: "not whole: the model ended before it had read all of the text. Another seed may help, or a shorter text",
};

// The stages up to the first audio: name, and milliseconds from the server's info; undefined: there was none.
const STAGES = [
  ["Voice and text", (info) => info.prompt_ms - (info.encoder_ms ?? 0)],
  ["Making the voice", (info) => info.encoder_ms],
  ["Waiting for a slot", (info) => info.queue_ms],
  ["Reading the prompt", (info) => info.prefill_ms],
  ["First codec frames", (info) => (info.first_chunk_ms ?? info.first_frame_ms) - info.queue_ms - info.prefill_ms],
  ["Decoding it", (info) => info.code2wav_first_ms],
];

const wave = new Waveform(find("speech-wave"), 4);
const spoken = new SpokenText(find("spoken-text"));
const rates = new Map(); // Hz of each model that has spoken
let running = null; // the current speech, see `speak`
let finished = null; // the audio of the latest speech, as far as it came: a WAV

export function setUpSpeech() {
  find("speak").addEventListener("submit", (event) => {
    event.preventDefault();
    speak();
  });
  watchFields(find("speak"));
  setUpPreview(textFields);
  find("more").open = !matchMedia("(max-width: 820px)").matches; // on a phone the text is what matters
  find("stop-speech").addEventListener("click", stop);
  find("replay").addEventListener("click", replay);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
      stop();
      stopListening();
    }
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("speak").requestSubmit();
  });
}

function stop() {
  if (!running) return;
  const mine = running;
  const { player, abort } = mine;
  running = null;
  abort.abort(); // the server stops too
  show("stopped", `Stopped after ${seconds(player.position)}`, `of ${seconds(player.seconds)}`);
  player.stop();
  offer(mine);
}

async function speak() {
  stop();
  stopListening();
  clearErrors(find("speak"));
  if (!fieldsAreValid(find("speak"))) return;
  const voiceless = !find("voiceless-field").hidden && find("voiceless").checked;
  const voice = voiceless ? null : chosenVoice();
  if (!voice && !voiceless) {
    placeError(find("speak"), new api.ApiError("There is no voice yet. Register one first.", 0, { param: "voice" }));
    return;
  }
  const began = performance.now();
  const model = chosenModel();
  const player = new Player(rates.get(model));
  const longest = Number(find("longest").value) || Infinity; // seconds
  const mine = { began, voice, model, player, longest, abort: new AbortController(), pieces: [], samples: 0, end: null };
  running = mine;
  reset();
  spoken.begin(find("text").value);
  show("waiting", "Waiting for the first audio");
  follow(mine);
  try {
    await receive(mine);
    mine.end = "done";
  } catch (error) {
    if (running !== mine) return; // stopped
    placeError(find("speak"), error);
    mine.end = "failed"; // the pieces that arrived are still played
    if (error.code === "voice_not_found") refreshVoices().catch(() => {});
    if (error.code === "model_not_found") refreshModels().catch(() => {});
  }
}

async function receive(mine) {
  let info = {};
  let full = false; // whether the speech has its longest length
  for await (const event of api.speak(fields(mine), mine.abort.signal)) {
    if (running !== mine) return;
    spoken.add(event.words ?? []);
    if (event.type !== "audio") {
      info = { ...info, ...event.info };
      showInfo(info);
      continue;
    }
    const arrived = performance.now();
    if (!mine.pieces.length) await begin(mine, event.sampleRate);
    if (running !== mine) return;
    const most = Math.max(1, Math.round(mine.longest * mine.rate));
    const samples = event.samples.subarray(0, most - mine.samples);
    const waited = (performance.now() - arrived) / 1000; // for the player
    const delay = waited + mine.player.push(samples, mine.rate);
    if (!mine.pieces.length) showFirst(arrived - mine.began, delay, info);
    mine.pieces.push(samples);
    mine.samples += samples.length;
    wave.push(samples, mine.rate);
    count(samples);
    full = mine.samples >= most;
    if (full) break; // ends the request, and the server stops
  }
  find("made").textContent = `${seconds(mine.player.seconds)} in ${seconds((performance.now() - mine.began) / 1000)}`;
  mine.note = full ? CUT : FINISH[info.finish_reason];
}

async function begin(mine, rate) {
  mine.rate = rate;
  rates.set(mine.model, rate);
  await mine.player.setRate(rate);
}

// What is said, and how it is read.
function textFields() {
  return {
    input: find("text").value,
    language: find("language").value.trim() || "Auto",
    ...(find("script").checked ? { input_type: "script" } : {}),
    ...(find("numbers").checked ? { normalize: "on" } : {}),
  };
}

function fields({ voice, model }) {
  const seed = find("seed").value.trim();
  const instructions = find("instructions-field").hidden ? "" : find("instructions").value.trim();
  const options = chosenOptions();
  return {
    ...textFields(),
    ...(voice ? { voice } : {}),
    ...(voice && chosenStyle() ? { style: chosenStyle() } : {}),
    ...(instructions ? { instructions } : {}),
    allow_partial: true, // the page says so, see FINISH
    // The page draws the seed, because a seed of the server may be too large for an exact number in JavaScript.
    seed: seed ? Number(seed) : crypto.getRandomValues(new Uint32Array(1))[0],
    ...(model ? { model } : {}),
    ...(Object.keys(options).length ? { options } : {}),
  };
}

// Moves the playhead until the end of the speech.
function follow(mine) {
  if (running !== mine) return;
  const { player, end } = mine;
  wave.position = player.position;
  wave.draw();
  spoken.light(player.position);
  if (end && player.finished) {
    running = null;
    showEnd(mine);
    player.close();
    offer(mine);
    return;
  }
  const heard = `${seconds(player.position)} of ${seconds(player.seconds)}`;
  if (player.seconds) show(end ? "playing" : "speaking", "Speaking", end ? heard : `${heard}, more is coming`);
  requestAnimationFrame(() => follow(mine));
}

function showEnd({ player, end, note }) {
  const length = seconds(player.seconds);
  if (end === "failed") {
    show("failed", player.seconds ? `Broke off after ${length}` : "Nothing was spoken");
    return;
  }
  const gaps = player.gaps ? `${player.gaps} ${player.gaps === 1 ? "gap" : "gaps"}, where audio arrived too late` : "";
  show("done", [`${length} spoken`, note, gaps].filter(Boolean).join(", "));
}

function reset() {
  wave.clear();
  Object.assign(find("speech").dataset, { samples: "0", peak: "0" });
  finished = null;
  const link = find("download");
  if (link.href) URL.revokeObjectURL(link.href);
  link.removeAttribute("href");
  find("finished").hidden = true;
  find("timings").hidden = true;
  for (const id of ["first-audio", "cache", "mode", "made", "used-seed"]) find(id).textContent = "–";
}

// Screen readers announce `text`, but not `time`.
function show(state, text, time = "") {
  find("speech").dataset.state = state;
  if (find("speech-state").textContent !== text) find("speech-state").textContent = text;
  find("speech-time").textContent = time;
  find("stop-speech").disabled = !running;
}

function count(samples) {
  const { dataset } = find("speech");
  dataset.samples = Number(dataset.samples) + samples.length;
  dataset.peak = samples.reduce((peak, sample) => Math.max(peak, Math.abs(sample)), Number(dataset.peak));
}

// `elapsed` milliseconds from the click to the first audio's arrival, and `delay` seconds until it sounds.
function showFirst(elapsed, delay, info) {
  const total = elapsed + 1000 * delay;
  find("first-audio").textContent = milliseconds(total);
  const known = STAGES.reduce((sum, [, of]) => sum + (of(info) || 0), 0);
  const rest = [["Gateway and network", () => Math.max(0, elapsed - known)], ["The browser's sound", () => 1000 * delay]];
  const spent = [...STAGES, ...rest].map(([name, of], index) => ({ name, ms: of(info), stage: index + 1 }));
  const shown = spent.filter(({ ms }) => ms !== undefined).map((each) => ({ ...each, ms: Math.max(0, each.ms || 0) }));
  const parts = shown.map(({ name, ms, stage }) => {
    const part = element("span", { title: name });
    part.dataset.stage = stage;
    part.style.flexGrow = ms;
    return part;
  });
  const lines = shown.map(({ name, ms, stage }) => {
    const line = element("li", {}, name, element("b", { textContent: milliseconds(ms) }));
    line.dataset.stage = stage;
    return line;
  });
  find("stage-bar").replaceChildren(...parts);
  find("stages").replaceChildren(...lines);
  find("timings").hidden = false;
}

function showInfo(info) {
  find("cache").textContent = CACHE[info.cache] ?? info.cache ?? "–";
  find("mode").textContent = MODE[info.mode] ?? info.mode ?? "–";
  find("used-seed").textContent = info.seed ?? "–";
}

// What came of the speech can be heard again and saved.
function offer(mine) {
  if (!mine.pieces.length) return;
  finished = encodeWav(join(mine.pieces), mine.rate);
  const link = find("download");
  link.href = URL.createObjectURL(finished);
  link.download = `${mine.voice ?? "speech"}.wav`;
  find("finished").hidden = false;
}

function replay() {
  const follow = (position) => {
    wave.position = position ?? wave.seconds;
    wave.draw();
    spoken.light(wave.position);
  };
  listen("speech", () => finished, follow).catch((error) => placeError(find("speak"), error));
}

const seconds = (value) => `${value.toFixed(1)} s`;
const milliseconds = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)} ms`;
