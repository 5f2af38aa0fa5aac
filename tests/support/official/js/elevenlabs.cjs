// Calls a gateway by ElevenLabs' client; see calls.cjs.
const fs = require("fs");
const { ElevenLabsClient } = require("@elevenlabs/elevenlabs-js");
const { run, sizeOf } = require("./calls.cjs");

async function read(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

run(async ({ url, clip, text }) => {
  const client = new ElevenLabsClient({ baseUrl: url, apiKey: "unused" });
  const { voiceId } = await client.voices.ivc.create({ name: "Elin", files: [fs.createReadStream(clip)] });
  const speech = { text, modelId: "eleven_v3", voiceSettings: { stability: 0.5, speed: 1 } };
  const raw = { ...speech, outputFormat: "pcm_24000" };
  const wav = await read(await client.textToSpeech.convert(voiceId, { ...speech, outputFormat: "wav_24000" }));
  const streamed = await read(await client.textToSpeech.stream(voiceId, raw));
  const timed = await client.textToSpeech.convertWithTimestamps(voiceId, raw);
  const lines = [];
  for await (const line of await client.textToSpeech.streamWithTimestamps(voiceId, raw)) lines.push(line);
  const inputs = [{ text, voiceId }];
  const dialogue = await read(await client.textToDialogue.stream({ inputs, outputFormat: "pcm_24000" }));
  const listed = await client.voices.getAll();
  const found = await client.voices.search({ search: "elin" });
  await client.user.subscription.get();
  const error = await client.textToSpeech.convert("Nobody", speech).catch((error) => error);
  return {
    wav: wav.toString("base64"),
    streamed: streamed.length,
    timed: timed.audioBase64.length > 0 && sizeOf(lines.map((line) => line.audioBase64)) > 0,
    dialogue: dialogue.length > 0,
    listed: listed.voices.some((voice) => voice.voiceId === voiceId) && found.voices.length === 1,
    voice: (await client.voices.get(voiceId)).name,
    models: (await client.models.list()).length > 0,
    error: [error.statusCode === 404, error.statusCode, error.body.detail.message],
    deleted: (await client.voices.delete(voiceId)).status,
  };
});
