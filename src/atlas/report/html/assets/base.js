/* What all charts share: elements, numbers, scales, the tip beside the pointer.
   Text from run folders only ever becomes textContent, so that it shows as text whatever it is. */
"use strict";
const Atlas = { charts: {}, state: new Map() };

(function (A) {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === undefined || value === null || value === false) continue;
      if (name === "text") node.textContent = String(value);
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (name === "style") Object.assign(node.style, value);
      else node.setAttribute(name, value === true ? "" : String(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child !== null && child !== undefined) node.append(child);
    }
    return node;
  }

  A.el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  A.svg = (tag, attributes, ...children) =>
    fill(document.createElementNS(SVG, tag), attributes, children);

  /** A colour by name: a number is a slot of the palette, a word a tone such as `alone`. */
  A.ink = (colour) =>
    typeof colour === "number" ? `var(--s${colour % A.slots})` : `var(--${colour || "soft"})`;
  A.slots = 10;

  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  A.isNumber = isNumber;

  function plain(value) {
    const size = Math.abs(value);
    if (size === 0) return "0";
    if (size >= 1e6 || size < 1e-3) return value.toExponential(1).replace("e+", "e");
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return String(Number(value.toPrecision(size >= 100 ? 4 : 3)));
  }

  function bytes(count) {
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (Math.abs(count) < 1000 || unit === "GB") return `${count.toFixed(unit === "B" ? 0 : 1)} ${unit}`;
      count /= 1000;
    }
    return "";
  }

  function seconds(value) {
    if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
    if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
    return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
  }

  const FORMATS = {
    percent: (value) => `${value.toFixed(1)} %`,
    score: (value) => value.toFixed(1),
    signed: (value) => (value >= 0 ? "+" : "\u2212") + Math.abs(value).toFixed(1),
    bytes,
    seconds,
    share: (value) => value.toFixed(2),
    integer: (value) => Math.round(value).toLocaleString("en"),
  };

  A.format = (value, how) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "boolean") return value ? "yes" : "no";
    if (!isNumber(value)) return String(value);
    return (FORMATS[how] || plain)(value);
  };

  /** Values along an axis need no decimals that all of them lack. */
  A.tickText = (value, axis) =>
    axis.format === "score" || axis.format === "percent" ? plain(value) : A.format(value, axis.format);

  /** Round values between two ends, about so many. */
  A.ticks = (low, high, count, integer) => {
    const span = high - low || 1;
    const raw = span / Math.max(1, count);
    const power = 10 ** Math.floor(Math.log10(raw));
    let step = [1, 2, 2.5, 5, 10].map((n) => n * power).find((n) => n >= raw * 0.999) || raw;
    if (integer) step = Math.max(1, Math.round(step));
    const found = [];
    for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n += 1) {
      found.push(Number((n * step).toPrecision(12)));
    }
    return found;
  };

  /** Plain numbers on a logarithmic axis: 1, 2, 5, 10 and so on, thinned where they crowd. */
  A.logTicks = (low, high, count) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
      for (const lead of [1, 2, 5]) {
        const value = lead * 10 ** power;
        if (value >= low * 0.999 && value <= high * 1.001) found.push(Number(value.toPrecision(6)));
      }
    }
    const tens = found.filter((value) => Number.isInteger(Math.round(Math.log10(value) * 1e6) / 1e6));
    if (found.length > count && tens.length >= 2) {
      const every = Math.ceil(tens.length / count);
      return tens.filter((_, place) => place % every === 0);
    }
    return found.length >= 2 ? found : A.ticks(low, high, count);
  };

  /** From values to places; `range` is [low, high] of the values, `ends` where these lie. */
  A.scale = (range, ends, log) => {
    const turn = log ? Math.log10 : (value) => value;
    const [low, high] = range.map(turn);
    const over = high - low || 1;
    return (value) => ends[0] + ((turn(value) - low) / over) * (ends[1] - ends[0]);
  };

  /** The ends of an axis for some values, with air around them. */
  A.range = (values, axis) => {
    const known = values.filter((value) => isNumber(value) && (!axis.log || value > 0));
    if (!known.length) return axis.log ? [1, 10] : [0, 1];
    let low = Math.min(...known.map((v) => v));
    let high = Math.max(...known.map((v) => v));
    if (axis.log) return low === high ? [low / 2, high * 2] : [low / 1.08, high * 1.08];
    const air = low === high ? Math.abs(low) * 0.05 || 0.5 : (high - low) * 0.06;
    const least = axis.span || 0;
    if (high - low < least) {
      const middle = (low + high) / 2;
      low = middle - least / 2;
      high = middle + least / 2;
    }
    low -= air;
    high += air;
    if (isNumber(axis.min)) low = Math.min(Math.max(low, axis.min), Math.min(...known));
    if (isNumber(axis.max)) high = Math.max(Math.min(high, axis.max), Math.max(...known));
    if (axis.zero) low = Math.min(low, 0);
    return [low, high];
  };

  /** Width of a text in the charts' small print. */
  let ruler = null;
  A.textWidth = (text) => {
    if (!ruler) {
      ruler = document.createElement("canvas").getContext("2d");
      ruler.font = "12px system-ui, sans-serif";
    }
    return ruler.measureText(text).width;
  };
  A.cut = (text, width) => {
    if (A.textWidth(text) <= width) return text;
    let kept = text;
    while (kept.length > 1 && A.textWidth(`${kept}\u2026`) > width) kept = kept.slice(0, -1);
    return `${kept}\u2026`;
  };

  const tip = () => {
    let node = document.getElementById("tip");
    if (!node) {
      node = A.el("div", { id: "tip", role: "status" });
      document.body.append(node);
    }
    return node;
  };
  /** Lines beside the pointer: [words, value, colour]; the first line is a title. */
  A.showTip = (event, title, lines) => {
    const node = tip();
    node.replaceChildren(
      A.el("b", { text: title }),
      ...lines.map(([words, value, colour]) =>
        A.el("div", {},
          colour === undefined ? null : A.el("i", { style: { background: A.ink(colour) } }),
          A.el("span", { text: words }), A.el("em", { text: value }))));
    node.classList.add("on");
    const box = node.getBoundingClientRect();
    const left = event.clientX + 14 + box.width > window.innerWidth
      ? Math.max(4, event.clientX - box.width - 14) : event.clientX + 14;
    const top = Math.min(event.clientY + 12, window.innerHeight - box.height - 4);
    node.style.left = `${left}px`;
    node.style.top = `${Math.max(4, top)}px`;
  };
  A.hideTip = () => tip().classList.remove("on");

  const SHAPES = {
    circle: (r) => `M${-r},0a${r},${r} 0 1,0 ${2 * r},0a${r},${r} 0 1,0 ${-2 * r},0`,
    square: (r) => `M${-r * 0.9},${-r * 0.9}h${1.8 * r}v${1.8 * r}h${-1.8 * r}z`,
    up: (r) => `M0,${-1.2 * r}L${1.1 * r},${0.8 * r}H${-1.1 * r}z`,
    diamond: (r) => `M0,${-1.3 * r}L${1.1 * r},0L0,${1.3 * r}L${-1.1 * r},0z`,
    down: (r) => `M0,${1.2 * r}L${1.1 * r},${-0.8 * r}H${-1.1 * r}z`,
    plus: (r) => `M${-r / 3},${-r}h${r / 1.5}v${r / 1.5}h${r / 1.5}v${r / 1.5}h${-r / 1.5}v${r / 1.5}h${-r / 1.5}v${-r / 1.5}h${-r / 1.5}v${-r / 1.5}h${r / 1.5}z`,
    bar: (r) => `M-1.2,${-1.5 * r}h2.4v${3 * r}h-2.4z`,
  };
  A.shapes = Object.keys(SHAPES);
  A.mark = (shape, radius) => (SHAPES[shape] || SHAPES.circle)(radius);
})(Atlas);
