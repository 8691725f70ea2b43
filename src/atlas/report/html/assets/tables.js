/* Tables: those of a section, and the numbers behind every chart. */
"use strict";
(function (A) {
  const MOST_ROWS = 400;

  /** A table from {columns: [{name, format, colour}], rows: [[...]]}; numbers stand right. */
  A.table = (table, words) => {
    const text = (column) => column.format === "text" || !column.format;
    const head = A.el("tr", {}, table.columns.map((column) =>
      A.el("th", { scope: "col", class: text(column) ? "" : "n", title: column.help, text: column.name })));
    const rows = table.rows.slice(0, MOST_ROWS).map((row) => {
      const strong = table.strong && table.strong.includes(row[0]);
      return A.el("tr", { class: strong ? "strong" : "" }, row.map((value, n) => cell(table.columns[n], value, n)));
    });
    const more = table.rows.length - MOST_ROWS;
    return A.el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": words || "table" },
      A.el("table", { class: table.columns.length <= 3 ? "few" : "" }, A.el("thead", {}, head), A.el("tbody", {}, rows)),
      more > 0 ? A.el("p", { class: "note", text: `${more} more rows are in the run folder` }) : null);
  };

  function cell(column, value, n) {
    const text = column.format === "text" || !column.format;
    const tag = n === 0 ? "th" : "td";
    const classes = [text ? "" : "n"];
    if (column.format === "signed" && A.isNumber(value)) {
      classes.push(Math.abs(value) < 0.05 ? "" : value > 0 ? "up" : "down");
    }
    if (value && typeof value === "object") {
      return A.el(tag, { scope: n === 0 ? "row" : undefined, class: classes.join(" ") },
        A.el("i", { class: "dot", style: { background: A.ink(value.colour) } }), A.el("span", { text: value.text }));
    }
    return A.el(tag, { scope: n === 0 ? "row" : undefined, class: classes.join(" "), text: A.format(value, column.format) });
  }

  const plainColumn = (name, format) => ({ name, format: format || "number" });

  const BEHIND = {
    line(spec) {
      const xs = [...new Set(spec.series.flatMap((s) => s.x))].sort((a, b) => a - b);
      const columns = [plainColumn(spec.x.label || "x", spec.x.format || "integer")];
      for (const s of spec.series) {
        columns.push(plainColumn(s.name, spec.y.format));
        if (s.low) columns.push(plainColumn(`${s.name}, least`, spec.y.format), plainColumn(`${s.name}, most`, spec.y.format));
      }
      const rows = xs.map((x) => [x, ...spec.series.flatMap((s) => {
        const n = s.x.indexOf(x);
        const at = (values) => (n < 0 ? null : values[n]);
        return s.low ? [at(s.y), at(s.low), at(s.high)] : [at(s.y)];
      })]);
      return { columns, rows };
    },
    bars: (spec) => ({
      columns: [plainColumn(spec.x.label, "text"), ...spec.series.map((s) => plainColumn(s.name, spec.y.format))],
      rows: spec.categories.map((name, n) => [String(name), ...spec.series.map((s) => s.values[n])]),
    }),
    dots(spec) {
      const columns = [plainColumn("", "text")];
      for (const s of spec.series) {
        columns.push(plainColumn(s.name, spec.x.format));
        if (s.low) columns.push(plainColumn(`${s.name}, from`, spec.x.format), plainColumn("to", spec.x.format));
      }
      const rows = spec.rows.map((name, n) => [name, ...spec.series.flatMap((s) =>
        s.low ? [s.values[n], s.low[n], s.high[n]] : [s.values[n]])]);
      return { columns, rows };
    },
    scatter(spec) {
      const extra = (spec.points[0] && spec.points[0].lines) || [];
      return {
        columns: [plainColumn("", "text"), plainColumn(spec.x.label || "x", spec.x.format),
          plainColumn(spec.y.label || "y", spec.y.format), ...extra.map(([name, value, how]) =>
            plainColumn(name, typeof value === "number" ? how : "text"))],
        rows: spec.points.map((p) => [p.name, p.x, p.y, ...(p.lines || []).map((line) => line[1])]),
      };
    },
    heatmap(spec, memory) {
      const frame = spec.frames[memory.frame === null ? spec.frames.length - 1 : memory.frame];
      const how = spec.palette === "mask" ? undefined : spec.format || "number";
      return {
        columns: [plainColumn(spec.frames.length > 1 ? frame.name : "", "text"),
          ...spec.columns.map((name) => plainColumn(String(name), how || "number"))],
        rows: spec.rows.map((name, r) => [String(name), ...frame.values[r]]),
      };
    },
  };

  /** The numbers behind a chart, made when they are asked for. */
  A.numbers = (spec, key) => {
    const make = BEHIND[spec.type];
    if (!make) return null;
    const memory = A.remembered(key, spec);
    const holder = A.el("div", {});
    const node = A.el("details", { class: "numbers", open: memory.open ? true : undefined },
      A.el("summary", { text: "Numbers" }), holder);
    const build = () => {
      if (!node.open) return;
      const table = make(spec, memory);
      holder.replaceChildren(A.el("button", { type: "button", class: "copy", text: "Copy as CSV",
        onclick: (event) => copy(table, event.target) }), A.table(table, spec.title || "numbers"));
    };
    node.addEventListener("toggle", () => {
      memory.open = node.open;
      build();
    });
    build();
    return node;
  };

  function copy(table, button) {
    const quote = (value) => `"${String(value === null || value === undefined ? "" : value).replaceAll('"', '""')}"`;
    const lines = [table.columns.map((column) => column.name), ...table.rows];
    const text = lines.map((row) => row.map(quote).join(",")).join("\n");
    const done = () => { button.textContent = "Copied"; };
    const failed = () => { button.textContent = "The browser does not allow it"; };
    if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, failed);
    else failed();
  }
})(Atlas);
