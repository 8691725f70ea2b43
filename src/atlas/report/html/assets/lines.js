/* Lines with bands over rounds or steps, and stacked bars. */
"use strict";
(function (A) {
  const HEIGHT = 260;

  const groupOf = (series) => series.group || series.name;

  function path(xs, ys, place, step) {
    let text = "";
    let pen = false;
    xs.forEach((x, number) => {
      if (!A.isNumber(ys[number])) {
        pen = false;
        return;
      }
      const [left, top] = [place.x(x).toFixed(1), place.y(ys[number]).toFixed(1)];
      if (!pen) text += `M${left},${top}`;
      else text += step ? `H${left}V${top}` : `L${left},${top}`;
      pen = true;
    });
    return text;
  }

  function band(series, place) {
    const known = series.x.map((x, n) => [x, series.low[n], series.high[n]])
      .filter(([, low, high]) => A.isNumber(low) && A.isNumber(high));
    const up = known.map(([x, , high]) => `${place.x(x).toFixed(1)},${place.y(high).toFixed(1)}`);
    const down = known.reverse().map(([x, low]) => `${place.x(x).toFixed(1)},${place.y(low).toFixed(1)}`);
    return A.svg("polygon", { points: [...up, ...down].join(" "), fill: A.ink(series.colour), opacity: 0.14 });
  }

  function drawSeries(svg, series, place) {
    if (series.low) svg.append(band(series, place));
    svg.append(A.svg("path", { d: path(series.x, series.y, place, series.step), fill: "none",
      stroke: A.ink(series.colour), "stroke-width": series.faint ? 1 : 2.2,
      "stroke-dasharray": series.dash ? "6 4" : undefined, "stroke-linejoin": "round",
      opacity: series.faint ? 0.38 : undefined }));
    if (series.faint || series.x.length > 30) return;
    series.x.forEach((x, n) => {
      if (!A.isNumber(series.y[n])) return;
      svg.append(A.svg("path", { d: A.mark(series.shape, 3.4),
        fill: series.hollow ? "var(--card)" : A.ink(series.colour),
        stroke: series.hollow ? A.ink(series.colour) : undefined,
        transform: `translate(${place.x(x).toFixed(1)} ${place.y(series.y[n]).toFixed(1)})` }));
    });
  }

  /** The value of a line at the x nearest to the pointer. */
  function follow(svg, place, shown, spec) {
    const { area } = place;
    const xs = [...new Set(shown.flatMap((series) => series.x))].sort((a, b) => a - b);
    const cross = A.svg("line", { class: "cross", y1: area.top, y2: area.bottom, visibility: "hidden" });
    const catcher = A.svg("rect", { x: area.left - 6, y: area.top, width: area.right - area.left + 12,
      height: area.bottom - area.top, fill: "transparent",
      onpointermove: (event) => {
        const box = svg.getBoundingClientRect();
        const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
        const x = xs.reduce((best, one) =>
          Math.abs(place.x(one) - at) < Math.abs(place.x(best) - at) ? one : best, xs[0]);
        cross.setAttribute("x1", place.x(x));
        cross.setAttribute("x2", place.x(x));
        cross.setAttribute("visibility", "visible");
        const lines = shown.filter((series) => !series.faint || shown.length <= 14)
          .map((series) => {
            const n = series.x.indexOf(x);
            if (n < 0 || !A.isNumber(series.y[n])) return null;
            const around = series.low
              ? ` (${A.format(series.low[n], spec.y.format)} to ${A.format(series.high[n], spec.y.format)})` : "";
            return [series.name, A.format(series.y[n], spec.y.format) + around, series.colour];
          }).filter(Boolean);
        A.showTip(event, `${spec.x.label} ${A.format(x, spec.x.format)}`, lines.slice(0, 16));
      },
      onpointerleave: () => {
        cross.setAttribute("visibility", "hidden");
        A.hideTip();
      } });
    svg.append(cross, catcher);
  }

  A.charts.line = (svg, width, spec, memory, again) => {
    const height = spec.height || HEIGHT;
    const names = [...new Set(spec.series.map(groupOf))];
    const shown = spec.series.filter((series) => !memory.hidden.has(groupOf(series)));
    const heights = shown.flatMap((s) => [...s.y, ...(s.low || []), ...(s.high || [])]);
    for (const level of spec.levels || []) if (!level.far) heights.push(level.value);
    const ranges = { x: spec.x.range || xRange(shown, spec.x), y: A.range(heights, spec.y) };
    const place = A.plotArea(svg, width, height, spec, ranges);
    const spans = (spec.spans || []).map((span) => {
      const left = Math.max(place.area.left, place.x(span.from));
      const right = Math.min(place.area.right, place.x(span.to));
      return A.svg("rect", { x: left, y: place.area.top, width: Math.max(0, right - left),
        height: place.area.bottom - place.area.top, fill: A.ink(span.colour), class: "span" });
    });
    svg.prepend(...spans);
    A.levels(svg, place.area, place.y, spec.levels);
    for (const mark of spec.marks || []) {
      const x = place.x(mark.x);
      const late = x > (place.area.left + place.area.right) / 2;
      svg.append(A.svg("line", { class: "level", x1: x, x2: x, y1: place.area.top, y2: place.area.bottom,
        stroke: "var(--soft)" }),
      A.svg("text", { class: "tick", x: late ? x - 5 : x + 5, y: place.area.top + 12,
        "text-anchor": late ? "end" : "start", text: mark.name }));
    }
    for (const series of [...shown].sort((a, b) => Number(b.faint || 0) - Number(a.faint || 0))) {
      drawSeries(svg, series, place);
    }
    if (shown.length) follow(svg, place, shown, spec);
    const entries = names.map((name) => {
      const first = spec.series.find((series) => groupOf(series) === name);
      const many = spec.series.filter((series) => groupOf(series) === name).length > 1;
      return { name, colour: many ? "soft" : first.colour, dash: first.dash, faint: first.faint };
    });
    const bands = [...new Map((spec.spans || []).map((span) => [span.name, span])).values()]
      .map((span) => ({ name: span.name, colour: span.colour, block: true, fixed: true }));
    return { height, above: A.legend([...entries, ...bands], memory.hidden, again) };
  };

  function xRange(shown, axis) {
    const xs = shown.flatMap((series) => series.x);
    if (!xs.length) return [0, 1];
    let [low, high] = [xs[0], xs[0]];
    for (const x of xs) {
      low = Math.min(low, x);
      high = Math.max(high, x);
    }
    if (low === high) return axis.log ? [low / 2, high * 2] : [low - 0.5, high + 0.5];
    const air = axis.log ? 0 : (high - low) * 0.02;
    return [low - air, high + air];
  }

  A.charts.bars = (svg, width, spec, memory, again) => {
    const height = spec.height || 220;
    const shown = spec.series.filter((series) => !memory.hidden.has(series.name));
    const sums = spec.categories.map((_, n) => shown.reduce((sum, s) => sum + (s.values[n] || 0), 0));
    const count = spec.categories.length;
    const top = Math.max(...sums, 0) * 1.05 || 1;
    const every = Math.max(1, Math.ceil(count / Math.max(2, Math.floor(width / 60))));
    const frame = { ...spec, x: { ...spec.x, ticks: [] }, y: { ...spec.y, zero: true } };
    const { area, y } = A.plotArea(svg, width, height, frame, { x: [0, count], y: [0, top] });
    const room = (area.right - area.left) / count;
    const wide = Math.max(1, Math.min(42, room * 0.72));
    spec.categories.forEach((category, n) => {
      const middle = area.left + room * (n + 0.5);
      let base = 0;
      const bar = A.svg("g", {
        onpointermove: (event) => A.showTip(event, `${spec.x.label} ${category}`,
          shown.map((s) => [s.name, A.format(s.values[n], spec.y.format), s.colour])),
        onpointerleave: A.hideTip });
      for (const series of shown) {
        const value = series.values[n] || 0;
        bar.append(A.svg("rect", { x: middle - wide / 2, width: wide, y: y(base + value),
          height: Math.max(0, y(base) - y(base + value)), fill: A.ink(series.colour), rx: 1.5 }));
        base += value;
      }
      svg.append(bar);
      if (n % every === 0) {
        svg.append(A.svg("text", { class: "tick", x: middle, y: area.bottom + 16,
          "text-anchor": "middle", text: String(category) }));
      }
    });
    const entries = spec.series.map((s) => ({ name: s.name, colour: s.colour, block: true }));
    return { height, above: A.legend(entries, memory.hidden, again) };
  };
})(Atlas);
