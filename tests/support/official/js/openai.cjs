// Calls a gateway by OpenAI's client; see calls.cjs.
const fs = require("fs");
const { OpenAI, NotFoundError } = require("openai");
const { run, sizeOf } = require("./calls.cjs");

run(async ({ url, clip, text }) => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  const voice = await client.audio.voices.create({
    name: "Orla",
    audio_sample: fs.createReadStream(clip),
    consent: "by mail",
  });
  const speech = { model: "tts-1", voice: { id: voice.id }, input: text };
  const whole = await client.audio.speech.create({ ...speech, response_format: "wav" });
  const streamed = await client.audio.speech.create({ ...speech, response_format: "pcm" });
  const pieces = [];
  for await (const piece of streamed.body) pieces.push(piece);
  const events = await client.audio.speech.create({ ...speech, stream_format: "sse" });
  const models = (await client.models.list()).data.map((model) => model.id);
  const error = await client.audio.speech.create({ ...speech, voice: "Nobody" }).catch((error) => error);
  const deleted = await client.audio.voices.delete(voice.id);
  return {
    wav: Buffer.from(await whole.arrayBuffer()).toString("base64"),
    streamed: sizeOf(pieces),
    done: (await events.text()).includes('"speech.audio.done"'),
    listed: models.includes("tts-1"),
    error: [error instanceof NotFoundError, error.status, error.message],
    deleted: deleted.deleted,
  };
});
