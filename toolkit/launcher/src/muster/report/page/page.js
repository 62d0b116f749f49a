// Draws the charts of the page with uPlot over the data in it; the lines as SVG stay for print.
"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const figures = document.querySelectorAll("figure.chart");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const shown = (v) => v == null ? "-" : Number(v.toPrecision(5)).toString();
  let plots = [];

  const draw = (figure, chart) => {
    const data = [chart.xs], series = [{ label: chart.x, value: (u, v) => shown(v) }], bands = [];
    chart.lines.forEach((line, at) => {
      const stroke = color(`--c${at % 8}`), wide = line.high.length > 0;
      data.push(line.low);
      series.push({ label: wide ? `${line.name}: lowest` : line.name, stroke, width: 1.5, points: { show: false },
                    value: (u, v) => shown(v) });
      if (wide) {
        data.push(line.high);
        series.push({ label: `${line.name}: highest`, stroke, width: 1.5, points: { show: false }, value: (u, v) => shown(v) });
        bands.push({ series: [data.length - 1, data.length - 2], fill: `${stroke}38` });
      }
    });
    const axis = { stroke: color("--soft-ink"), grid: { stroke: color("--line"), width: 1 },
                   ticks: { stroke: color("--line"), width: 1 }, font: "11px system-ui, sans-serif" };
    const options = { width: figure.clientWidth, height: 210, scales: { x: { time: false } }, bands,
                      axes: [axis, { ...axis, size: 58 }], series, cursor: { sync: { key: chart.x } },
                      legend: { show: series.length <= 9 } };
    return new uPlot(options, data, figure);
  };
  const all = () => {
    plots.forEach((one) => one.destroy());
    figures.forEach((figure) => figure.classList.add("live"));
    plots = charts.map((chart, at) => draw(figures[at], chart));
  };
  all();
  dark.addEventListener("change", all);
  addEventListener("resize", () => plots.forEach((one, at) =>
    one.setSize({ width: figures[at].clientWidth, height: 210 })));
})();
