// What the scripts beside this one share: each makes the main calls of a vendor's client, and prints what it got as JSON.
//
//     node VENDOR.cjs URL CLIP TEXT
//
// URL is the gateway's, CLIP a file of a voice.

/** The bytes of pieces of audio. */
exports.sizeOf = (pieces) => pieces.reduce((size, piece) => size + piece.length, 0);

/** Prints what the calls return; an error of theirs ends the program. */
exports.run = async (calls) => {
  const [url, clip, text] = process.argv.slice(2);
  try {
    process.stdout.write(JSON.stringify(await calls({ url, clip, text })) + "\n", () => process.exit(0));
  } catch (error) {
    console.error(error);
    process.exit(1);
  }
};
