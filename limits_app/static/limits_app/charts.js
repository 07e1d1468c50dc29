// Charts in the colours of the admin's theme; they follow when it changes.
"use strict";

window.limitsCharts = (() => {
  const drawn = new Set();

  const colour = (name) => {
    const page = document.querySelector(".limits-page");
    return getComputedStyle(page).getPropertyValue(name).trim();
  };

  // Works on what a chart is made of as well as on the chart itself.
  const paint = ({ data, options }) => {
    const [text, line] = [colour("--limits-muted"), colour("--limits-line")];
    const [admitted, refused] = [colour("--limits-accent"), colour("--limits-full")];
    data.datasets.forEach((dataset, place) => {
      dataset.backgroundColor = dataset.borderColor = place === 0 ? admitted : refused;
    });
    for (const scale of Object.values(options.scales)) {
      scale.ticks.color = scale.title.color = text;
      scale.grid.color = line;
    }
    options.plugins.legend.labels.color = text;
  };

  const scale = (title, more) => ({
    beginAtZero: true,
    ticks: { precision: 0, maxRotation: 0, autoSkipPadding: 16 },
    grid: {},
    title: { display: Boolean(title), text: title },
    ...more,
  });

  // Draws a chart, and redraws it when the theme changes.
  const draw = (canvas, config) => {
    paint(config);
    const chart = new Chart(canvas, config);
    drawn.add(chart);
    return chart;
  };

  const repaint = (chart) => {
    paint(chart);
    chart.update();
  };

  const repaintAll = () => drawn.forEach(repaint);
  new MutationObserver(repaintAll).observe(document.documentElement, { attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaintAll);

  const options = (scales) => ({
    locale: document.documentElement.lang,
    responsive: true,
    maintainAspectRatio: false,
    animation: false,
    interaction: { mode: "index", intersect: false },
    plugins: { legend: { labels: { boxWidth: 12, boxHeight: 12 } } },
    scales,
  });

  const fromPage = (canvas) => {
    const data = JSON.parse(document.getElementById(canvas.dataset.chart).textContent);
    const stacked = "stacked" in canvas.dataset;
    const own = stacked ? "y" : "refused";
    const scales = { x: { ...scale("", { stacked }), grid: { display: false } }, y: scale(stacked ? "" : data.labels.admitted, { stacked }) };
    if (!stacked) scales.refused = scale(data.labels.refused, { position: "right", grid: { drawOnChartArea: false }, suggestedMax: 5 });
    draw(canvas, {
      type: "bar",
      data: {
        labels: data.times,
        datasets: [
          { label: data.labels.admitted, data: data.admitted, yAxisID: "y", order: 1 },
          stacked
            ? { label: data.labels.refused, data: data.refused, yAxisID: own }
            : { type: "line", label: data.labels.refused, data: data.refused, yAxisID: own, pointRadius: 2, borderWidth: 2, tension: 0 },
        ],
      },
      options: options(scales),
    });
  };

  document.querySelectorAll("canvas[data-chart]").forEach(fromPage);
  return { draw, options, scale };
})();
