// Asks every two seconds what was counted; two answers make a rate. Nothing is asked while nobody looks.
"use strict";

(() => {
  const EVERY = 2000;
  const POINTS = 60;

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
    chart.data.labels.push(state.clock);
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

  const list = (state) => {
    problem.hidden = state.known;
    if (!tightest.contains(document.activeElement)) tightest.innerHTML = state.tightest;
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
