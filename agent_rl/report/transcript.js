"use strict";
// One trajectory as turns of coloured tokens. What a model wrote reaches the page as text nodes only.
const element = (tag, text, css) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (css) made.className = css;
  return made;
};

const Transcript = (() => {
  const AUTHORS = ["prompt", "policy", "tool"];
  const { number } = Colours;

  function tokens(details) {
    const box = element("div", undefined, "tokens");
    let block = null, policy = 0, turns = 0, last = null;
    details.pieces.forEach((piece, place) => {
      const author = AUTHORS[details.authors[place]], trained = details.trained[place] === "1";
      if (author !== last) {
        block = element("div", undefined, `block of-${author}`);
        block.append(element("div", author === "policy" ? `policy, turn ${++turns}` : author, "who"));
        box.append(block);
        last = author;
      }
      const span = element("span", piece, trained ? `${author} trained` : author);
      span.dataset.place = place;
      if (author === "policy") span.dataset.policy = policy++;
      block.append(span);
    });
    return box;
  }

  function paint(views, mode, legend) {
    const scale = Colours.scale(mode, views);
    for (const view of views) {
      for (const span of view.box.querySelectorAll("span")) {
        const policy = span.dataset.policy;
        span.style.backgroundColor = span.style.color = "";
        if (!scale) continue;
        const value = policy === undefined ? null : scale.value(view, Number(policy));
        const rgb = value === null ? null : Colours.rgb(scale, value);
        span.style.backgroundColor = rgb ? `rgb(${rgb})` : "transparent";
        if (rgb) span.style.color = Colours.readableOn(rgb);
      }
    }
    legend.replaceChildren();
    if (!scale) {
      for (const [css, text] of [["prompt", "prompt"], ["policy trained", "policy, trained on"], ["policy", "policy, not trained on"], ["tool", "tool"]]) {
        legend.append(element("span", text, css), " ");
      }
    } else if (scale.empty) {
      legend.append(`No token has a value of ${Colours.MODES[mode]}.`);
    } else {
      const bar = element("i", undefined, "bar");
      bar.style.background = `linear-gradient(to right, ${scale.stops.map((rgb) => `rgb(${rgb})`).join(",")})`;
      legend.append(number(scale.low), " ", bar, " ", number(scale.high));
    }
  }

  // All that is known of the token in ``span``, in one line.
  function hint({ row, details }, span) {
    const place = Number(span.dataset.place), policy = Number(span.dataset.policy);
    const author = AUTHORS[details.authors[place]];
    if (author !== "policy") return `${author} · never trained on`;
    const logprob = details.logprobs[policy], weight = details.weights[policy];
    const parts = [author, logprob === null ? "log-probability unknown" : `p ${number(Math.exp(logprob), 4)} · log-probability ${number(logprob, 4)}`];
    if (weight !== null) parts.push(`weight ${number(weight, 4)}`);
    if (weight !== null && row.advantage !== null) parts.push(`advantage × weight ${number(weight * row.advantage, 4)}`);
    if (details.mismatch[policy] !== null) parts.push(`trainer - sampler ${number(details.mismatch[policy], 5)}`);
    parts.push(details.trained[place] === "1" ? "trained on" : details.mask[place] === "1" ? "in the mask, but in no update" : "not trained on");
    return parts.join(" · ");
  }

  function facts(details, row) {
    const list = element("dl");
    const fact = (name, value) => {
      if (value === null || value === undefined || value === "") return;
      const pair = element("div");
      pair.append(element("dt", name), element("dd", typeof value === "number" ? number(value) : value));
      list.append(pair);
    };
    fact("gold", details.gold.join(" | "));
    fact("answer", details.answer ?? "none");
    fact("reward", row.reward);
    fact("advantage", row.advantage);
    fact("stopped by", row.stop);
    fact("turns", details.turns);
    for (const [name, value] of Object.entries(details.parts)) fact(name, value);
    for (const [name, value] of Object.entries(details.counters)) fact(name.replaceAll("_", " "), value);
    for (const [name, value] of Object.entries(details.times)) fact(name.replace(/_s$/, " s"), value);
    fact("error", details.error);
    return list;
  }

  // What was and was not trained on, in a sentence.
  function verdict(details) {
    const trained = [...details.trained].filter((digit) => digit === "1").length;
    const strange = details.pieces.filter((_, place) => details.trained[place] === "1" && details.authors[place] !== "1").length;
    const text = details.status === "trained"
      ? `Trained on: ${trained} of ${details.pieces.length} tokens, ${strange
        ? `${strange} of them NOT written by the policy: this run trains on its own input.` : "all of them the policy's."}`
      : `${details.status}. None of its ${details.pieces.length} tokens is in an update.`;
    return element("p", text, details.status === "trained" ? "verdict" : "verdict untrained");
  }

  return { tokens, paint, hint, facts, verdict };
})();
