// The form of a new voice: record or choose a clip, view it, listen to it, register it.

import { transcribe } from "./api.js";
import { busy, find, showError } from "./dom.js";
import { clearErrors, fieldsAreValid, placeError, watchFields } from "./fields.js";
import { listen, stopListening } from "./listening.js";
import { Recorder } from "./recorder.js";
import { registerVoice, showRegistered } from "./voices.js";
import { encodeWav, join } from "./wav.js";
import { Waveform } from "./waveform.js";

const SHORTEST = 1; // seconds
const LONGEST = 30;
const READ_BY_SERVER = /\.(wav|flac|ogg|oga|mp3)$/i; // other formats are decoded here and sent as WAV

const hint = find("clip-hint").textContent;
const wave = new Waveform(find("clip-wave"), 1);
let clip = null; // { audio: Blob, fileName, seconds }
let starting = false; // whether the browser asks for the microphone, or opens it
let recording = null; // { recorder, pieces, seconds }

export function setUpNewVoice() {
  find("record").addEventListener("click", () => (recording ? finishRecording() : beginRecording()));
  find("choose").addEventListener("click", () => find("clip").click());
  find("clip").addEventListener("change", (event) => takeFile(event.target.files[0]));
  find("clip-play").addEventListener("click", hear);
  find("transcribe").addEventListener("click", writeDown);
  find("register").addEventListener("submit", register);
  watchFields(find("register"));
  const drop = find("drop");
  for (const type of ["dragenter", "dragover"]) {
    drop.addEventListener(type, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  for (const type of ["dragleave", "drop"]) drop.addEventListener(type, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    takeFile(event.dataTransfer.files[0]);
  });
}

async function beginRecording() {
  if (starting) return; // a second click: the first recorder would never stop
  starting = true;
  showError("sample", null);
  setClip(null);
  const pieces = [];
  try {
    const recorder = await Recorder.start((samples) => {
      if (!recording) return;
      pieces.push(samples);
      recording.seconds += samples.length / recorder.sampleRate;
      wave.push(samples, recorder.sampleRate);
      if (recording.seconds >= LONGEST) finishRecording();
    });
    recording = { recorder, pieces, seconds: 0 };
  } catch (error) {
    showError("sample", error);
    return;
  } finally {
    starting = false;
  }
  wave.clear();
  find("preview").hidden = false;
  find("clip-play").hidden = true;
  showRecording(true);
  follow(recording);
}

// Shows how far a recording is, with each frame of the screen: its pieces come 375 times a second.
function follow(mine) {
  if (recording !== mine) return;
  wave.position = wave.seconds;
  wave.draw();
  find("clip-facts").textContent = `${mine.seconds.toFixed(1)} s`;
  requestAnimationFrame(() => follow(mine));
}

function finishRecording() {
  const { recorder, pieces, seconds } = recording;
  recording = null;
  recorder.stop();
  wave.position = wave.seconds;
  showRecording(false);
  const samples = join(pieces);
  if (seconds < SHORTEST) {
    setClip(null);
    showError("sample", new Error("That was less than a second; record at least a sentence."));
    return;
  }
  const kept = samples.subarray(0, LONGEST * recorder.sampleRate);
  setClip({ audio: encodeWav(kept, recorder.sampleRate), fileName: "recording.wav", seconds: kept.length / recorder.sampleRate });
}

function showRecording(on) {
  const button = find("record");
  button.setAttribute("aria-pressed", on);
  button.setAttribute("aria-label", on ? "Stop recording" : "Record");
  button.querySelector("use").setAttribute("href", on ? "#stop" : "#mic");
  find("clip-hint").textContent = on ? "Speak now. The button ends the recording." : hint;
  find("choose").disabled = on;
  find("register-button").disabled = on;
}

async function takeFile(file) {
  if (!file || recording) return;
  find("clip").value = ""; // so that the same file can be chosen again
  showError("sample", null);
  setClip(null);
  let decoded;
  try {
    decoded = await decode(file);
  } catch {
    showError("sample", new Error(`${file.name} holds no audio that this browser can read.`));
    return;
  }
  const { samples, sampleRate } = decoded;
  const seconds = samples.length / sampleRate;
  if (seconds < SHORTEST) {
    showError("sample", new Error(`${file.name} is shorter than a second.`));
    return;
  }
  const kept = samples.subarray(0, LONGEST * sampleRate);
  wave.clear();
  wave.push(kept, sampleRate);
  wave.position = wave.seconds;
  const asItIs = seconds <= LONGEST && READ_BY_SERVER.test(file.name);
  setClip({
    audio: asItIs ? file : encodeWav(kept, sampleRate),
    fileName: asItIs ? file.name : "clip.wav",
    seconds: kept.length / sampleRate,
    note: seconds > LONGEST ? `the first ${LONGEST} s of ${file.name}` : file.name,
  });
}

async function decode(file) {
  const context = new OfflineAudioContext(1, 1, 48000);
  const buffer = await context.decodeAudioData(await file.arrayBuffer());
  const samples = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel++) {
    buffer.getChannelData(channel).forEach((sample, index) => (samples[index] += sample / buffer.numberOfChannels));
  }
  return { samples, sampleRate: buffer.sampleRate };
}

function setClip(value) {
  stopListening();
  clip = value;
  find("preview").hidden = !clip;
  find("clip-play").hidden = !clip;
  find("clip-hint").hidden = !!clip;
  if (!clip) return;
  find("clip-facts").textContent = `${clip.seconds.toFixed(1)} s${clip.note ? `, ${clip.note}` : ""}`;
  wave.draw();
}

function hear() {
  const follow = (position) => {
    wave.position = position ?? wave.seconds;
    wave.draw();
  };
  listen("clip", () => clip.audio, follow).catch((error) => showError("sample", error));
}

// Fills in the words that the server hears in the clip, for the user to correct.
async function writeDown() {
  showError("transcript", null);
  if (!clip) return showError("sample", new Error("There is no clip yet: record one, or choose a file."));
  const heard = clip;
  busy("transcribe", "Listening");
  try {
    const text = await transcribe(heard.audio, heard.fileName);
    if (clip !== heard) return; // it is of another clip
    if (!text) throw new Error("No words were recognised in the clip.");
    find("transcript").value = text;
    find("transcript").focus();
  } catch (error) {
    if (clip === heard) showError("transcript", error);
  } finally {
    busy("transcribe", "Write them down", false);
  }
}

async function register(event) {
  event.preventDefault();
  const form = find("register");
  clearErrors(form);
  const valid = fieldsAreValid(form);
  if (!clip) showError("sample", new Error("There is no clip yet: record one, or choose a file."));
  if (!valid || !clip) return;
  busy("register-button", "Registering");
  try {
    const voice = await registerVoice({
      name: find("name").value,
      consent: find("consent").value,
      transcript: find("transcript").value.trim(),
      style: find("new-style").value.trim(),
      audio: clip.audio,
      fileName: clip.fileName,
    });
    if (!voice) return;
    form.reset();
    setClip(null);
    find("new-voice").open = false;
    await showRegistered(voice);
  } catch (error) {
    placeError(form, error);
  } finally {
    busy("register-button", "Register", false);
  }
}
