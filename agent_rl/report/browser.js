"use strict";
// The trajectory browser. What a model wrote reaches the page as text nodes only.
(async () => {
  const list = document.getElementById("list");
  if (!list) return;
  const shown = document.getElementById("shown"), found = document.getElementById("found");
  const hint = document.getElementById("hint"), form = document.getElementById("filter");
  const names = JSON.parse(document.getElementById("names").textContent);
  const AUTHORS = ["prompt", "policy", "tool"];
  const MODES = {
    author: "author", probability: "probability", weight: "weight", pull: "advantage × weight", mismatch: "mismatch",
  };
  const LIST_MOST = 400;
  // Viridis for amounts, PuOr for signed values: both are told apart with every common colour blindness.
  const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const PUOR = [[179, 88, 6], [241, 163, 64], [247, 247, 247], [153, 142, 195], [84, 39, 136]];

  const element = (tag, text, css) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (css) made.className = css;
    return made;
  };
  async function unpack(script) {
    const bytes = Uint8Array.from(atob(script.textContent), (character) => character.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  }
  if (typeof DecompressionStream === "undefined") {
    found.textContent = "This browser cannot unpack the trajectories (no DecompressionStream): use one from 2023 or later.";
    return;
  }

  const chunks = names.map((_, run) => [...document.querySelectorAll(`script.chunk[data-run="${run}"]`)]);
  const loaded = new Map();
  function chunk(run, number) {
    const key = `${run}/${number}`;
    if (!loaded.has(key)) loaded.set(key, unpack(chunks[run][number]));
    return loaded.get(key);
  }
  const detailsOf = async (row) => (await chunk(row.run, row.chunk))[row.at];
  const all = [];
  for (const script of document.querySelectorAll("script.index")) {
    if (script.textContent) for (const row of await unpack(script)) all.push({ ...row, run: Number(script.dataset.run) });
  }

  let rows = [], open = null, mode = "author", picked = null;
  const number = (value, digits = 3) => value === null || value === undefined ? "–" : String(+value.toFixed(digits));

  // ---------------------------------------------------------------- filter and list
  for (const [name, key] of [["reward", "reward"], ["stop", "stop"]]) {
    const values = [...new Set(all.map((row) => row[key]))].sort((a, b) => (a > b) - (a < b));
    const few = values.length <= 40 ? values : [];
    for (const value of few) form.elements[name].append(new Option(value === null ? "none" : value, JSON.stringify(value)));
    if (name === "reward" && !few.length) {
      for (const sign of ["> 0", "= 0", "< 0"]) form.elements.reward.append(new Option(sign, sign));
    }
  }
  function rewardFits(value, wanted) {
    if (!wanted) return true;
    if (/^[><=]/.test(wanted)) {
      return value !== null && (wanted[0] === ">" ? value > 0 : wanted[0] === "<" ? value < 0 : value === 0);
    }
    return value === JSON.parse(wanted);
  }
  let turn = 0;
  async function applyFilter() {
    const mine = ++turn;
    const get = (name) => form.elements[name]?.value ?? "";
    const run = Number(get("run") || 0), text = get("text").toLowerCase(), item = get("item").toLowerCase();
    let chosen = all.filter((row) => row.run === run
      && (get("from") === "" || row.step >= Number(get("from"))) && (get("to") === "" || row.step <= Number(get("to")))
      && rewardFits(row.reward, get("reward")) && (!get("stop") || row.stop === JSON.parse(get("stop")))
      && (!item || row.item.toLowerCase().includes(item)));
    if (text) {
      found.textContent = "Searching…";
      const kept = [];
      for (const row of chosen) {
        const details = await detailsOf(row);
        if (mine !== turn) return; // a newer filter took over
        details.lower ??= details.pieces.join("").toLowerCase();
        if (details.lower.includes(text)) kept.push(row);
      }
      chosen = kept;
    }
    const order = get("order");
    if (order === "high" || order === "low") {
      const worst = order === "high" ? -Infinity : Infinity, sign = order === "high" ? -1 : 1;
      const key = (row) => row.reward ?? worst;
      chosen = chosen.map((row, place) => [row, place])
        .sort((a, b) => sign * (key(a[0]) - key(b[0])) || a[1] - b[1]).map(([row]) => row);
    }
    rows = chosen;
    drawList();
  }
  function drawList() {
    const at = Math.max(0, rows.indexOf(open));
    const first = Math.max(0, Math.min(at - LIST_MOST / 2, rows.length - LIST_MOST));
    list.replaceChildren(...rows.slice(first, first + LIST_MOST).map((row) => {
      const entry = element("div", undefined, "entry");
      entry.setAttribute("role", "option");
      entry.setAttribute("aria-selected", String(row === open));
      entry.append(
        element("b", `step ${row.step} · ${number(row.reward)}`), element("span", row.trained ? "" : " not trained", "tag"),
        element("div", row.question, "question"), element("div", `${row.answer ?? "no answer"} · ${row.stop}`, "note"));
      entry.addEventListener("click", () => show(row));
      return entry;
    }));
    const few = rows.length > LIST_MOST ? `; the list shows ${LIST_MOST} around the open one` : "";
    const inRun = all.filter((row) => row.run === Number(form.elements.run?.value ?? 0)).length;
    found.textContent = `${rows.length} of ${inRun} trajectories in this page${few}.`;
    list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }

  // ---------------------------------------------------------------- one trajectory
  function mix(stops, share) {
    const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1), low = Math.floor(place);
    return stops[low].map((value, part) => Math.round(value + (stops[low + 1][part] - value) * (place - low)));
  }
  // For each mode: the number of a policy token, the ends of the scale, its colours.
  function scale(details, row) {
    const known = (values) => values.filter((value) => value !== null);
    const weights = known(details.weights), far = (values) => Math.max(1e-9, ...values.map(Math.abs));
    switch (mode) {
      case "probability":
        return { at: (n) => details.logprobs[n] === null ? null : Math.exp(details.logprobs[n]), low: 0, high: 1, stops: VIRIDIS };
      case "weight": {
        const low = Math.min(...weights), high = Math.max(...weights);
        return { at: (n) => details.weights[n], low, high: high > low ? high : low + 1e-9, stops: VIRIDIS };
      }
      case "pull": {
        const at = (n) => details.weights[n] === null || row.advantage === null ? null : row.advantage * details.weights[n];
        const most = far(weights.map((weight) => weight * (row.advantage ?? 0)));
        return { at, low: -most, high: most, stops: PUOR };
      }
      case "mismatch": {
        const most = far(known(details.mismatch));
        return { at: (n) => details.mismatch[n], low: -most, high: most, stops: PUOR };
      }
    }
    return null;
  }
  function tokenHint(details, row, place, policy) {
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
  function fill(details, row) {
    const coloured = scale(details, row);
    for (const span of shown.querySelectorAll(".tokens span")) {
      const policy = span.dataset.policy;
      span.style.backgroundColor = span.style.color = "";
      if (!coloured) continue;
      const value = policy === undefined ? null : coloured.at(Number(policy));
      if (value === null) {
        span.style.backgroundColor = "transparent";
        continue;
      }
      const rgb = mix(coloured.stops, (value - coloured.low) / (coloured.high - coloured.low));
      span.style.backgroundColor = `rgb(${rgb})`;
      span.style.color = 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2] > 140 ? "#000" : "#fff";
    }
    const legend = shown.querySelector(".legend");
    legend.replaceChildren();
    if (!coloured) {
      for (const [css, text] of [["prompt", "prompt"], ["policy trained", "policy, trained on"], ["policy", "policy, not trained on"], ["tool", "tool"]]) {
        legend.append(element("span", text, css), " ");
      }
      return;
    }
    const bar = element("i", undefined, "bar");
    bar.style.background = `linear-gradient(to right, ${coloured.stops.map((rgb) => `rgb(${rgb})`).join(",")})`;
    const none = Array.from(details.logprobs.keys()).every((n) => coloured.at(n) === null);
    legend.append(none ? `No token has a value of ${MODES[mode]}.` : number(coloured.low), " ");
    if (!none) legend.append(bar, " ", number(coloured.high));
  }
  function tokensOf(details) {
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
  const siblingsOf = (row) => all.filter((other) => other.run === row.run && other.step === row.step && other.group === row.group);
  async function show(row, focus = true) {
    open = row;
    const details = await detailsOf(row);
    if (open !== row) return; // another was opened meanwhile
    picked = null;
    hint.hidden = true;
    const facts = element("dl");
    const fact = (name, value) => {
      if (value === null || value === undefined || value === "") return;
      const pair = element("div");
      pair.append(element("dt", name), element("dd", typeof value === "number" ? number(value) : value));
      facts.append(pair);
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
    const count = (digits) => [...digits].filter((digit) => digit === "1").length;
    const strange = details.pieces.filter((_, place) => details.trained[place] === "1" && details.authors[place] !== "1").length;
    const verdict = element("p", details.status === "trained"
      ? `Trained on: ${count(details.trained)} of ${details.pieces.length} tokens, ${strange
        ? `${strange} of them NOT written by the policy: this run trains on its own input.` : "all of them the policy's."}`
      : `${details.status}. None of its ${details.pieces.length} tokens is in an update.`, "verdict");
    verdict.classList.toggle("untrained", details.status !== "trained");
    const colours = element("p", undefined, "controls");
    const select = element("select");
    select.id = "colours";
    for (const [value, text] of Object.entries(MODES)) select.append(new Option(text, value, false, value === mode));
    select.addEventListener("change", () => recolour(select.value));
    const label = element("label", "Colour by ");
    label.append(select);
    colours.append(label, element("span", undefined, "legend"));
    const siblings = element("div", undefined, "siblings");
    siblings.append(element("h4", "Its group"));
    for (const other of siblingsOf(row)) {
      const button = element("button", undefined, other === row ? "current" : "");
      button.type = "button";
      button.append(element("b", `${other.sample}: ${number(other.reward)}`), ` ${other.answer ?? "no answer"}`);
      button.title = `${other.stop}, advantage ${number(other.advantage)}`;
      button.addEventListener("click", () => show(other));
      siblings.append(button);
    }
    shown.replaceChildren(
      element("h3", details.question), element("p", `${names[row.run]} · step ${row.step} · ${row.item} · sample ${row.sample}`, "note"),
      facts, verdict, siblings, colours, tokensOf(details));
    fill(details, row);
    address();
    drawList();
    if (focus && !list.contains(document.activeElement)) list.focus({ preventScroll: true });
  }
  async function recolour(next) {
    mode = next;
    shown.querySelector("#colours").value = mode;
    fill(await detailsOf(open), open);
    address();
  }
  async function pick(span) {
    picked?.classList.remove("picked");
    picked = span === picked ? null : span;
    hint.hidden = picked === null;
    if (!picked) return;
    picked.classList.add("picked");
    picked.scrollIntoView({ block: "nearest" });
    const text = picked.textContent.length > 80 ? `${picked.textContent.slice(0, 80)}…` : picked.textContent;
    hint.textContent = `${JSON.stringify(text)} · ${tokenHint(await detailsOf(open), open, Number(picked.dataset.place), Number(picked.dataset.policy))}`;
  }

  // ---------------------------------------------------------------- address, pointer, keys
  function address() {
    const { run, step, group, sample } = open;
    const query = new URLSearchParams({ run: names[run], step, group, sample, colours: mode });
    history.replaceState(null, "", `#${query}`);
  }
  async function openAddress() {
    const query = new URLSearchParams(location.hash.slice(1));
    const wanted = all.find((row) => names[row.run] === query.get("run") && String(row.step) === query.get("step")
      && row.group === query.get("group") && String(row.sample) === query.get("sample"));
    if (query.get("step") && !wanted) found.textContent = "The trajectory of this address is not in this page.";
    if (!wanted) return false;
    if (query.get("colours") in MODES) mode = query.get("colours");
    if (form.elements.run) form.elements.run.value = wanted.run;
    open = wanted;
    await applyFilter();
    await show(wanted);
    document.getElementById("trajectories").scrollIntoView();
    return true;
  }
  shown.addEventListener("click", (event) => {
    const span = event.target.closest(".tokens span");
    if (span) pick(span);
  });
  shown.addEventListener("mouseover", async (event) => {
    const span = event.target.closest(".tokens span");
    if (span && !span.title) {
      span.title = tokenHint(await detailsOf(open), open, Number(span.dataset.place), Number(span.dataset.policy));
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !all.length) return;
    const typing = event.target.closest("input, select, textarea");
    if (typing) {
      if (event.key === "Escape") typing.blur();
      return;
    }
    const near = (among, by) => among[Math.min(among.length - 1, Math.max(0, among.indexOf(open) + by))];
    const within = list.contains(document.activeElement);
    const by = { j: 1, k: -1, ...(within ? { ArrowDown: 1, ArrowUp: -1 } : {}) }[event.key];
    if (by && rows.length) show(near(rows, by));
    else if ((event.key === "n" || event.key === "p") && open) show(near(siblingsOf(open), event.key === "n" ? 1 : -1));
    else if (event.key === "c" && open) recolour(Object.keys(MODES)[(Object.keys(MODES).indexOf(mode) + 1) % 5]);
    else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && open) {
      const spans = [...shown.querySelectorAll(".tokens span")];
      const at = spans.indexOf(picked);
      const next = spans[at < 0 ? spans.findIndex((span) => span.dataset.policy) : at + (event.key === "ArrowRight" ? 1 : -1)];
      if (next) pick(next);
    } else if (event.key === "Escape" && picked) pick(picked);
    else if (event.key === "/") form.elements.text.focus();
    else return;
    event.preventDefault();
  });
  let waiting;
  form.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(applyFilter, 150);
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("hashchange", openAddress);

  if (!(await openAddress())) {
    const missing = location.hash.includes("step=") ? found.textContent : "";
    await applyFilter();
    if (rows.length) await show(rows[rows.length - 1], false);
    if (missing) found.textContent = missing;
  }
})();
