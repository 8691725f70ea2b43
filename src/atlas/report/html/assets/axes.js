/* Axes, legends and the frame that draws a chart again whenever its width changes. */
"use strict";
(function (A) {
  const TICK = 12;

  /** Bottom axis: ticks with their values, and its name. */
  function bottom(svg, area, axis, place, ticks) {
    const room = (area.right - area.left) / Math.max(1, ticks.length);
    const widest = Math.max(...ticks.map((value) => A.textWidth(A.tickText(value, axis))), 1);
    const every = Math.max(1, Math.ceil((widest + 10) / Math.max(room, 1)));
    ticks.forEach((value, number) => {
      const x = place(value);
      svg.append(A.svg("line", { class: "grid faint", x1: x, x2: x, y1: area.top, y2: area.bottom }));
      if (number % every) return;
      svg.append(A.svg("text", { class: "tick", x, y: area.bottom + 16, "text-anchor": "middle",
        text: A.tickText(value, axis) }));
    });
    if (axis.label) {
      svg.append(A.svg("text", { class: "axis", x: (area.left + area.right) / 2, y: area.bottom + 34,
        "text-anchor": "middle", text: axis.label }));
    }
  }

  /** Left axis: lines across, with their values. */
  function left(svg, area, axis, place, ticks) {
    for (const value of ticks) {
      const y = place(value);
      svg.append(A.svg("line", { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y }));
      svg.append(A.svg("text", { class: "tick", x: area.left - 8, y: y + 4, "text-anchor": "end",
        text: A.tickText(value, axis) }));
    }
    if (axis.label) {
      svg.append(A.svg("text", { class: "axis", x: 2, y: 12, text: axis.label }));
    }
  }

  A.axisTicks = (axis, range, count) => {
    const at = (many) => (axis.log ? A.logTicks(range[0], range[1], many)
      : A.ticks(range[0], range[1], many, axis.integer));
    const found = at(count);
    return found.length > 1 ? found : at(count * 2);
  };

  /** Both axes of a plot of values; returns where values lie. */
  A.plotArea = (svg, width, height, spec, ranges) => {
    const ticks = {
      x: spec.x.ticks || A.axisTicks(spec.x, ranges.x, Math.max(2, Math.floor(width / 90))),
      y: spec.y.ticks || A.axisTicks(spec.y, ranges.y, Math.max(3, Math.floor(height / 55))),
    };
    const wide = Math.max(...ticks.y.map((value) => A.textWidth(A.tickText(value, spec.y))), 8);
    const area = { left: wide + 14, right: width - 12, top: spec.y.label ? 24 : 10,
      bottom: height - (spec.x.label ? 42 : 24) };
    const x = A.scale(ranges.x, [area.left, area.right], spec.x.log);
    const y = A.scale(ranges.y, [area.bottom, area.top], spec.y.log);
    left(svg, area, spec.y, y, ticks.y);
    bottom(svg, area, spec.x, x, ticks.x);
    return { area, x, y };
  };

  /** Levels across a plot: a line with its name at the right end, above or below the line. */
  A.levels = (svg, area, y, levels) => {
    let before = Infinity;
    for (const level of [...(levels || [])].sort((a, b) => a.value - b.value)) {
      const at = y(level.value);
      if (at < area.top - 1 || at > area.bottom + 1) continue;
      svg.append(A.svg("line", { class: "level", x1: area.left, x2: area.right, y1: at, y2: at,
        stroke: A.ink(level.colour) }));
      if (before - at > TICK) {
        svg.append(A.svg("text", { class: "tick", x: area.right, y: at - 4, "text-anchor": "end",
          fill: A.ink(level.colour), text: level.name }));
      }
      before = at;
    }
  };

  /** Entries that can be switched off; each is a button, so that keys work as well. */
  A.legend = (entries, hidden, changed) => {
    if (entries.length < 2 && !(entries[0] && entries[0].always)) return null;
    return A.el("div", { class: "legend" }, entries.map((entry) => {
      const key = A.svg("svg", { width: 18, height: 12, "aria-hidden": "true" });
      if (entry.shape) {
        key.append(A.svg("path", { d: A.mark(entry.shape, 4.5), transform: "translate(9 6)",
          fill: entry.hollow ? "none" : A.ink(entry.colour), stroke: A.ink(entry.colour) }));
      } else if (entry.block) {
        key.append(A.svg("rect", { x: 3, y: 1, width: 12, height: 10, rx: 2, fill: A.ink(entry.colour),
          opacity: entry.fixed ? 0.4 : undefined }));
      } else {
        key.append(A.svg("line", { x1: 1, x2: 17, y1: 6, y2: 6, stroke: A.ink(entry.colour),
          "stroke-width": entry.faint ? 1 : 2.4, "stroke-dasharray": entry.dash ? "5 3" : undefined,
          opacity: entry.faint ? 0.6 : undefined }));
      }
      const fixed = !changed || entry.fixed;
      return A.el(fixed ? "span" : "button", {
        type: fixed ? undefined : "button",
        "aria-pressed": fixed ? undefined : String(!hidden.has(entry.name)),
        title: fixed ? undefined : "show or hide",
        onclick: fixed ? undefined : () => {
          if (hidden.has(entry.name)) hidden.delete(entry.name);
          else hidden.add(entry.name);
          changed();
        },
      }, key, A.el("span", { text: entry.name }));
    }));
  };

  /** What is remembered of a chart between drawings: hidden lines, the slider. */
  A.remembered = (key, spec) => {
    if (!A.state.has(key)) A.state.set(key, { hidden: new Set(spec.hidden), frame: null });
    return A.state.get(key);
  };

  /** A chart in a figure that follows the width it has. */
  A.chart = (spec, key, words) => {
    const draw = A.charts[spec.type];
    const body = A.el("div", { class: "plot" });
    const figure = A.el("figure", { class: [spec.wide ? "wide" : "", spec.equal ? "narrow" : ""].join(" ").trim() },
      spec.title ? A.el("figcaption", { text: spec.title }) : null, body);
    if (!draw) {
      body.textContent = `no chart of the kind ${spec.type}`;
      return figure;
    }
    let width = 0;
    const again = () => {
      if (!width) return;
      const svg = A.svg("svg", { role: "img", "aria-label": spec.alt || words });
      const around = draw(svg, width, spec, A.remembered(key, spec), again) || {};
      svg.setAttribute("viewBox", `0 0 ${width} ${around.height}`);
      svg.setAttribute("height", around.height);
      const kept = body.firstChild;
      const parts = [around.above, svg, around.below].filter(Boolean);
      if (kept && kept === around.above) {
        while (kept.nextSibling) kept.nextSibling.remove();
        body.append(...parts.slice(1));
      } else {
        body.replaceChildren(...parts);
      }
    };
    new ResizeObserver((entries) => {
      const now = Math.floor(entries[0].contentRect.width);
      if (now && now !== width) {
        width = now;
        again();
      }
    }).observe(body);
    return figure;
  };
})(Atlas);
