"use strict";
// What the colour of a token says. A view is one trajectory on the page: {row, details, box}.
const Colours = (() => {
  const MODES = {
    author: "author", probability: "probability", weight: "weight", pull: "advantage × weight", mismatch: "mismatch",
  };
  // Viridis for amounts, PuOr for signed values: both are told apart with every common colour blindness.
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const PUOR = [[179, 88, 6], [241, 163, 64], [247, 247, 247], [153, 142, 195], [84, 39, 136]];
  const product = (one, other) => one === null || other === null ? null : one * other;
  // The number of a view's n-th policy token, or null where it has none.
  const VALUES = {
    probability: (view, n) => view.details.logprobs[n] === null ? null : Math.exp(view.details.logprobs[n]),
    weight: (view, n) => view.details.weights[n],
    pull: (view, n) => product(view.row.advantage, view.details.weights[n]),
    mismatch: (view, n) => view.details.mismatch[n],
  };

  // One scale for all views, so that trajectories beside each other can be compared; null in the author mode.
  function scale(mode, views) {
    const value = VALUES[mode];
    if (!value) return null;
    const values = views.flatMap((view) => view.details.logprobs.map((_, n) => value(view, n))).filter((v) => v !== null);
    const made = (low, high, stops) => ({ value, low, high, stops, empty: !values.length });
    if (mode === "probability") return made(0, 1, VIRIDIS);
    if (mode === "weight") {
      const low = Math.min(...values);
      return made(low, Math.max(low + 1e-9, ...values), VIRIDIS);
    }
    const most = Math.max(1e-9, ...values.map(Math.abs));
    return made(-most, most, PUOR);
  }

  function rgb({ low, high, stops }, value) {
    const place = Math.min(0.9999, Math.max(0, (value - low) / (high - low))) * (stops.length - 1);
    const before = Math.floor(place);
    return stops[before].map((part, n) => Math.round(part + (stops[before + 1][n] - part) * (place - before)));
  }
  const readableOn = ([red, green, blue]) => 0.299 * red + 0.587 * green + 0.114 * blue > 140 ? "#000" : "#fff";
  const number = (value, digits = 3) => value === null || value === undefined ? "–" : String(+value.toFixed(digits));

  return { MODES, scale, rgb, readableOn, number };
})();
