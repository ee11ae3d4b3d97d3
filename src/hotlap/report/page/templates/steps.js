"use strict";
hotlap.panel("steps", (d, section) => {
  const {C, ms, plot, css} = hotlap;
  const scale = section.querySelector("[data-control=scale]"), select = section.querySelector("[data-control=rank]");
  const MARKS = {outlier: ["diamond", C.red], "warm-up": ["square-open", C.orange], "left out": ["x", C.pink]};
  let whole = false, rank = d.ranks[0];

  function draw() {
    const at = rank.step.map((_, i) => i);
    const steady = at.filter((i) => rank.mark[i] === "steady" || rank.mark[i] === "outlier");
    const top = Math.max(...steady.map((i) => rank.ms[i]), d.step_ms) * 1.15;
    const shown = (i) => whole ? rank.ms[i] : Math.min(rank.ms[i], top * 0.985);
    const hover = (i) => `step ${rank.step[i]}: ${ms(rank.ms[i])}`;
    const traces = [{x: rank.step, y: at.map(shown), mode: "lines", line: {color: C.sky, width: 1.2}, name: "steps", text: at.map(hover), hoverinfo: "text", showlegend: false}];
    for (const [mark, [symbol, color]] of Object.entries(MARKS)) {
      const those = at.filter((i) => rank.mark[i] === mark);
      if (those.length) traces.push({x: those.map((i) => rank.step[i]), y: those.map(shown), mode: "markers", name: mark, marker: {symbol, color, size: 8, line: {width: 1.5, color}},
        text: those.map((i) => `${mark}, ${hover(i)}${shown(i) < rank.ms[i] ? " (above this chart)" : ""}`), hoverinfo: "text"});
    }
    const other = rank.clock === "device" ? "on the host" : "on the device";
    if (rank.other_ms.some((value) => value !== null)) traces.push({x: rank.step, y: rank.other_ms, mode: "lines", name: other, line: {color: C.green, width: 1, dash: "dot"}, hovertemplate: `${other} %{y:.2f} ms<extra></extra>`});
    plot(section.querySelector("[data-chart=times]"), traces, {
      yaxis: {title: {text: "ms a step"}, range: whole ? undefined : [0, top], rangemode: "tozero"}, xaxis: {title: {text: "step"}}, showlegend: true,
      shapes: [{type: "rect", xref: "paper", x0: 0, x1: 1, y0: d.spread.p10, y1: d.spread.p90, fillcolor: C.gray, opacity: 0.18, line: {width: 0}, layer: "below"},
        {type: "line", xref: "paper", x0: 0, x1: 1, y0: d.step_ms, y1: d.step_ms, line: {color: css("--ink"), width: 1, dash: "dash"}}],
      annotations: [{xref: "paper", x: 1, xanchor: "right", y: d.step_ms, yanchor: "bottom", text: `${ms(d.step_ms)} a step; band p10–p90`, showarrow: false, bgcolor: css("--card")}],
    });
    const losses = section.querySelector("[data-chart=loss]");
    losses.hidden = !rank.loss.some((value) => value !== null);
    if (!losses.hidden) plot(losses, [{x: rank.step, y: rank.loss, mode: rank.loss.includes(null) ? "lines+markers" : "lines", marker: {size: 3}, line: {color: C.blue, width: 1.3}, hovertemplate: "step %{x}: loss %{y:.5g}<extra></extra>"}], {yaxis: {title: {text: "loss"}}, xaxis: {title: {text: "step"}}, showlegend: false, margin: {l: 48, r: 12, t: 8, b: 40}});
  }
  scale.addEventListener("click", () => { whole = !whole; scale.setAttribute("aria-pressed", String(whole)); draw(); });
  if (select) select.addEventListener("change", () => { rank = d.ranks[Number(select.value)]; draw(); });
  return draw;
});
