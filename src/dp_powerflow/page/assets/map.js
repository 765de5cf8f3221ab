"use strict";
// The network: laid out by its connections, or by coordinates where there are any, coloured by a value over time.
Charts.kinds.map = (() => {
  const { choice, clock, colourOf, element, legend, ramp, written } = Scales;
  const RELAXED_BUSES = 700; // larger networks keep the plain tree
  const RELAXED_STEPS = 260;
  const FRAME_MS = 260;
  const REACH = 26; // pixels from which a bus is pointed at
  const LOWEST = "lowest of the phases";

  const unpacked = (text) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const view = new DataView(bytes.buffer);
    return Uint16Array.from({ length: bytes.length / 2 }, (_, k) => view.getUint16(2 * k, true));
  };

  // Every bus once, below the bus by which a breadth-first walk from the sources reaches it.
  const spanningTree = (data) => {
    const neighbours = data.buses.map(() => []);
    for (const [a, b] of data.pairs) { neighbours[a].push(b); neighbours[b].push(a); }
    const nodes = data.buses.map((_, bus) => ({ bus, children: [] }));
    const reached = new Set();
    const root = { bus: null, children: [] };
    const starts = [...d3.range(nodes.length).filter((bus) => data.source[bus]), ...d3.range(nodes.length)];
    for (const start of starts) {
      if (reached.has(start)) continue;
      reached.add(start);
      root.children.push(nodes[start]);
      const queue = [start];
      for (let head = 0; head < queue.length; head += 1) {
        for (const next of neighbours[queue[head]]) {
          if (reached.has(next)) continue;
          reached.add(next);
          nodes[queue[head]].children.push(nodes[next]);
          queue.push(next);
        }
      }
    }
    return d3.hierarchy(root.children.length === 1 ? root.children[0] : root);
  };

  // A radial tree, then springs along the lines: the same numbers in give the same places out.
  const laidOut = (data) => {
    const tree = spanningTree(data);
    d3.tree().size([2 * Math.PI, 26 * (tree.height + 1)]).separation((a, b) => (a.parent === b.parent ? 1 : 2) / Math.max(1, a.depth))(tree);
    const places = data.buses.map(() => ({ x: 0, y: 0 }));
    tree.each((node) => {
      if (node.data.bus !== null) places[node.data.bus] = { x: node.y * Math.cos(node.x), y: node.y * Math.sin(node.x) };
    });
    if (places.length > RELAXED_BUSES) return places;
    const springs = d3.forceLink(data.pairs.map(([source, target]) => ({ source, target }))).distance(18).strength(1).iterations(3);
    d3.forceSimulation(places).force("springs", springs).force("apart", d3.forceManyBody().strength(-95).distanceMax(420))
      .stop().tick(RELAXED_STEPS);
    return places.map(({ x, y }) => ({ x, y }));
  };

  // Turned so that the longest direction is horizontal, or vertical on a narrow screen.
  const turned = (places, upright) => {
    const [mx, my] = [d3.mean(places, (p) => p.x), d3.mean(places, (p) => p.y)];
    const [xx, yy, xy] = [d3.sum(places, (p) => (p.x - mx) ** 2), d3.sum(places, (p) => (p.y - my) ** 2), d3.sum(places, (p) => (p.x - mx) * (p.y - my))];
    const angle = 0.5 * Math.atan2(2 * xy, xx - yy) + (upright ? Math.PI / 2 : 0);
    const [c, s] = [Math.cos(-angle), Math.sin(-angle)];
    return places.map(({ x, y }) => ({ x: (x - mx) * c - (y - my) * s, y: (x - mx) * s + (y - my) * c }));
  };

  // Height over width.
  const aspect = (places) => {
    const [[x0, x1], [y0, y1]] = [d3.extent(places, (p) => p.x), d3.extent(places, (p) => p.y)];
    return (y1 - y0) / Math.max(x1 - x0, 1e-9);
  };

  const fitted = (places, width, height, margin) => {
    const [x0, x1] = d3.extent(places, (p) => p.x);
    const [y0, y1] = d3.extent(places, (p) => p.y);
    const scale = Math.min((width - 2 * margin) / Math.max(x1 - x0, 1e-9), (height - 2 * margin) / Math.max(y1 - y0, 1e-9));
    const [dx, dy] = [(width - scale * (x0 + x1)) / 2, (height - scale * (y0 + y1)) / 2];
    return places.map(({ x, y }) => ({ x: dx + scale * x, y: dy + scale * y }));
  };

  // Values of a view at a step, null where a bus has none.
  const reader = (data, state) => {
    state.views ??= Object.fromEntries(Object.entries(data.views).map(([name, text]) => [name, unpacked(text)]));
    const names = Object.keys(state.views);
    const at = (name, step, bus) => {
      const count = state.views[name][step * data.buses.length + bus];
      return count === 0 ? null : count / data.per_unit;
    };
    const lowest = (step, bus) => d3.min(names, (name) => at(name, step, bus)) ?? null;
    return { names: names.length > 1 ? [LOWEST, ...names] : names, phases: names, at: (name, step, bus) => (name === LOWEST ? lowest(step, bus) : at(name, step, bus)) };
  };

  const drawn = (data, width, height, places) => {
    const svg = d3.create("svg").attr("width", width).attr("height", height).attr("viewBox", `0 0 ${width} ${height}`)
      .attr("role", "img").attr("aria-label", `Network of ${data.buses.length} buses, coloured by ${data.value.label}`);
    const lengths = data.pairs.map(([a, b]) => Math.hypot(places[a].x - places[b].x, places[a].y - places[b].y));
    const radius = Math.max(1.5, Math.min(6.5, 0.36 * (d3.median(lengths) ?? 20)));
    const ground = svg.append("g");
    const edges = ground.append("g").attr("class", "edges").selectAll("line").data(data.pairs).join("line")
      .attr("x1", ([a]) => places[a].x).attr("y1", ([a]) => places[a].y)
      .attr("x2", ([, b]) => places[b].x).attr("y2", ([, b]) => places[b].y)
      .attr("stroke-width", (_, k) => (data.kinds[k] === "transformer" ? radius : Math.max(1, radius * 0.45)))
      .attr("stroke-dasharray", (_, k) => (data.kinds[k] === "switch" ? "3 3" : null));
    const dots = ground.append("g").attr("class", "buses").selectAll("circle").data(d3.range(data.buses.length)).join("circle")
      .attr("cx", (k) => places[k].x).attr("cy", (k) => places[k].y).attr("r", radius).attr("stroke", "var(--surface)").attr("stroke-width", 0.8);
    const side = 2 * radius + 7;
    ground.append("g").selectAll("rect").data(d3.range(data.buses.length).filter((k) => data.source[k])).join("rect")
      .attr("x", (k) => places[k].x - side / 2).attr("y", (k) => places[k].y - side / 2).attr("width", side).attr("height", side)
      .attr("rx", 2).attr("fill", "none").attr("stroke", "var(--ink)").attr("stroke-width", 2);
    return { svg, ground, edges, dots };
  };

  return (data, width, state, redraw) => {
    const values = reader(data, state);
    state.step ??= Math.round((data.at.length - 1) / 2);
    state.view ??= 0;
    const still = data.at.length === 1; // a value without a time of day has no slider
    state.places ??= data.coordinates ? data.coordinates.map(([x, y]) => ({ x, y: -y })) : laidOut(data);
    const upright = width < 560;
    const oriented = data.coordinates ? state.places : turned(state.places, upright);
    const height = Math.round(Math.max(300, Math.min(upright ? 1.6 * width : 640, width * aspect(oriented) + 40)));
    const places = fitted(oriented, width, height, 20);
    const colour = colourOf(data.domain, data.middle);
    const { svg, ground, edges, dots } = drawn(data, width, height, places);

    const said = element("p", { class: "said", "aria-live": "polite" });
    const slider = element("input", { type: "range", min: 0, max: data.at.length - 1, step: 1, value: state.step, "aria-label": "Time of day" });
    const output = element("output", {}, "");
    const hint = element("div", { class: "hint", role: "tooltip", hidden: true });
    const paint = () => {
      const name = values.names[state.view];
      const now = data.buses.map((_, bus) => values.at(name, state.step, bus));
      const fill = (value) => (value === null ? "var(--line)" : colour(value));
      dots.attr("fill", (bus) => fill(now[bus])).attr("opacity", (bus) => (now[bus] === null ? 0.45 : 1));
      edges.attr("stroke", ([a, b]) => fill(now[b] ?? now[a])).attr("stroke-opacity", ([a, b]) => ((now[b] ?? now[a]) === null ? 0.45 : 0.85));
      const there = d3.range(now.length).filter((bus) => now[bus] !== null);
      const [low, high] = [d3.least(there, (bus) => now[bus]), d3.greatest(there, (bus) => now[bus])];
      const time = still ? "" : clock(data.at[state.step]);
      const when = still ? "" : `${time}: `;
      output.textContent = time;
      slider.value = state.step;
      slider.setAttribute("aria-valuetext", time);
      said.textContent = low === undefined ? `${when}no value.`
        : `${when}lowest ${written(data.value, now[low])} at ${data.buses[low]}, highest ${written(data.value, now[high])} at ${data.buses[high]}.`;
    };

    const finder = d3.quadtree(d3.range(places.length), (k) => places[k].x, (k) => places[k].y);
    svg.on("pointermove", (event) => {
      const [x, y] = d3.zoomTransform(svg.node()).invert(d3.pointer(event, svg.node()));
      const bus = finder.find(x, y, REACH);
      hint.hidden = bus === undefined;
      if (bus === undefined) return;
      hint.textContent = [data.buses[bus], ...values.phases.map((name) => [name, values.at(name, state.step, bus)])
        .filter(([, value]) => value !== null).map(([name, value]) => `${name}: ${written(data.value, value)}`)].join("\n");
      const [left, top] = d3.pointer(event, canvas);
      hint.style.left = `${Math.max(0, Math.min(left + 14, width - hint.offsetWidth))}px`;
      hint.style.top = `${top + 16}px`;
    }).on("pointerleave", () => { hint.hidden = true; });

    const zoom = d3.zoom().scaleExtent([1, 12]).translateExtent([[0, 0], [width, height]])
      .filter((event) => (event.type === "wheel" ? event.ctrlKey : event.type !== "dblclick" && d3.zoomTransform(svg.node()).k > 1))
      .on("zoom", ({ transform }) => ground.attr("transform", transform));
    svg.call(zoom);
    const closer = (factor, words, sign) => element("button", {
      type: "button", class: "ghost", "aria-label": words, title: words, onclick: () => svg.call(factor ? zoom.scaleBy : zoom.transform, factor ?? d3.zoomIdentity),
    }, sign);

    const stop = () => { clearInterval(state.timer); state.timer = null; play.textContent = "▶"; play.setAttribute("aria-label", "Play the day"); };
    const start = () => {
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      clearInterval(state.timer);
      state.timer = setInterval(() => { state.step = (state.step + 1) % data.at.length; paint(); }, FRAME_MS);
    };
    const play = element("button", { type: "button", class: "ghost", "aria-label": "Play the day", onclick: () => (state.timer ? stop() : start()) }, "▶");
    slider.addEventListener("input", () => { state.step = Number(slider.value); paint(); });
    const canvas = element("div", { class: "map", style: { position: "relative" } }, svg.node(), hint);
    const present = new Set(data.kinds);
    const key = (kind, mark) => (present.has(kind) ? element("li", {}, element("span", { class: "key" }, element("i", { class: mark }), kind)) : null);
    paint();
    if (state.timer) start();
    return [
      element("div", { class: "controls" },
        still ? null : element("div", { class: "player" }, play, slider, output),
        element("div", {}, closer(1.6, "Zoom in", "+"), " ", closer(1 / 1.6, "Zoom out", "−"), " ", closer(null, "Show all", "⤢"))),
      values.names.length > 1 ? choice("Show", values.names, state.view, (k) => { state.view = k; paint(); }) : null,
      canvas,
      said,
      ramp(data.value, data.domain, data.middle),
      element("ul", { class: "legend", style: { marginTop: "8px" } },
        element("li", {}, element("span", { class: "key" }, element("i", { class: "square" }), "source")), key("switch", "dashed"), key("transformer", "thick")),
    ];
  };
})();
