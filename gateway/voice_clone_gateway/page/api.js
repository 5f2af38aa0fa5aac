// The gateway's HTTP API; its paths are relative to the page's. Each failure is thrown as an Error with a message for the
// user; `status` is that of HTTP, 0 without an answer; `code` and `param` are the gateway's.

const KEY = "voice-clone-key"; // in sessionStorage: forgotten with the tab
const NOT_WHOLE = "What you heard is not the whole text.";

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(message, status = 0, { code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The gateway cannot be reached. Is it running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const message = body?.error?.message ?? `the gateway answered with status ${response.status}`;
  throw new ApiError(sentence(message), response.status, body?.error ?? {});
}

// The server begins its messages with a small letter and ends them without a stop.
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

const voicePath = (name) => `v1/audio/voices/${encodeURIComponent(name)}`;

export const health = async () => (await request("health")).json();
export const listModels = async () => (await (await request("v1/models")).json()).data;
// { uploaded_voices, default_voice, voice_aliases }
export const listVoices = async () => (await request("v1/audio/voices")).json();
export const clipOf = async (name) => (await request(`${voicePath(name)}/audio`)).blob();
export const describeVoice = async (name) => (await request(voicePath(name))).json();
export const deleteVoice = (name) => request(voicePath(name), { method: "DELETE" });
export const deleteStyle = (name, style) =>
  request(`${voicePath(name)}/styles/${encodeURIComponent(style)}`, { method: "DELETE" });
export const prepareVoice = (name) => request(`${voicePath(name)}/cache`, { method: "POST" });

// `design`: fields that say how a designed voice was made.
export async function uploadVoice({ name, consent, transcript, audio, fileName, style, design = {}, replace = false }) {
  const form = new FormData();
  form.set("name", name);
  form.set("consent", consent);
  if (transcript) form.set("reference_text", transcript);
  form.set("audio_sample", audio, fileName);
  for (const [field, value] of Object.entries(design)) form.set(field, value);
  if (style) form.set("style", style);
  if (replace) form.set("replace", "true");
  return (await (await request("v1/audio/voices", { method: "POST", body: form })).json()).voice;
}

// The words spoken in a clip. Nothing of it is kept.
export async function transcribe(audio, fileName) {
  const form = new FormData();
  form.set("file", audio, fileName);
  return (await (await request("v1/audio/transcriptions", { method: "POST", body: form })).json()).text;
}

// { model, description, input, candidates: [{ seed, audio_data, error }] }
export async function designVoices(description, input) {
  const headers = { "Content-Type": "application/json" };
  const body = JSON.stringify({ description, input });
  return (await request("v1/audio/voices/design", { method: "POST", headers, body })).json();
}

// { items, marks, warnings }: what would be spoken
export async function planText(fields) {
  const headers = { "Content-Type": "application/json" };
  return (await request("v1/audio/text", { method: "POST", headers, body: JSON.stringify(fields) })).json();
}

export const wavOf = (base64) => new Blob([bytesOf(base64)], { type: "audio/wav" });

// Speaks, and yields events as they arrive:
//   { type: "begun", info }                     the server's first info on the speech, with its first audio
//   { type: "audio", samples, sampleRate, words }  Float32Array in [-1, 1]
//   { type: "done", info, usage, words }
// `words` are those whose times are known since the event before.
export async function* speak(fields, signal) {
  const response = await request("v1/audio/speech", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...fields, response_format: "pcm", stream_format: "sse", timestamp_granularities: ["word"] }),
  });
  yield { type: "begun", info: JSON.parse(response.headers.get("X-Speech-Info") ?? "{}") };
  let done = false;
  for await (const event of events(response.body)) {
    if (event.type === "speech.audio.delta") {
      yield { type: "audio", samples: decode(event.audio), sampleRate: event.sample_rate, words: event.words };
    } else if (event.type === "speech.audio.done") {
      done = true;
      yield { type: "done", info: event.info ?? {}, usage: event.usage ?? {}, words: event.words };
    } else if (event.type === "speech.audio.error") {
      throw new ApiError(`${sentence(event.error.message)} ${NOT_WHOLE}`, response.status, event.error);
    }
  }
  if (!done) throw new ApiError(`The connection broke off. ${NOT_WHOLE}`);
}

// The JSON of each server-sent event.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      text += value;
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const data = text.slice(0, end).split("\n").filter((line) => line.startsWith("data:"));
        if (data.length) yield JSON.parse(data.map((line) => line.slice(5)).join("\n"));
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError(`The connection broke off. ${NOT_WHOLE}`);
  } finally {
    reader.cancel().catch(() => {});
  }
}

const bytesOf = (base64) => Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));

// Base64 of signed 16-bit little-endian PCM as samples in [-1, 1].
function decode(base64) {
  const bytes = bytesOf(base64);
  const view = new DataView(bytes.buffer);
  const samples = new Float32Array(bytes.length >> 1);
  for (let index = 0; index < samples.length; index++) samples[index] = view.getInt16(2 * index, true) / 32767; // its scale
  return samples;
}
