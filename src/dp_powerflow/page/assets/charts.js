"use strict";
// One function per kind of chart: (data, width, state, redraw) → elements. `state` outlives a redrawing.
const Charts = (() => {
  const { choice, colourOf, element, height, horizontal, legend, named, place, ramp, seriesColour, vertical, written } = Scales;

  const frame = (width, options) => Plot.plot({
    width,
    height: height(width),
    marginTop: 30,
    marginLeft: 58,
    marginRight: 18,
    marginBottom: 42,
    style: { background: "transparent", color: "var(--ink)" },
    ...options,
  });

  // Lines across the chart at marked values.
  const limits = (values, rule, text) => values.flatMap((limit) => [
    rule([limit.value], { stroke: "var(--soft)", strokeDasharray: "4 4" }),
    text([limit.value], limit.label),
  ]);
  const across = (values) => limits(values, Plot.ruleY, (at, label) => Plot.text(at, {
    y: (d) => d, text: () => label, frameAnchor: "right", textAnchor: "end", dy: -7, fill: "var(--soft)",
    stroke: "var(--surface)", strokeWidth: 4, fontSize: 11,
  }));
  const upright = (values) => limits(values, Plot.ruleX, (at, label) => Plot.text(at, {
    x: (d) => d, text: () => label, frameAnchor: "top", dy: -10, fill: "var(--soft)", fontSize: 11,
  }));

  const tooltip = (rows, options) => Plot.tip(rows, Plot.pointerX({
    ...options, title: "words", fontSize: 12, stroke: "var(--line)", lineHeight: 1.35, pathFilter: "none",
  }));
  const hairline = (rows, options) => Plot.ruleX(rows, Plot.pointerX({ ...options, stroke: "var(--soft)", strokeOpacity: 0.5 }));

  // Mean of what is there, to place a tooltip.
  const centre = (values) => d3.mean(values.filter((value) => value !== null)) ?? 0;

  const visible = (series, state) => series
    .map((each, k) => ({ ...each, colour: seriesColour(k, series.length), k }))
    .filter((each) => !state.hidden?.has(each.k));

  const histogram = (data, width, state, redraw) => {
    const shown = visible(data.series, state);
    const bins = d3.range(data.edges.length - 1);
    const rows = bins.map((bin) => ({
      x: (data.edges[bin] + data.edges[bin + 1]) / 2,
      y: d3.max(shown, (each) => each.values[bin]) ?? 0,
      words: [`${written(data.x, data.edges[bin])} to ${written(data.x, data.edges[bin + 1])}`,
        ...shown.map((each) => `${each.name}: ${written(data.y, each.values[bin])}`)].join("\n"),
    }));
    const only = shown.length === 1;
    const outline = (each) => bins.flatMap((bin) => [
      { x: data.edges[bin], y: each.values[bin] }, { x: data.edges[bin + 1], y: each.values[bin] },
    ]);
    return [legend(data.series.map((each) => each.name), state, redraw), frame(width, {
      marginTop: data.limits.length ? 40 : 30,
      x: { ...horizontal(data.x, width), domain: d3.extent(data.edges) },
      y: { ...vertical(data.y), zero: true },
      marks: [
        ...shown.flatMap((each) => [
          Plot.areaY(outline(each), { x: "x", y1: 0, y2: "y", fill: each.colour, fillOpacity: only ? 0.35 : 0.16 }),
          Plot.lineY(outline(each), { x: "x", y: "y", stroke: each.colour, strokeWidth: 1.6 }),
        ]),
        Plot.ruleY([0], { stroke: "var(--soft)" }),
        ...upright(data.limits),
        hairline(rows, { x: "x" }),
        tooltip(rows, { x: "x", y: "y" }),
      ],
    })];
  };

  // Areas between quantiles that mirror each other, palest outside, and the middle one as a line.
  const quantileMarks = (axis, at, band, colour, curve) => {
    const points = at.map((value, k) => ({ x: place(axis, value), k }));
    const pairs = d3.range(Math.floor(band.levels.length / 2)).map((k) => [k, band.levels.length - 1 - k]);
    const areas = pairs.map(([low, high]) => Plot.areaY(points, {
      x: "x", y1: (d) => band.values[low][d.k], y2: (d) => band.values[high][d.k], fill: colour, fillOpacity: 0.16, curve,
    }));
    if (band.levels.length % 2 === 0) return areas;
    const middle = band.values[(band.levels.length - 1) / 2];
    return [...areas, Plot.lineY(points, { x: "x", y: (d) => middle[d.k], stroke: colour, strokeWidth: 2.2, curve })];
  };
  const quantileRows = (data, bands) => data.at.map((value, k) => ({
    x: place(data.x, value),
    y: centre(bands.map((band) => band.values[Math.floor(band.levels.length / 2)][k])),
    words: [written(data.x, value), ...bands.flatMap((band) => [
      ...(bands.length > 1 ? [`${band.name}, median ${written(data.y, band.values[(band.levels.length - 1) / 2][k])}`]
        : band.levels.map((level, l) => `${level} %: ${written(data.y, band.values[l][k])}`)),
    ])].join("\n"),
  }));

  const band = (data, width, state, redraw) => {
    const shown = visible(data.bands, state);
    const rows = quantileRows(data, shown);
    return [legend(data.bands.map((each) => each.name), state, redraw), frame(width, {
      x: horizontal(data.x, width),
      y: vertical(data.y),
      marks: [
        ...shown.flatMap((each) => quantileMarks(data.x, data.at, each, each.colour, "linear")),
        ...across(data.limits),
        hairline(rows, { x: "x" }),
        tooltip(rows, { x: "x", y: "y" }),
      ],
    })];
  };

  const steps = (data, width) => {
    const all = data.bands.flatMap((each) => each.values.flat());
    const domain = [Math.min(0, d3.min(all)) - 0.5, Math.max(0, d3.max(all)) + 0.5];
    const columns = width >= 860 && data.bands.length > 1 ? 2 : 1;
    const room = Math.floor((width - 24 * (columns - 1)) / columns);
    const panels = data.bands.map((each) => {
      const rows = quantileRows(data, [each]);
      return element("div", {}, element("div", { class: "said" }, each.name), frame(room, {
        height: data.bands.length > 1 ? 160 : 220,
        marginTop: 24,
        x: horizontal(data.x, room),
        y: { ...vertical(data.y), nice: false, domain, ticks: 4, tickFormat: "d" },
        marks: [
          ...quantileMarks(data.x, data.at, each, "var(--accent)", "step-after"),
          Plot.ruleY([0], { stroke: "var(--soft)" }),
          hairline(rows, { x: "x" }),
          tooltip(rows, { x: "x", y: "y" }),
        ],
      }));
    });
    return [element("div", { class: "panels", style: { gridTemplateColumns: `repeat(${columns}, ${room}px)` } }, ...panels)];
  };

  const lines = (data, width, state, redraw) => {
    const shown = visible(data.series, state);
    const rows = data.at.map((value, k) => ({
      x: place(data.x, value),
      y: centre(shown.map((each) => each.values[k])),
      words: [written(data.x, value), ...shown.map((each) => `${each.name}: ${written(data.y, each.values[k])}`)].join("\n"),
    }));
    const points = data.at.map((value, k) => ({ x: place(data.x, value), k }));
    const y = (each) => (d) => each.values[d.k];
    return [legend(data.series.map((each) => each.name), state, redraw), frame(width, {
      x: horizontal(data.x, width),
      y: { ...vertical(data.y), zero: data.filled },
      marks: [
        ...shown.flatMap((each) => [
          ...(data.filled ? [Plot.areaY(points, { x: "x", y1: 0, y2: y(each), fill: each.colour, fillOpacity: 0.14 })] : []),
          Plot.lineY(points, { x: "x", y: y(each), stroke: each.colour, strokeWidth: 1.8 }),
        ]),
        ...across(data.limits),
        hairline(rows, { x: "x" }),
        tooltip(rows, { x: "x", y: "y" }),
      ],
    })];
  };

  const duration = (data, width, state, redraw) => {
    const x = { label: "share of the time", unit: "%", form: "number", decimals: 1 };
    return lines({ ...data, x, limits: [], filled: data.series.length === 1 }, width, state, redraw);
  };

  const bars = (data, width, state, redraw) => {
    const shown = visible(data.series, state);
    const rows = data.groups.flatMap((group, g) => shown.map((each) => ({
      group, series: each.name, value: each.values[g], colour: each.colour,
      words: `${group}\n${each.name}: ${written(data.value, each.values[g])}`,
    })));
    const labels = Math.min(Math.max(90, d3.max(data.groups, (name) => name.length) * 6.6), width * 0.38);
    const fit = Math.max(8, Math.floor(labels / 6.4));
    const short = (name) => (name.length > fit ? `${name.slice(0, fit - 1)}…` : name);
    return [legend(data.series.map((each) => each.name), state, redraw), Plot.plot({
      width,
      height: 56 + data.groups.length * Math.max(26, 15 * shown.length + 8),
      marginLeft: labels + 8,
      marginRight: 56,
      marginBottom: 40,
      style: { background: "transparent", color: "var(--ink)" },
      x: { ...horizontal(data.value, width - labels), grid: true, zero: true, nice: true },
      y: { axis: null, domain: shown.map((each) => each.name), padding: 0.12 },
      fy: { label: null, domain: data.groups, padding: 0.22, axis: "left", tickFormat: short },
      marks: [
        Plot.barX(rows.filter((row) => row.value !== null), { x: "value", y: "series", fy: "group", fill: "colour", rx: 2 }),
        Plot.text(rows, {
          x: (row) => row.value ?? 0, y: "series", fy: "group", textAnchor: "start", dx: 5, fontSize: 11, fill: "var(--soft)",
          text: (row) => (row.value === null ? "–" : written({ ...data.value, unit: "" }, row.value)),
        }),
        Plot.ruleX([0], { stroke: "var(--soft)" }),
        Plot.tip(rows.filter((row) => row.value !== null), Plot.pointerY({ x: "value", y: "series", fy: "group", title: "words", stroke: "var(--line)" })),
      ],
    })];
  };

  const heatmap = (data, width) => {
    const [columns, rows] = [data.columns.length, data.rows.length];
    const colour = colourOf(data.domain, data.middle);
    const square = columns === rows && data.x.form === "number";
    const side = Math.min(width - 76, 620);
    const cells = d3.range(rows * columns).map((k) => ({ row: Math.floor(k / columns), column: k % columns }))
      .filter(({ row, column }) => data.values[row][column] !== null);
    const text = (axis, name) => (typeof name === "string" && axis.form === "number" ? name : written(axis, name));
    // Names of as many rows or columns as there is room for.
    const ticks = (names, axis, most) => {
      const enough = Math.ceil(names.length / Math.max(1, Math.floor(most)));
      const every = [1, 2, 3, 4, 6, 8, 12, 16, 24].find((step) => step >= enough) ?? enough;
      return { ticks: d3.range(0, names.length, every), tickFormat: (k) => text({ ...axis, unit: "" }, names[k]) };
    };
    const rise = square ? side : Math.max(height(width), 260);
    return [Plot.plot({
      width: square ? side + 76 : width,
      height: rise + 74,
      marginLeft: 58, marginBottom: 44, marginTop: 30, marginRight: 18,
      style: { background: "transparent", color: "var(--ink)" },
      x: { ...ticks(data.columns, data.x, width / (data.x.form === "date" ? 96 : 56)), label: named(data.x), labelAnchor: "center", labelArrow: "none", domain: [-0.5, columns - 0.5] },
      y: { ...ticks(data.rows, data.y, rise / 26), label: named(data.y), labelArrow: "none", domain: [-0.5, rows - 0.5], reverse: true },
      marks: [
        Plot.raster(data.values.flat(), {
          width: columns, height: rows, x1: -0.5, x2: columns - 0.5, y1: -0.5, y2: rows - 0.5,
          fill: (value) => (value === null ? "transparent" : colour(value)), imageRendering: "pixelated",
        }),
        Plot.tip(cells, Plot.pointer({
          x: "column", y: "row", stroke: "var(--line)", maxRadius: 60,
          title: ({ row, column }) => `${text(data.y, data.rows[row])} · ${text(data.x, data.columns[column])}\n${data.value.label}: ${written(data.value, data.values[row][column])}`,
        })),
      ],
    }), ramp(data.value, data.domain, data.middle)];
  };

  const alternatives = (data, width, state, redraw) => {
    state.chosen ??= 0;
    state.within ??= data.options.map(() => ({}));
    const choose = (k) => { state.chosen = k; redraw(); };
    const option = data.options[state.chosen];
    return [
      choice(data.label, data.options.map((each) => each.name), state.chosen, choose),
      ...kinds[option.chart.kind](option.chart, width, state.within[state.chosen], redraw),
    ];
  };

  const kinds = { band, bars, choice: alternatives, duration, heatmap, histogram, lines, steps };
  return { kinds };
})();
