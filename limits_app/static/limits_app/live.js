// Asks every two seconds what was counted; two answers make a rate. Nothing is asked while nobody looks.
"use strict";

(() => {
  const EVERY = 2000;
  const POINTS = 60;
  const SVG = "http://www.w3.org/2000/svg";

  const { url, labels } = JSON.parse(document.getElementById("limits-live-settings").textContent);
  const element = (name) => document.getElementById(`limits-live-${name}`);
  const [key, pause, status, problem, tightest] = ["key", "pause", "status", "problem", "tightest"].map(element);

  const { draw, options, scale } = window.limitsCharts;
  const line = (label) => ({ label, data: [], pointRadius: 0, borderWidth: 2, tension: 0.25, fill: false });
  const chart = draw(element("chart"), {
    type: "line",
    data: { labels: [], datasets: [line(labels.admitted), line(labels.refused)] },
    options: options({ x: { ...scale(""), grid: { display: false } }, y: scale("", { suggestedMax: 1 }) }),
  });

  let last = null;
  let paused = false;
  let asking = false;

  const say = (text, isLive) => {
    status.classList.toggle("limits-chip--on", isLive);
    if (status.textContent !== text) status.textContent = text;
  };

  const total = (state, what) =>
    Object.entries(state.totals).reduce((sum, [name, of]) => (key.value === "" || key.value === name ? sum + of[what] : sum), 0);

  // What was counted may go back when an hour leaves the two that are looked at, or amounts are given back.
  const rate = (state, what) => Math.max((total(state, what) - total(last, what)) / (state.at - last.at), 0);

  const shown = (number) =>
    number === null ? "-" : number.toLocaleString(document.documentElement.lang, { maximumFractionDigits: 1 });

  const move = (state) => {
    // Refusals of different limits can be added up, what they admit cannot.
    const rates = {
      admitted: key.value === "" || !state.known ? null : rate(state, "admitted"),
      refused: state.known ? rate(state, "refused") : null,
    };
    element("admitted").textContent = shown(rates.admitted);
    element("refused").textContent = shown(rates.refused);
    chart.data.labels.push(new Date(state.at * 1000).toLocaleTimeString(document.documentElement.lang));
    chart.data.datasets[0].data.push(rates.admitted);
    chart.data.datasets[1].data.push(rates.refused);
    for (const list of [chart.data.labels, ...chart.data.datasets.map(({ data }) => data)]) {
      if (list.length > POINTS) list.shift();
    }
    chart.update("none");
  };

  const offer = (names) => {
    const there = new Set([...key.options].map((option) => option.value));
    names.filter((name) => !there.has(name)).forEach((name) => key.add(new Option(name === "call_count" ? labels.calls : name, name)));
    if (!last && there.size === 1 && names.length) key.value = names.includes("call_count") ? "call_count" : names[0];
  };

  const node = (name, text, ...children) => {
    const made = document.createElement(name);
    if (text) made.textContent = text;
    made.append(...children);
    return made;
  };

  const bar = (limit) => {
    const svg = document.createElementNS(SVG, "svg");
    const rect = document.createElementNS(SVG, "rect");
    const given = { class: `limits-bar limits-bar--${limit.level}`, viewBox: "0 0 100 1", preserveAspectRatio: "none" };
    Object.entries({ ...given, "aria-hidden": "true", focusable: "false" }).forEach(([name, value]) => svg.setAttribute(name, value));
    rect.setAttribute("width", limit.width);
    rect.setAttribute("height", 1);
    svg.append(rect);
    const said = labels.of.replace("%(used)s", limit.used).replace("%(capacity)s", limit.capacity).replace("%(left)s", limit.left);
    const figures = node("span", limit.in_slices ? `${said}, ${limit.in_slices}` : said);
    figures.className = "limits-figures";
    const gauge = node("span", "", svg, figures);
    gauge.className = "limits-gauge";
    return gauge;
  };

  const row = (limit) => {
    const name = node("th");
    name.scope = "row";
    const link = limit.explain ? node("a", limit.key) : node("span", limit.key);
    if (limit.explain) link.href = limit.explain;
    name.append(link);
    const entity = node("td", limit.entity);
    if (limit.block) {
      const block = node("a", labels.block);
      block.href = limit.block;
      block.className = "limits-why";
      block.setAttribute("aria-label", `${labels.block} ${limit.entity}`);
      entity.append(" ", block);
    }
    return node("tr", "", name, node("td", limit.resource), entity, node("td", "", bar(limit)));
  };

  const list = (state) => {
    problem.hidden = state.known && state.tightest.length > 0;
    problem.textContent = state.known ? labels.none : labels.unknown;
    if (!tightest.contains(document.activeElement)) tightest.replaceChildren(...state.tightest.map(row));
  };

  const take = (state) => {
    offer(Object.keys(state.totals));
    if (last) move(state);
    list(state);
    last = state;
    say(state.known ? labels.live : labels.down, state.known);
  };

  const heard = async () => {
    const answer = await fetch(url, { headers: { Accept: "application/json" }, redirect: "error" });
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.json();
  };

  // One request at a time; what it answers after a pause began is not shown.
  const ask = async () => {
    if (asking || paused || document.hidden) return;
    asking = true;
    const state = await heard().catch(() => null);
    asking = false;
    if (paused) return;
    if (state) take(state);
    else say(labels.lost, false);
  };

  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    if (paused) say(labels.paused, false);
    last = null;
    ask();
  });

  key.addEventListener("change", () => {
    [chart.data.labels, ...chart.data.datasets.map(({ data }) => data)].forEach((one) => one.splice(0, one.length));
    chart.update("none");
  });

  document.addEventListener("visibilitychange", () => {
    last = null;
    ask();
  });

  ask();
  setInterval(ask, EVERY);
})();
