/* Heatmaps, with a slider where there are several in time. */
"use strict";
(function (A) {
  const MOST_RECTS = 4500;
  const MOST_NUMBERS = 14;
  /* Cividis, which looks alike to nearly everybody, at nine places. */
  const RAMP = [[0, 32, 77], [0, 51, 111], [57, 72, 108], [87, 93, 109], [112, 113, 115],
    [138, 134, 120], [166, 156, 117], [197, 180, 107], [255, 233, 69]];

  function colourAt(share) {
    const place = Math.min(1, Math.max(0, share)) * (RAMP.length - 1);
    const low = Math.min(RAMP.length - 2, Math.floor(place));
    const part = place - low;
    return RAMP[low].map((value, n) => Math.round(value + part * (RAMP[low + 1][n] - value)));
  }
  const css = (colour) => `rgb(${colour.join(",")})`;
  const isDark = (colour) => 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 140;

  function shareOf(spec, value) {
    if (spec.log) return (Math.log(value) - Math.log(spec.low)) / (Math.log(spec.high) - Math.log(spec.low) || 1);
    return (value - spec.low) / (spec.high - spec.low || 1);
  }

  /** Rows and columns as a picture: thousands of rectangles would be slow. */
  function picture(spec, values, area) {
    const canvas = document.createElement("canvas");
    canvas.width = spec.columns.length;
    canvas.height = spec.rows.length;
    const pen = canvas.getContext("2d");
    values.forEach((row, r) => row.forEach((value, c) => {
      pen.fillStyle = A.isNumber(value) ? css(colourAt(shareOf(spec, value))) : "#8888";
      pen.fillRect(c, r, 1, 1);
    }));
    return A.svg("image", { href: canvas.toDataURL(), x: area.left, y: area.top, class: "pixels",
      width: area.right - area.left, height: area.bottom - area.top, preserveAspectRatio: "none" });
  }

  function cells(spec, values, area, size) {
    const group = A.svg("g", {});
    const gap = Math.min(size.x, size.y) > 9 ? 1 : 0;
    const numbers = spec.columns.length <= MOST_NUMBERS && size.x >= 27 && size.y >= 15 && spec.palette !== "mask";
    values.forEach((row, r) => row.forEach((value, c) => {
      const [x, y] = [area.left + c * size.x, area.top + r * size.y];
      let fill = "var(--none)";
      let colour = null;
      if (A.isNumber(value)) {
        colour = colourAt(shareOf(spec, value));
        fill = spec.palette === "mask" ? (value ? "var(--s0)" : "var(--shut)") : css(colour);
        if (spec.zero && value === 0) {
          fill = "var(--shut)";
          colour = null;
        }
      }
      group.append(A.svg("rect", { x, y, width: Math.max(0.3, size.x - gap), height: Math.max(0.3, size.y - gap), fill }));
      if (numbers && colour) {
        group.append(A.svg("text", { class: "cell", x: x + size.x / 2, y: y + size.y / 2 + 4,
          "text-anchor": "middle", fill: isDark(colour) ? "#fff" : "#111", text: A.format(value, spec.format) }));
      }
    }));
    return group;
  }

  function names(svg, spec, area, size) {
    const rowsEvery = Math.max(1, Math.ceil(13 / size.y));
    spec.rows.forEach((name, r) => {
      if (r % rowsEvery) return;
      svg.append(A.svg("text", { class: "name", x: area.left - 6, y: area.top + (r + 0.5) * size.y + 4,
        "text-anchor": "end", fill: spec.rowColours ? A.ink(spec.rowColours[r]) : undefined,
        text: A.cut(String(name), area.left - 10) }));
    });
    const flat = spec.columns.every((name) => A.textWidth(String(name)) < size.x - 2) || spec.numeric;
    const widest = Math.max(...spec.columns.map((name) => A.textWidth(String(name))), 1);
    const every = Math.max(1, Math.ceil((flat ? widest + 8 : 13) / size.x));
    spec.columns.forEach((name, c) => {
      if (c % every) return;
      const x = area.left + (c + 0.5) * size.x;
      const y = area.bottom + (flat ? 15 : 8);
      svg.append(A.svg("text", { class: "name", x, y, "text-anchor": flat ? "middle" : "end",
        transform: flat ? undefined : `rotate(-60 ${x} ${y})`,
        fill: spec.columnColours ? A.ink(spec.columnColours[c]) : undefined, text: A.cut(String(name), 110) }));
    });
    return flat ? 22 : Math.min(110, widest) * 0.87 + 14;
  }

  function borders(svg, spec, area, size) {
    for (const place of spec.borders || []) {
      const y = area.top + place * size.y - 0.5;
      svg.append(A.svg("line", { class: "cut", x1: area.left, x2: area.right, y1: y, y2: y }));
      if (!spec.square) continue;
      const x = area.left + place * size.x - 0.5;
      svg.append(A.svg("line", { class: "cut", x1: x, x2: x, y1: area.top, y2: area.bottom }));
    }
  }

  function follow(svg, spec, values, area, size) {
    svg.append(A.svg("rect", { x: area.left, y: area.top, width: area.right - area.left,
      height: area.bottom - area.top, fill: "transparent",
      onpointermove: (event) => {
        const box = svg.getBoundingClientRect();
        const scale = svg.viewBox.baseVal.width / box.width;
        const c = Math.floor(((event.clientX - box.left) * scale - area.left) / size.x);
        const r = Math.floor(((event.clientY - box.top) * scale - area.top) / size.y);
        if (!values[r] || values[r][c] === undefined) return;
        const value = spec.palette === "mask" ? (values[r][c] ? "travels" : "stays") : A.format(values[r][c], spec.format);
        A.showTip(event, String(spec.rows[r]), [[`${spec.xlabel || ""} ${spec.columns[c]}`.trim(), value || "none"]]);
      },
      onpointerleave: A.hideTip }));
  }

  function key(spec) {
    if (spec.palette === "mask") return null;
    const stops = Array.from({ length: 9 }, (_, n) => css(colourAt(n / 8))).join(",");
    return A.el("div", { class: "ramp" }, A.el("span", { text: A.format(spec.low, spec.format) }),
      A.el("i", { style: { background: `linear-gradient(90deg,${stops})` } }),
      A.el("span", { text: A.format(spec.high, spec.format) + (spec.beyond ? " and more" : "") }),
      A.el("span", { text: spec.label || "" }));
  }

  /** Kept from drawing to drawing: a slider that is replaced while it is dragged lets go. */
  function slider(spec, memory, again) {
    const last = spec.frames.length - 1;
    if (last < 1) return null;
    const now = memory.frame === null ? last : Math.min(memory.frame, last);
    if (!memory.slider || memory.slider.frames !== spec.frames) {
      const words = A.el("span", {});
      const input = A.el("input", { type: "range", min: 0, max: last, step: 1,
        "aria-label": spec.slider || "round",
        oninput: () => {
          memory.frame = Number(input.value) === last ? null : Number(input.value);
          again();
        } });
      memory.slider = { frames: spec.frames, input, words,
        node: A.el("div", { class: "slider" }, A.el("label", {}, words, input)) };
    }
    const { input, words, node } = memory.slider;
    input.value = now;
    input.setAttribute("aria-valuetext", spec.frames[now].name);
    words.textContent = spec.frames[now].name;
    return node;
  }

  A.charts.heatmap = (svg, width, spec, memory, again) => {
    const frame = memory.frame === null ? spec.frames.length - 1 : Math.min(memory.frame, spec.frames.length - 1);
    const { values } = spec.frames[frame];
    const label = Math.min(Math.max(...spec.rows.map((name) => A.textWidth(String(name))), 14) + 12, width * 0.34);
    const most = spec.square ? (spec.columns.length <= 14 ? 44 : 30) : spec.columns.length <= 4 ? 110 : 64;
    const size = { x: Math.min((width - label - 8) / spec.columns.length, spec.fill ? Infinity : most) };
    size.y = spec.square ? size.x : Math.min(26, Math.max(3, (spec.tall || 320) / spec.rows.length));
    const area = { left: label, top: 6, right: label + size.x * spec.columns.length };
    area.bottom = area.top + size.y * spec.rows.length;
    const many = spec.columns.length * spec.rows.length > MOST_RECTS;
    svg.append(many ? picture(spec, values, area) : cells(spec, values, area, size));
    const below = names(svg, spec, area, size);
    borders(svg, spec, area, size);
    follow(svg, spec, values, area, size);
    if (spec.xlabel) {
      svg.append(A.svg("text", { class: "axis", x: (area.left + area.right) / 2, y: area.bottom + below + 12,
        "text-anchor": "middle", text: spec.xlabel }));
    }
    return { height: area.bottom + below + (spec.xlabel ? 18 : 2),
      above: slider(spec, memory, again), below: key(spec) };
  };
})(Atlas);
