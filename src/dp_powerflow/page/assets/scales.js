"use strict";
// What all charts share: how numbers are written, which colours mean what, and small pieces of the page.
const Scales = (() => {
  const SERIES = 8;
  const MINUTE = 60000;
  const dark = () => document.documentElement.dataset.theme === "dark";

  // Low is vermilion, high is blue; the middle is a grey that shows on either ground. Steps are even in Lab.
  const DIVERGING = {
    light: ["#a63d00", "#e08214", "#b9bec6", "#4393c3", "#0b4a8f"],
    dark: ["#ff7b39", "#d9a05b", "#6f7a88", "#6fb1e0", "#8fd0ff"],
  };
  const piecewise = (colours) => d3.piecewise(d3.interpolateLab, colours);
  const diverging = () => piecewise(DIVERGING[dark() ? "dark" : "light"]);
  const sequential = () => (dark() ? d3.interpolateViridis : (t) => d3.interpolateViridis(1 - t));

  // A function of a value, from the ends of the colours and, for a diverging scale, its middle.
  const colourOf = ([low, high], middle) => {
    const ramp = middle === null ? sequential() : diverging();
    const scale = middle === null
      ? d3.scaleLinear([low, high], [0, 1])
      : d3.scaleLinear([low, middle, high], [0, 0.5, 1]);
    return Object.assign((value) => ramp(scale.clamp(true)(value)), { ramp });
  };

  const seriesColour = (k, count) => (count === 1 ? "var(--accent)" : `var(--series-${(k % SERIES) + 1})`);

  const clock = (minutes) => {
    const [hour, minute] = [Math.floor(minutes / 60), Math.round(minutes % 60)];
    return `${String(hour).padStart(2, "0")}:${String(minute).padStart(2, "0")}`;
  };

  // A value of an axis as text with its unit.
  const written = (axis, value) => {
    if (value === null || value === undefined) return "–";
    if (axis.form === "clock") return clock(value);
    if (axis.form === "date") return String(value).slice(0, 10);
    const text = d3.format(`,.${axis.decimals}f`)(value).replace("−", "−");
    return axis.unit ? `${text} ${axis.unit}` : text;
  };

  const named = (axis) => (axis.unit ? `${axis.label} [${axis.unit}]` : axis.label);

  // Position on an axis as Plot wants it.
  const place = (axis, value) => (axis.form === "date" ? new Date(`${value}T00:00:00Z`) : value);

  // Options of Plot for an axis that lies horizontally.
  const horizontal = (axis, width) => {
    const common = { label: named(axis), labelAnchor: "center", labelArrow: "none" };
    if (axis.form === "clock") {
      const hours = width < 480 ? 6 : 3;
      return { ...common, domain: [0, 1440], ticks: d3.range(0, 1441, hours * 60), tickFormat: clock };
    }
    if (axis.form === "date") return { ...common, type: "utc", ticks: Math.max(2, Math.floor(width / 110)) };
    return { ...common, ticks: Math.max(3, Math.floor(width / 90)) };
  };

  const vertical = (axis) => ({ label: named(axis), labelArrow: "none", grid: true, nice: true, ticks: 6 });

  const element = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") Object.assign(made.style, value);
      else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else if (value === true) made.setAttribute(name, "");
      else if (value !== false && value !== undefined) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };

  // Names with their colours. With `state`, each is a button that shows and hides its series.
  const legend = (names, state, redraw) => {
    if (names.length < 2) return null;
    const hidden = state ? (state.hidden ??= new Set()) : new Set();
    const items = names.map((name, k) => {
      const swatch = element("i", { style: { background: seriesColour(k, names.length) }, "aria-hidden": "true" });
      if (!state) return element("li", {}, element("span", { class: "key" }, swatch, name));
      const toggle = () => {
        if (!hidden.delete(k)) hidden.add(k);
        redraw();
      };
      const pressed = hidden.has(k) ? "false" : "true";
      return element("li", {}, element("button", { type: "button", "aria-pressed": pressed, onclick: toggle }, swatch, name));
    });
    return element("ul", { class: "legend" }, ...items);
  };

  // The colours of a scale with the values of its ends and middle.
  const ramp = (axis, domain, middle) => {
    const colour = colourOf(domain, middle);
    const stops = d3.range(0, 1.001, 0.05).map((t) => colour.ramp(t));
    const values = middle === null ? domain : [domain[0], middle, domain[1]];
    return element(
      "div", { class: "ramp", role: "img", "aria-label": `Colours: ${named(axis)} from ${written(axis, domain[0])} to ${written(axis, domain[1])}` },
      element("div", { class: "colours", style: { background: `linear-gradient(to right, ${stops.join(", ")})` } }),
      element("div", { class: "ends" }, ...values.map((value) => element("span", {}, written(axis, value)))),
    );
  };

  // Pills to choose one of several, or a list where there are many.
  const choice = (label, names, chosen, choose) => {
    if (names.length > 8) {
      const select = element("select", { "aria-label": label, onchange: (event) => choose(Number(event.target.value)) },
        ...names.map((name, k) => element("option", { value: k, selected: k === chosen }, name)));
      return element("div", { class: "choice" }, element("span", { class: "plain" }, label), select);
    }
    const group = `choice-${(choice.count = (choice.count ?? 0) + 1)}`;
    const pills = names.map((name, k) => element("label", {},
      element("input", { type: "radio", name: group, value: k, checked: k === chosen, onchange: () => choose(k) }),
      element("span", {}, name)));
    return element("fieldset", { class: "choice" }, element("legend", {}, label), ...pills);
  };

  const height = (width) => Math.round(Math.min(360, Math.max(230, width * 0.46)));

  return { MINUTE, choice, clock, colourOf, dark, element, height, horizontal, legend, named, place, ramp, seriesColour, vertical, written };
})();
