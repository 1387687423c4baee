"use strict";
// Draws the figures in the theme of the reader: smoothing, seeds as bands. A live page asks whether the run went on.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Okabe-Ito; the first and last swap light for dark, so that each stands out from the page.
  const palette = () => dark.matches
    ? ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#e9ecef"]
    : ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b38f00", "#56b4e9", "#16191d"];
  const smooth = document.getElementById("smooth");
  const seeds = document.getElementById("seeds");

  // Exponential moving average without the pull of its first value (as TensorBoard's); gaps stay gaps.
  function smoothed(values, factor) {
    let sum = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = factor * sum + (1 - factor) * value;
      weight = factor * weight + (1 - factor);
      return sum / weight;
    });
  }

  function styled(trace, colours, factor) {
    const colour = colours[trace.color % colours.length];
    const made = {
      ...trace,
      line: { ...trace.line, color: colour },
      marker: { ...trace.marker, color: colour },
      ...(trace.error_y ? { error_y: { ...trace.error_y, color: colour } } : {}),
    };
    if (trace.band) {
      made.hoverinfo = "skip";
      if (trace.band === "high") Object.assign(made, { fill: "tonexty", fillcolor: `${colour}33` });
      return [made];
    }
    if (!factor || trace.type !== "scatter" || trace.stackgroup || !trace.mode.startsWith("lines") || trace.error_y) {
      return [made];
    }
    const faint = { ...made, opacity: 0.3, showlegend: false, hoverinfo: "skip", line: { ...made.line, width: 1 } };
    return [faint, { ...made, y: smoothed(trace.y, factor) }];
  }

  // Plotly is most of the page's bytes, and slow to start: it waits until there is something to read.
  let plotly = null;
  async function startPlotly() {
    const source = await unpack(document.getElementById("plotly"));
    await firstLook.catch(() => {}); // its own error is in the console
    await new Promise((go) => {
      requestAnimationFrame(() => setTimeout(go)); // once it is painted
      setTimeout(go, 500); // a page that is not painted, such as one in the background, has no frames
    });
    const script = document.createElement("script"); // the page's policy lets no text be evaluated
    script.textContent = source;
    document.head.append(script);
  }

  function draw(place) {
    const figure = figures[Number(place.dataset.figure)];
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const factor = smooth ? Number(smooth.value) : 0;
    const traces = figure.bands && seeds?.value === "bands" ? figure.bands : figure.data;
    const data = traces.flatMap((trace) => styled(trace, palette(), factor));
    const named = traces.filter((trace) => trace.showlegend !== false).length;
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 11 },
      margin: { l: 44, r: 8, t: 8, b: 36 }, hovermode: "closest", dragmode: false, bargap: 0,
      showlegend: named > 1, legend: { orientation: "h", x: 0, y: -0.3, yanchor: "top" },
      xaxis: { ...axis, ...figure.layout.xaxis, title: { ...figure.layout.xaxis.title, standoff: 4 } }, yaxis: { ...axis, ...figure.layout.yaxis },
    };
    place.classList.toggle("tall", named > 3);
    Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
  }

  // Far charts are drawn when they come near: a long run's page must open at once.
  const places = [...document.querySelectorAll(".plot")];
  const drawn = new Set();
  const watcher = new IntersectionObserver(async (entries) => {
    const near = entries.filter((entry) => entry.isIntersecting).map((entry) => entry.target);
    near.forEach((place) => watcher.unobserve(place));
    if (near.length) await (plotly ??= startPlotly());
    for (const place of near) {
      drawn.add(place);
      requestIdleCallback(() => draw(place), { timeout: 300 });
    }
  }, { rootMargin: "300px" });
  for (const place of places) {
    if (canUnpack) watcher.observe(place);
    else place.textContent = TOO_OLD;
  }
  const redraw = () => drawn.forEach(draw);
  dark.addEventListener("change", redraw);
  smooth?.addEventListener("change", redraw);
  seeds?.addEventListener("change", redraw);

  for (const cloud of document.querySelectorAll(".cloud")) {
    const words = [...cloud.querySelectorAll("code")];
    const most = Math.max(...words.map((word) => Math.log1p(Number(word.dataset.count))));
    for (const word of words) {
      word.style.fontSize = `${(0.7 + 1.3 * Math.log1p(Number(word.dataset.count)) / most).toFixed(2)}rem`;
    }
  }

  if (document.body.dataset.live) {
    const note = document.getElementById("live");
    const version = document.body.dataset.live;
    setInterval(async () => {
      try {
        const now = await (await fetch("/version")).text();
        if (now !== version) location.reload(); // the address keeps the open trajectory
      } catch {
        note.textContent = "The server of this page does not answer: what is shown is the last that it sent.";
      }
    }, 4000);
  }
})();
