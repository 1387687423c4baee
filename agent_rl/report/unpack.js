"use strict";
// The large parts of the page are gzipped: each is unpacked when it is first needed, so that the page opens at once.
async function unpack(script) {
  const bytes = Uint8Array.from(atob(script.textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
const canUnpack = typeof DecompressionStream !== "undefined";
const TOO_OLD = "This browser cannot unpack this page (no DecompressionStream): use one from 2023 or later.";
