// Calls a gateway by Cartesia's client; see calls.cjs.
const fs = require("fs");
const { Cartesia, NotFoundError } = require("@cartesia/cartesia-js");
const { run, sizeOf } = require("./calls.cjs");

run(async ({ url, clip, text }) => {
  const client = new Cartesia({ baseURL: url, apiKey: "unused" });
  const voice = await client.voices.clone({ clip: fs.createReadStream(clip), name: "Cass", language: "en" });
  const form = { encoding: "pcm_s16le", sample_rate: 24000 };
  const speech = { model_id: "sonic-3", transcript: text, voice: { mode: "id", id: voice.id } };
  const wav = await client.tts.generate({ ...speech, output_format: { container: "wav", ...form } });
  const raw = { ...speech, output_format: { container: "raw", ...form } };
  const pieces = [];
  for await (const piece of (await client.tts.generate(raw)).body) pieces.push(piece);
  const kinds = [];
  for await (const event of await client.tts.generateSSE(raw)) kinds.push(event.type);
  const listed = [];
  for await (const each of client.voices.list({ limit: 1 })) listed.push(each.id);
  const error = await client.tts.generate({ ...raw, voice: { mode: "id", id: "Nobody" } }).catch((error) => error);
  await client.voices.delete(voice.id);
  return {
    wav: Buffer.from(await wav.arrayBuffer()).toString("base64"),
    streamed: sizeOf(pieces),
    events: [kinds[0], kinds.at(-1)],
    listed: listed.includes(voice.id),
    status: (await client.getStatus()).ok,
    error: [error instanceof NotFoundError, error.status, error.message],
  };
});
