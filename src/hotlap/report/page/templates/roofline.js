"use strict";
hotlap.panel("roofline", (d, section) => () => {
  const {C, ms, percent, three, safe, plot, css} = hotlap;
  const LOOK = {compute: ["circle", C.blue], bandwidth: ["square", C.orange], launch: ["triangle-up", C.sky], unknown: ["x", C.gray]};
  const limit = (p) => Object.hasOwn(LOOK, p.limit) ? p.limit : "unknown";
  const most = Math.max(...d.points.map((p) => p.ms), 1e-9);
  const hover = (p) => `${safe(p.op)} ${safe(p.dtype)}<br>${safe(p.shape.slice(0, 80))}<br>${ms(p.ms)} a step, ${three(p.tflops)} TFLOP/s, ${three(p.gbs)} GB/s` +
    (p.of_peak === null ? "" : `, ${percent(p.of_peak)} of peak`) + (p.at ? `<br>${safe(p.at)}` : "") + (p.why ? `<br>${safe(p.why)}` : "");
  const points = d.points.filter((p) => p.intensity && p.tflops > 0);
  const place = section.querySelector("[data-chart=roof]");
  place.hidden = !points.length;
  if (points.length) {
    const low = Math.min(...points.map((p) => p.intensity), 1) / 3, high = Math.max(...points.map((p) => p.intensity), 300) * 3;
    const traces = d.roofs.map(([name, peak], index) => {
      const corner = d.memory_gbs ? peak * 1000 / d.memory_gbs : low;
      const slope = (x) => d.memory_gbs ? x * d.memory_gbs / 1000 : peak;
      return {x: [low, corner, high], y: [Math.min(peak, slope(low)), peak, peak], mode: "lines", line: {color: css("--dim"), width: 1.5, dash: ["solid", "dash", "dot"][index % 3]}, hoverinfo: "skip", showlegend: false, name};
    });
    const notes = d.roofs.map(([name, peak]) => ({x: Math.log10(high), y: Math.log10(peak), xanchor: "right", yanchor: "bottom", text: `${safe(name)} ${three(peak)} TFLOP/s`, showarrow: false, font: {size: 11}}));
    for (const [name, [symbol, color]] of Object.entries(LOOK)) {
      const those = points.filter((p) => limit(p) === name);
      if (those.length) traces.push({x: those.map((p) => p.intensity), y: those.map((p) => p.tflops), mode: "markers", name: name === "unknown" ? "limit unknown" : `limited by ${name}`, text: those.map(hover), hoverinfo: "text",
        marker: {symbol, color, size: those.map((p) => 7 + 25 * Math.sqrt(p.ms / most)), opacity: 0.75, line: {width: 1, color: css("--ink")}}});
    }
    plot(place, traces, {xaxis: {type: "log", title: {text: "FLOP per byte"}, range: [Math.log10(low), Math.log10(high)]}, yaxis: {type: "log", title: {text: "TFLOP/s"}, range: [Math.log10(Math.min(...points.map((p) => p.tflops)) / 3), Math.log10(Math.max(...d.roofs.map(([, peak]) => peak), ...points.map((p) => p.tflops)) * 2.5)]}, annotations: notes, showlegend: true});
  }
  const movers = d.points.filter((p) => !p.intensity).slice(0, 8).reverse(), bars = section.querySelector("[data-chart=movers]");
  bars.hidden = !movers.length;
  if (movers.length) {
    bars.style.height = 70 + 22 * movers.length + "px";
    const shapes = d.memory_gbs ? [{type: "line", x0: d.memory_gbs, x1: d.memory_gbs, yref: "paper", y0: 0, y1: 1, line: {color: css("--dim"), dash: "dash"}}] : [];
    plot(bars, [{type: "bar", orientation: "h", y: movers.map((_, i) => i), x: movers.map((p) => p.gbs), marker: {color: C.orange}, customdata: movers.map(hover), hovertemplate: "%{customdata}<extra></extra>"}],
      {xaxis: {title: {text: d.memory_gbs ? `GB/s; the line is the peak, ${three(d.memory_gbs)}` : "GB/s"}}, yaxis: {tickvals: movers.map((_, i) => i), ticktext: movers.map((p) => safe(p.op.slice(0, 28)))}, showlegend: false, margin: {l: 60, r: 12, t: 8, b: 40}});
  }
});
