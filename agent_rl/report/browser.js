"use strict";
// The trajectory browser. What a model wrote reaches the page as text nodes only.
const firstLook = (async () => { // done when a trajectory stands on the page
  const list = document.getElementById("list");
  if (!list) return;
  const shown = document.getElementById("shown"), found = document.getElementById("found");
  const hint = document.getElementById("hint"), form = document.getElementById("filter");
  const names = JSON.parse(document.getElementById("names").textContent);
  const LIST_MOST = 400;
  const { MODES, number } = Colours;
  if (!canUnpack) {
    found.textContent = TOO_OLD;
    return;
  }

  const chunks = names.map((_, run) => [...document.querySelectorAll(`script.chunk[data-run="${run}"]`)]);
  const loaded = new Map();
  function chunk(run, at) {
    const key = `${run}/${at}`;
    if (!loaded.has(key)) loaded.set(key, unpack(chunks[run][at]).then(JSON.parse));
    return loaded.get(key);
  }
  const detailsOf = async (row) => (await chunk(row.run, row.chunk))[row.at];
  const all = [];
  for (const script of document.querySelectorAll("script.index")) {
    if (script.textContent) for (const row of JSON.parse(await unpack(script))) all.push({ ...row, run: Number(script.dataset.run) });
  }

  // ``views``: the open trajectory, and after it the one of its group that is read beside it, if any.
  let rows = [], open = null, beside = null, views = [], mode = "author", picked = null;

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

  // ---------------------------------------------------------------- one trajectory, and one beside it
  const siblingsOf = (row) => all.filter((other) => other.run === row.run && other.step === row.step && other.group === row.group);
  async function show(row, { focus = true, next = beside } = {}) {
    open = row;
    beside = next && next !== row && siblingsOf(row).includes(next) ? next : null;
    const mine = beside;
    const made = await Promise.all([row, beside].filter(Boolean).map(async (one) => {
      const details = await detailsOf(one);
      return { row: one, details, box: Transcript.tokens(details) };
    }));
    if (open !== row || beside !== mine) return; // another was opened meanwhile
    views = made;
    pick(null);
    const { details } = views[0];
    const columns = element("div", undefined, "columns");
    for (const view of views) {
      const column = element("div", undefined, "column");
      const { sample, reward, answer, stop } = view.row;
      const about = `sample ${sample} · reward ${number(reward)} · ${answer ?? "no answer"} · ${stop}`;
      if (views.length > 1) column.append(element("p", about, "note"));
      column.append(view.box);
      if (view.row !== row) column.append(Transcript.verdict(view.details));
      columns.append(column);
    }
    shown.replaceChildren(
      element("h3", details.question), element("p", `${names[row.run]} · step ${row.step} · ${row.item} · sample ${row.sample}`, "note"),
      Transcript.facts(details, row), Transcript.verdict(details), groupOf(row), controls(row), columns);
    Transcript.paint(views, mode, shown.querySelector(".legend"));
    address();
    drawList();
    if (focus && !list.contains(document.activeElement)) list.focus({ preventScroll: true });
  }
  function groupOf(row) {
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
    return siblings;
  }
  function controls(row) {
    const line = element("p", undefined, "controls");
    const choice = (id, text, options, chosen, act) => {
      const label = element("label", `${text} `), select = element("select");
      select.id = id;
      for (const [value, name] of options) select.append(new Option(name, value, false, value === chosen));
      select.addEventListener("change", () => act(select.value));
      label.append(select);
      return label;
    };
    const others = siblingsOf(row).filter((other) => other !== row);
    const samples = [["", "nothing"], ...others.map((other) => [String(other.sample), `sample ${other.sample}: ${number(other.reward)}`])];
    const setBeside = (value) => show(row, { next: others.find((other) => String(other.sample) === value) ?? null });
    if (others.length) line.append(choice("beside", "Beside it", samples, beside ? String(beside.sample) : "", setBeside));
    line.append(choice("colours", "Colour by", Object.entries(MODES), mode, recolour), element("span", undefined, "legend"));
    return line;
  }
  function recolour(next) {
    mode = next;
    shown.querySelector("#colours").value = mode;
    Transcript.paint(views, mode, shown.querySelector(".legend"));
    address();
  }
  const viewOf = (span) => views.find((view) => view.box.contains(span));
  function pick(span) {
    picked?.classList.remove("picked");
    picked = span === picked ? null : span;
    hint.hidden = picked === null;
    if (!picked) return;
    picked.classList.add("picked");
    picked.scrollIntoView({ block: "nearest" });
    const text = picked.textContent.length > 80 ? `${picked.textContent.slice(0, 80)}…` : picked.textContent;
    hint.textContent = `${JSON.stringify(text)} · ${Transcript.hint(viewOf(picked), picked)}`;
  }

  // ---------------------------------------------------------------- address, pointer, keys
  function address() {
    const { run, step, group, sample } = open;
    const query = new URLSearchParams({ run: names[run], step, group, sample, colours: mode });
    if (beside) query.set("beside", beside.sample);
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
    const next = siblingsOf(wanted).find((other) => String(other.sample) === query.get("beside"));
    await show(wanted, { next: next ?? null });
    document.getElementById("trajectories").scrollIntoView();
    return true;
  }
  shown.addEventListener("click", (event) => {
    const span = event.target.closest(".tokens span");
    if (span) pick(span);
  });
  shown.addEventListener("mouseover", (event) => {
    const span = event.target.closest(".tokens span");
    if (span && !span.title) span.title = Transcript.hint(viewOf(span), span);
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
    else if (event.key === "b" && open) {
      const others = [null, ...siblingsOf(open).filter((other) => other !== open)];
      show(open, { next: others[(others.indexOf(beside) + 1) % others.length] });
    } else if (event.key === "c" && open) recolour(Object.keys(MODES)[(Object.keys(MODES).indexOf(mode) + 1) % 5]);
    else if ((event.key === "ArrowRight" || event.key === "ArrowLeft") && open) {
      const spans = [...views[0].box.querySelectorAll("span")];
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
    if (rows.length) await show(rows[rows.length - 1], { focus: false });
    if (missing) found.textContent = missing;
  }
})();
