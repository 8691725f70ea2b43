/* Marks: one row per name with what was measured of it, and points in the plane. */
"use strict";
(function (A) {
  const ROW = 24;

  /** Rows of dots on one scale: differences are seen, which bars from zero would bury. */
  A.charts.dots = (svg, width, spec, memory, again) => {
    const shown = spec.series.filter((series) => !memory.hidden.has(series.name));
    const label = Math.min(Math.max(...spec.rows.map(A.textWidth), 20) + 12, width * 0.42);
    const levels = spec.levels || [];
    const values = shown.flatMap((s) =>
      [...s.values, ...(s.low || []), ...(s.high || []), ...(s.many || []).flat()]);
    const range = A.range([...values, ...levels.map((level) => level.value)], spec.x);
    const top = 8 + levelNames(levels).length * 14;
    const area = { left: label, right: width - 14, top, bottom: top + ROW * spec.rows.length };
    const place = A.scale(range, [area.left + 6, area.right], spec.x.log);
    const ticks = spec.x.ticks || A.axisTicks(spec.x, range, Math.max(2, Math.floor((width - label) / 90)));
    for (const value of ticks) {
      svg.append(A.svg("line", { class: "grid", x1: place(value), x2: place(value), y1: area.top, y2: area.bottom }),
        A.svg("text", { class: "tick", x: place(value), y: area.bottom + 16, "text-anchor": "middle",
          text: A.tickText(value, spec.x) }));
    }
    if (spec.x.label) {
      svg.append(A.svg("text", { class: "axis", x: (area.left + area.right) / 2, y: area.bottom + 34,
        "text-anchor": "middle", text: spec.x.label }));
    }
    const borders = new Set(spec.borders || []);
    levels.forEach((level, n) => {
      const at = place(level.value);
      svg.append(A.svg("line", { class: "level", x1: at, x2: at, y1: 14 * n + 12, y2: area.bottom,
        stroke: A.ink(level.colour) }));
      const late = at > width * 0.6;
      svg.append(A.svg("text", { class: "tick", x: late ? at - 4 : at + 4, y: 14 * n + 12,
        "text-anchor": late ? "end" : "start", fill: A.ink(level.colour),
        text: `${level.name} ${A.format(level.value, spec.x.format)}` }));
    });
    spec.rows.forEach((name, n) => {
      const y = area.top + ROW * (n + 0.5);
      if (borders.has(n)) {
        svg.append(A.svg("line", { class: "border", x1: 0, x2: area.right, y1: y - ROW / 2, y2: y - ROW / 2 }));
      }
      const row = A.svg("g", {
        onpointermove: (event) => A.showTip(event, name, tipLines(shown, n, spec)),
        onpointerleave: A.hideTip });
      row.append(A.svg("rect", { class: "hit", x: 0, width, y: y - ROW / 2, height: ROW }));
      row.append(A.svg("text", { class: "name", x: label - 8, y: y + 4, "text-anchor": "end",
        fill: spec.rowColours ? A.ink(spec.rowColours[n]) : undefined, text: A.cut(name, label - 12) }));
      if (spec.link && shown.length > 1) link(row, spec, shown, n, place, y);
      shown.forEach((series, rank) => {
        const aside = spec.dodge ? (rank - (shown.length - 1) / 2) * Math.min(5, 16 / shown.length) : 0;
        marks(row, series, n, place, y + aside);
      });
      svg.append(row);
    });
    const entries = spec.series.map((s) => ({ ...s, shape: s.shape || "circle" }));
    return { height: area.bottom + (spec.x.label ? 42 : 24), above: A.legend(entries, memory.hidden, again) };
  };

  const levelNames = (levels) => levels.map((level) => level.name);

  function tipLines(shown, n, spec) {
    return shown.filter((s) => A.isNumber(s.values[n])).map((s) => {
      const error = s.low && A.isNumber(s.low[n])
        ? ` (${A.format(s.low[n], spec.x.format)} to ${A.format(s.high[n], spec.x.format)})` : "";
      return [s.name, A.format(s.values[n], spec.x.format) + error, s.colour];
    });
  }

  function link(row, spec, shown, n, place, y) {
    const ends = spec.link.map((name) => shown.find((s) => s.name === name)).filter(Boolean)
      .map((s) => s.values[n]).filter(A.isNumber);
    if (ends.length < 2) return;
    row.append(A.svg("line", { class: "link", x1: place(ends[0]), x2: place(ends[1]), y1: y, y2: y,
      stroke: A.ink(ends[1] >= ends[0] ? "better" : "worse") }));
  }

  function marks(row, series, n, place, y) {
    if (series.low && A.isNumber(series.low[n])) {
      row.append(A.svg("line", { x1: place(series.low[n]), x2: place(series.high[n]), y1: y, y2: y,
        stroke: A.ink(series.colour), "stroke-width": series.thick ? 5 : 1.6,
        opacity: series.thick ? 0.35 : 0.9 }));
    }
    for (const value of (series.many || [])[n] || []) {
      row.append(A.svg("circle", { cx: place(value), cy: y, r: 2.2, class: "seed" }));
    }
    if (!A.isNumber(series.values[n])) return;
    const colour = series.colours ? series.colours[n] : series.colour;
    row.append(A.svg("path", { d: A.mark(series.shape || "circle", 5),
      transform: `translate(${place(series.values[n]).toFixed(1)} ${y})`,
      fill: series.hollow ? "var(--card)" : A.ink(colour), stroke: A.ink(colour), "stroke-width": 1.5 }));
  }

  /** Points in the plane; names where there is room for them. */
  A.charts.scatter = (svg, width, spec, memory, again) => {
    const height = spec.equal ? Math.max(240, Math.min(width, 520) * 0.8) : spec.height || 280;
    const shown = spec.points.filter((point) => !memory.hidden.has(point.group));
    const ranges = {
      x: A.range(spec.points.map((point) => point.x), spec.x),
      y: A.range(spec.points.map((point) => point.y), spec.y) };
    if (spec.equal) even(ranges, width, height);
    const { area, x, y } = A.plotArea(svg, width, height, spec, ranges);
    const taken = shown.map((point) => ({ left: x(point.x) - 6, right: x(point.x) + 6,
      top: y(point.y) - 6, bottom: y(point.y) + 6 }));
    for (const point of shown) {
      const dot = A.svg("path", { d: A.mark(point.shape, 5.2), fill: A.ink(point.colour), class: "point",
        transform: `translate(${x(point.x).toFixed(1)} ${y(point.y).toFixed(1)})`,
        onpointermove: (event) => A.showTip(event, point.name, (point.lines || []).map(([words, value, how]) =>
          [words, A.format(value, how)])),
        onpointerleave: A.hideTip });
      svg.append(dot);
      if (spec.names === false || shown.length > 60) continue;
      const room = A.textWidth(point.name);
      const tries = [[8, 4, "start"], [-8, 4, "end"], [0, -9, "middle"], [0, 17, "middle"],
        [8, -8, "start"], [8, 16, "start"], [-8, -8, "end"], [-8, 16, "end"]];
      for (const [dx, dy, anchor] of tries) {
        const left = x(point.x) + dx - (anchor === "end" ? room : anchor === "middle" ? room / 2 : 0);
        const box = { left, right: left + room, top: y(point.y) + dy - 11, bottom: y(point.y) + dy + 2 };
        const free = box.left > area.left - 4 && box.right < width && box.top > 0 && !taken.some((other) =>
          box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom);
        if (!free) continue;
        taken.push(box);
        svg.append(A.svg("text", { class: "name", x: x(point.x) + dx, y: y(point.y) + dy,
          "text-anchor": anchor, fill: A.ink(point.colour), text: point.name }));
        break;
      }
    }
    const groups = [...new Map(spec.points.map((point) => [point.group, point])).entries()]
      .filter(([name]) => name !== undefined && name !== null)
      .map(([name, point]) => ({ name, colour: point.colour, shape: spec.shapes ? "circle" : point.shape || "circle" }));
    const shapes = (spec.shapes || []).map((entry) => ({ ...entry, colour: "soft", fixed: true }));
    return { height, above: A.legend([...groups, ...shapes], memory.hidden, again) };
  };

  /** The same length means the same in both directions. */
  function even(ranges, width, height) {
    const scale = Math.max((ranges.x[1] - ranges.x[0]) / (width - 80), (ranges.y[1] - ranges.y[0]) / (height - 66));
    for (const [axis, room] of [["x", width - 80], ["y", height - 66]]) {
      const middle = (ranges[axis][0] + ranges[axis][1]) / 2;
      ranges[axis] = [middle - (scale * room) / 2, middle + (scale * room) / 2];
    }
  }
})(Atlas);
