// Calls a gateway by Deepgram's client; see calls.cjs.
const { DeepgramClient } = require("@deepgram/sdk");
const { run, sizeOf } = require("./calls.cjs");

run(async ({ url, text }) => {
  const client = new DeepgramClient({ apiKey: "a".repeat(24), baseUrl: url });
  const { tts } = await client.manage.v1.models.list();
  const speech = { text, model: tts[0].name, encoding: "linear16", sample_rate: 24000 };
  const whole = await client.speak.v1.audio.generate({ ...speech, container: "wav" });
  const streamed = await client.speak.v1.audio.generate({ ...speech, container: "none" });
  const pieces = [];
  for await (const piece of streamed.stream()) pieces.push(piece);
  const error = await client.speak.v1.audio.generate({ ...speech, model: "Nobody" }).catch((error) => error);

  const socketUrl = url.replace("http", "ws");
  const environment = { base: url, production: socketUrl, agent: socketUrl, agentRest: url };
  const sockets = new DeepgramClient({ apiKey: "unused", environment });
  const connection = await sockets.speak.v1.connect({ model: tts[0].name, encoding: "linear16", sample_rate: 24000 });
  const spoken = [];
  const flushed = new Promise((resolve, reject) => {
    connection.on("message", (message) => {
      if (message.type === "Flushed") resolve();
      else if (!message.type) spoken.push(message);
    });
    connection.on("error", reject);
  });
  connection.connect();
  await connection.waitForOpen();
  connection.sendText({ type: "Speak", text });
  connection.sendFlush({ type: "Flush" });
  await flushed;
  connection.sendClose({ type: "Close" });
  return {
    wav: Buffer.from(await whole.arrayBuffer()).toString("base64"),
    streamed: sizeOf(pieces),
    listed: tts.length > 0,
    socket: spoken.length > 0,
    error: [error.statusCode === 404, error.statusCode, JSON.stringify(error.body)],
  };
});
