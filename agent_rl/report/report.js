"use strict";
// Draws the figures in the theme of the reader, and shows a token's numbers where there is no pointer to hover with.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  // Okabe-Ito; the first and last swap light for dark, so that each stands out from the page.
  const palette = () => dark.matches
    ? ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#d55e00", "#e9ecef"]
    : ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b38f00", "#56b4e9", "#16191d"];

  function draw(place) {
    const figure = figures[Number(place.dataset.figure)];
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const colours = palette();
    const data = figure.data.map((trace) => {
      const colour = colours[trace.color % colours.length];
      return {
        ...trace,
        line: { ...trace.line, color: colour },
        marker: { ...trace.marker, color: colour },
        ...(trace.error_y ? { error_y: { ...trace.error_y, color: colour } } : {}),
      };
    });
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    const layout = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 11 },
      margin: { l: 44, r: 8, t: data.length > 1 ? 30 : 8, b: 36 }, hovermode: "closest", dragmode: false, bargap: 0,
      showlegend: data.length > 1, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
      xaxis: { ...axis, ...figure.layout.xaxis }, yaxis: { ...axis, ...figure.layout.yaxis },
    };
    Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
  }

  const places = [...document.querySelectorAll(".plot")];
  const redraw = () => places.forEach(draw);
  redraw();
  dark.addEventListener("change", redraw);

  const hint = document.getElementById("hint");
  let picked = null;
  document.addEventListener("click", (event) => {
    const token = event.target.closest(".tokens span");
    picked?.classList.remove("picked");
    picked = token === picked ? null : token;
    picked?.classList.add("picked");
    hint.hidden = picked === null;
    hint.textContent = picked ? `${JSON.stringify(picked.textContent)} · ${picked.title}` : "";
  });
})();
