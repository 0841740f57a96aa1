// Charts: an element with data-chart="NAME" draws the JSON of the live event NAME: {times: [s], series: [{name, values}]}.
import { onLive } from "./console.mjs";

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** Draw a line chart into an element; returns a function that draws other data. */
export function lineChart(element, options = {}) {
  let plot = null, shown = null;
  const draw = (data) => {
    shown = data;
    if (!data.times.length) {
      if (!element.querySelector(".waiting")) { element.textContent = ""; const note = document.createElement("p"); note.className = "dim waiting"; note.textContent = options.waiting || "Waiting for the first samples"; element.append(note); }
      return;
    }
    const values = [data.times, ...data.series.map((series) => series.values)];
    const names = data.series.map((series) => series.name).join("\u0000");
    if (plot && plot.names === names) return plot.setData(values);
    if (plot) plot.destroy();
    element.textContent = "";
    const axis = { stroke: style("--dim"), grid: { stroke: style("--faint"), width: 1 }, ticks: { show: false }, font: "11px " + style("--sans") };
    plot = new window.uPlot({
      width: element.clientWidth - 20, height: Number(element.dataset.height || 200),
      cursor: { y: false, points: { size: 6 } }, legend: { show: data.series.length > 1, live: data.series.length <= 8 },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1)] } },
      axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => compact.format(tick)) }],
      series: [{}, ...data.series.map((series, at) => ({ label: series.name, stroke: style(`--s${at % 8 + 1}`), width: 1.6, fill: data.series.length === 1 ? style("--accent-soft") : undefined, points: { show: data.times.length < 3 } }))],
    }, values, element);
    plot.names = names;
  };
  new ResizeObserver(() => plot && plot.setSize({ width: element.clientWidth - 20, height: Number(element.dataset.height || 200) })).observe(element);
  document.addEventListener("theme", () => { if (plot) { plot.destroy(); plot = null; } if (shown) draw(shown); });
  return draw;
}

for (const element of document.querySelectorAll("[data-chart]")) {
  const draw = lineChart(element, { waiting: element.dataset.waiting });
  draw({ times: [], series: [] });
  onLive(element.dataset.chart, (text) => draw(JSON.parse(text)));
}
