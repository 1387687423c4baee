"use strict";
// The large parts of the page are gzipped: each is unpacked when it is first needed, so that the page opens at once.
async function unpack(script) {
  const text = atob(script.textContent), bytes = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) bytes[at] = text.charCodeAt(at); // ten times as fast as Uint8Array.from
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}
const canUnpack = typeof DecompressionStream !== "undefined";
const TOO_OLD = "This browser cannot unpack this page (no DecompressionStream): use one from 2023 or later.";
