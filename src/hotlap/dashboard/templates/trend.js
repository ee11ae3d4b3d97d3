"use strict";
/* A series in the order of its commits: runs with their spread, the level between changes with its interval. */
hotlap.panel("trend", (d, section) => {
  const {C, plot, css, three, safe} = hotlap;
  const place = section.querySelector("[data-chart=trend]");
  const at = d.ids.map((_, i) => i);
  let heard = false;

  function band(part, key) {
    return {x: [part.first - 0.5, part.last + 0.5], y: [part[key], part[key]]};
  }
  function draw() {
    const spread = d.low && d.low.every((v) => v !== null) && d.high.every((v) => v !== null);
    const traces = [];
    for (const part of d.segments) {
      if (part.low !== null) {
        traces.push({...band(part, "low"), mode: "lines", line: {width: 0}, hoverinfo: "skip", showlegend: false});
        traces.push({...band(part, "high"), mode: "lines", line: {width: 0}, fill: "tonexty", fillcolor: "rgba(0,114,178,0.22)", hoverinfo: "skip", showlegend: false});
      }
      traces.push({...band(part, "middle"), mode: "lines", line: {color: C.blue, width: 2.2}, hoverinfo: "skip", showlegend: false});
    }
    traces.push({x: at, y: d.values, mode: "markers", name: "runs", marker: {color: C.sky, size: 7, line: {color: C.blue, width: 1}}, showlegend: false,
      error_y: spread ? {type: "data", symmetric: false, array: d.high.map((v, i) => Math.max(0, v - d.values[i])), arrayminus: d.low.map((v, i) => Math.max(0, d.values[i] - v)), color: C.gray, thickness: 0.8, width: 0} : undefined,
      text: d.texts.map((text, i) => `${safe(text)}<br>${three(d.values[i])} ${d.unit}`), hoverinfo: "text"});
    const top = Math.max(...d.values) * 1.15;
    plot(place, traces, {
      yaxis: {title: {text: d.unit}, range: [0, top || 1]}, xaxis: {title: {text: "runs, in the order of their commits"}, range: [-1, d.ids.length]}, showlegend: false,
      shapes: d.changes.map((one) => ({type: "line", x0: one.at - 0.5, x1: one.at - 0.5, yref: "paper", y0: 0, y1: 1, line: {color: one.ratio > 1 ? C.red : C.green, width: 1.5, dash: "dash"}})),
      annotations: d.changes.map((one) => ({x: one.at - 0.5, yref: "paper", y: 1, yanchor: "bottom", showarrow: false, text: `${one.ratio.toFixed(2)}× ${safe(one.commit)}`, font: {size: 11, color: css("--ink")}})),
    });
    if (heard) return;
    heard = true;
    place.on("plotly_click", (event) => {
      const point = event.points.find((one) => one.data.name === "runs");
      if (point) location.assign(`/run/${Number(d.ids[point.pointNumber])}`);
    });
  }
  return draw;
});
