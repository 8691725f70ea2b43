/* A document of sections becomes a page; the same for a report and for the live page. */
"use strict";
(function (A) {
  function tile(figure) {
    return A.el("div", { class: `tile ${figure.tone || ""}` },
      A.el("span", { text: figure.label }),
      A.el("b", { text: A.format(figure.value, figure.format) }),
      A.el("small", { text: figure.note || "" }));
  }

  function header(doc) {
    return A.el("header", { class: "top" },
      A.el("p", { class: "kind", text: doc.kind_words }),
      A.el("h1", { text: doc.title }),
      A.el("p", { class: "sub", text: doc.subtitle }),
      doc.headline ? A.el("p", { class: "headline", text: doc.headline }) : null,
      doc.tiles.length ? A.el("div", { class: "tiles" }, doc.tiles.map(tile)) : null,
      doc.more ? A.el("p", { class: "more", text: doc.more }) : null,
      doc.missing.length ? A.el("div", { class: "missing", role: "note" },
        A.el("b", { text: "What is missing" }),
        A.el("ul", {}, doc.missing.map((text) => A.el("li", { text })))) : null);
  }

  function facts(section) {
    return (section.texts || []).map((part) => A.el("details", { open: part.open ? true : undefined },
      A.el("summary", { text: part.title }), A.el("pre", { text: part.text })));
  }

  A.section = (section) => {
    const words = [section.title, section.sentence, section.look].filter(Boolean).join(". ");
    const charts = section.charts.map((spec, n) => {
      const key = `${section.id}/${n}`;
      const figure = A.chart(spec, key, words);
      const numbers = A.numbers(spec, key);
      if (numbers) figure.append(numbers);
      return figure;
    });
    return A.el("section", { id: section.id, "aria-labelledby": `${section.id}-title` },
      A.el("h2", { id: `${section.id}-title`, text: section.title }),
      A.el("p", { class: "sentence" }, A.el("span", { text: section.sentence }),
        section.look ? A.el("span", { class: "look", text: ` ${section.look}` }) : null),
      charts.length ? A.el("div", { class: `charts n${Math.min(charts.length, 3)}` }, charts) : null,
      ...(section.tables || []).map((table) => A.el("div", { class: "tabled" },
        table.title ? A.el("h3", { text: table.title }) : null, A.table(table, section.title))),
      section.note ? A.el("p", { class: "note", text: section.note }) : null,
      ...facts(section));
  };

  function contents(doc) {
    const chapters = [...new Set(doc.sections.map((section) => section.chapter))];
    const lists = chapters.map((chapter) => [
      A.el("li", { class: "chapter", text: chapter }),
      ...doc.sections.filter((section) => section.chapter === chapter).map((section) =>
        A.el("li", {}, A.el("a", { href: `#${section.id}`, text: section.title }))),
    ]);
    return A.el("nav", { "aria-label": "Contents" },
      A.el("details", { open: window.innerWidth > 1080 ? true : undefined },
        A.el("summary", { text: "Contents" }), A.el("ul", {}, lists)));
  }

  /** Only what has changed is drawn again, so that a reader keeps their place. */
  A.render = (doc, root) => {
    A.slots = doc.slots;
    document.title = `${doc.title} \u00b7 Atlas`;
    const outline = JSON.stringify(doc.sections.map((section) => [section.id, section.title]));
    if (root.dataset.outline !== outline) {
      root.dataset.outline = outline;
      root.replaceChildren(contents(doc), A.el("main", {}, header(doc),
        ...doc.sections.map((section) => A.el("div", { "data-section": section.id }))));
      root.drawn = new Map();
    } else {
      root.querySelector("header.top").replaceWith(header(doc));
    }
    for (const section of doc.sections) {
      const text = JSON.stringify(section);
      if (root.drawn.get(section.id) === text) continue;
      root.drawn.set(section.id, text);
      const place = [...root.querySelectorAll("[data-section]")].find((node) => node.dataset.section === section.id);
      const open = place.offsetHeight;
      place.style.minHeight = open ? `${open}px` : "";
      place.replaceChildren(A.section(section));
      requestAnimationFrame(() => requestAnimationFrame(() => { place.style.minHeight = ""; }));
    }
    root.dataset.ready = "yes";
  };

  const THEMES = ["auto", "light", "dark"];
  A.themeButton = () => {
    let now = "auto";
    try {
      now = localStorage.getItem("atlas-theme") || "auto";
    } catch (error) { /* a file of its own may not remember */ }
    const button = A.el("button", { type: "button", class: "theme", onclick: () => {
      now = THEMES[(THEMES.indexOf(now) + 1) % THEMES.length];
      try {
        localStorage.setItem("atlas-theme", now);
      } catch (error) { /* likewise */ }
      apply();
    } });
    const apply = () => {
      document.documentElement.dataset.theme = now;
      button.textContent = `Theme: ${now}`;
    };
    apply();
    return button;
  };

  A.openReport = () => {
    const doc = JSON.parse(document.getElementById("document").textContent);
    document.getElementById("bar").append(A.themeButton());
    A.render(doc, document.getElementById("page"));
    if (location.hash) {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (target) target.scrollIntoView();
    }
  };
})(Atlas);
