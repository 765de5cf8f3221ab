"use strict";
// Sets the colours before anything is painted: what the reader chose, else what the system asks for.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const read = () => {
    try { return window.localStorage.getItem("dp-powerflow-theme"); } catch { return null; }
  };
  const apply = () => { root.dataset.theme = read() ?? (system.matches ? "dark" : "light"); };
  apply();
  system.addEventListener("change", apply);
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    button.hidden = false;
    button.addEventListener("click", () => {
      root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
      try { window.localStorage.setItem("dp-powerflow-theme", root.dataset.theme); } catch { /* not allowed here */ }
    });
  });
})();
