/* The live page: a list of runs, one run as it goes on, several side by side. */
"use strict";
(function (A) {
  const asked = new URLSearchParams(location.search).getAll("run");
  const bar = document.getElementById("bar");
  const list = document.getElementById("list");
  const strip = document.getElementById("strip");
  const page = document.getElementById("page");
  const EVERY = 2500;
  const chosen = new Set();
  let filter = "";

  bar.append(A.themeButton());

  const address = (ids) => `/run?${ids.map((id) => `run=${encodeURIComponent(id)}`).join("&")}`;
  const state = (name) => A.el("span", { class: `state ${name}`, text: name });

  async function get(url) {
    const answer = await fetch(url);
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error ? told.error.message : `${answer.status}`);
    return told;
  }

  /* ---- the list ---- */

  function row(run, changed) {
    const box = A.el("input", { type: "checkbox", "aria-label": `choose ${run.id}`, onchange: (event) => {
      if (event.target.checked) chosen.add(run.id);
      else chosen.delete(run.id);
      changed();
    } });
    box.checked = chosen.has(run.id);
    box.disabled = run.kind === "study" || run.state === "unreadable";
    const bare = run.state === "finished" ? null : run.told;
    return A.el("tr", { "data-run": run.id },
      A.el("td", {}, box),
      A.el("th", { scope: "row" }, A.el("a", { href: address([run.id]), text: run.id }),
        bare && run.state === "unreadable" ? A.el("div", { class: "why", text: bare }) : null),
      A.el("td", {}, state(run.state)),
      A.el("td", { class: "wide-only", text: [run.kind, run.what].filter(Boolean).join(" \u00b7 ") }),
      A.el("td", { class: "wide-only" }, run.rounds ? A.el("progress", { max: run.rounds, value: run.done,
        title: `${run.done} of ${run.rounds}`, "aria-label": `${run.done} of ${run.rounds}` }) : null),
      A.el("td", { class: "n", text: A.format(run.score, "score") }),
      A.el("td", { class: `n ${run.gain > 0.05 ? "up" : run.gain < -0.05 ? "down" : ""}`, text: A.format(run.gain, "signed") }),
      A.el("td", { class: "n wide-only", text: A.format(run.seconds, "seconds") }),
      A.el("td", { class: "n wide-only", text: new Date(run.changed * 1000).toLocaleString() }));
  }

  function drawList(found) {
    const body = A.el("tbody", {});
    const compare = A.el("button", { type: "button", id: "compare", onclick: () => {
      location.href = address([...chosen]);
    } });
    const fill = () => {
      const shown = found.runs.filter((run) => `${run.id} ${run.what} ${run.state}`.includes(filter));
      body.replaceChildren(...shown.map((run) => row(run, fill)));
      compare.textContent = chosen.size > 1 ? `Compare ${chosen.size} runs` : "Choose runs to compare";
      compare.disabled = chosen.size < 2 || chosen.size > 8;
    };
    const search = A.el("input", { type: "search", placeholder: "Filter by name, strategy or state",
      "aria-label": "filter", value: filter, oninput: (event) => {
        filter = event.target.value;
        fill();
      } });
    const heads = [["", ""], ["run", ""], ["state", ""], ["what", "wide-only"], ["rounds", "wide-only"], ["score", "n"],
      ["gain", "n"], ["time", "n wide-only"], ["changed", "n wide-only"]];
    const focused = document.activeElement && document.activeElement.type === "search";
    list.replaceChildren(A.el("h1", { text: "Runs" }), A.el("p", { class: "sub", text: found.root }),
      A.el("div", { class: "tools" }, search, compare),
      found.runs.length
        ? A.el("div", { class: "card" }, A.el("table", {}, A.el("thead", {}, A.el("tr", {},
          heads.map(([name, kind]) => A.el("th", { scope: "col", class: kind, text: name })))), body))
        : A.el("p", { class: "empty", text: "No runs here yet. Start one: atlas run demo" }));
    fill();
    if (focused) {
      search.focus();
      search.setSelectionRange(filter.length, filter.length);
    }
    list.dataset.ready = "yes";
  }

  async function keepListing() {
    let before = "";
    for (;;) {
      try {
        const found = await get("/api/runs");
        const text = JSON.stringify(found);
        if (text !== before) drawList(found);
        before = text;
      } catch (error) {
        lost(error);
      }
      await new Promise((done) => { setTimeout(done, EVERY); });
    }
  }

  /* ---- one run, or several ---- */

  const parts = { state: A.el("span", {}), done: A.el("span", {}), bar: A.el("progress", {}),
    left: A.el("span", { class: "left" }), alerts: A.el("details", {}) };

  function drawProgress(now) {
    strip.hidden = false;
    if (!strip.childNodes.length) strip.append(parts.state, parts.done, parts.bar, parts.left, parts.alerts);
    parts.state.replaceChildren(state(now.state));
    parts.done.textContent = now.rounds ? `round ${now.done} of ${now.rounds}` : "";
    parts.bar.hidden = !now.rounds;
    parts.bar.max = now.rounds || 1;
    parts.bar.value = now.done;
    parts.left.textContent = now.state !== "running" ? ""
      : now.left === null ? now.doing : `about ${A.format(now.left, "seconds")} left \u00b7 ${now.doing}`;
    parts.alerts.hidden = !now.alerts.length;
    parts.alerts.replaceChildren(A.el("summary", { text: `Alerts (${now.alerts.length})` }),
      A.el("ul", {}, now.alerts.map((text) => A.el("li", { text }))));
    strip.dataset.state = now.state;
  }

  function lost(error) {
    strip.hidden = false;
    strip.replaceChildren(A.el("span", { class: "state lost", text: `not reached: ${error.message}` }));
  }

  /** Draws what there is; while it is being fetched, at most one more is asked for. */
  let busy = false;
  let again = false;
  async function draw() {
    if (busy) {
      again = true;
      return;
    }
    busy = true;
    try {
      const query = asked.map((id) => `run=${encodeURIComponent(id)}`).join("&");
      A.render(await get(`/api/document?${query}`), page);
      page.dataset.drawn = String(Number(page.dataset.drawn || 0) + 1);
    } catch (error) {
      page.replaceChildren(A.el("main", {}, A.el("h1", { text: "This cannot be shown" }),
        A.el("p", { class: "missing", text: error.message }), A.el("a", { href: "/", text: "All runs" })));
      page.dataset.ready = "failed";
    }
    await new Promise((done) => { setTimeout(done, 1000); });
    busy = false;
    if (again) {
      again = false;
      draw();
    }
  }

  function follow(id) {
    const line = new EventSource(`/api/follow?run=${encodeURIComponent(id)}`);
    line.addEventListener("progress", (event) => {
      if (asked.length === 1) drawProgress(JSON.parse(event.data));
      draw();
    });
    line.addEventListener("end", () => line.close());
  }

  bar.insertBefore(A.el("a", { class: "button", href: "/", text: "All runs" }), bar.lastChild);
  if (asked.length) {
    draw();
    asked.forEach(follow);
  } else {
    keepListing();
  }
})(Atlas);
