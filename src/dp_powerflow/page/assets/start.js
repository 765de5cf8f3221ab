"use strict";
// Draws every figure into its place, and again when its width or the colours change.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const draw = new Map();

  for (const place of document.querySelectorAll(".chart")) {
    const data = figures[place.dataset.figure];
    const state = {};
    const redraw = () => {
      const width = Math.floor(place.clientWidth);
      if (width < 80) return;
      const focused = place.contains(document.activeElement) ? [...place.querySelectorAll("button, input, select")].indexOf(document.activeElement) : -1;
      const made = Charts.kinds[data.kind](data, width, state, redraw).filter((element) => element !== null);
      place.replaceChildren(...made);
      if (focused >= 0) place.querySelectorAll("button, input, select")[focused]?.focus();
    };
    draw.set(place, redraw);
  }

  const widths = new Map();
  const observer = new ResizeObserver((entries) => requestAnimationFrame(() => {
    for (const { target } of entries) {
      if (widths.get(target) === target.clientWidth) continue;
      widths.set(target, target.clientWidth);
      draw.get(target)();
    }
  }));
  for (const place of draw.keys()) observer.observe(place);
  new MutationObserver(() => draw.forEach((redraw) => redraw()))
    .observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
})();
