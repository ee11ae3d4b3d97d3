"use strict";
hotlap.panel("parity", (d, section) => () => {
  const {C, safe, plot} = hotlap;
  const look = [[C.gray, "solid", 5], [C.orange, "solid", 2.5], [C.blue, "dash", 1.8], [C.green, "dot", 1.8], [C.pink, "dashdot", 1.6], [C.red, "longdash", 1.6]];
  const line = (i) => ({color: look[i % 6][0], dash: look[i % 6][1], width: look[i % 6][2]});
  plot(section.querySelector("[data-chart=losses]"), d.curves.map((c, i) => ({x: c.step, y: c.loss, mode: "lines", name: safe(c.name), line: line(i), hovertemplate: `step %{x}: %{y:.6g}<extra>${safe(c.name).replace(/%/g, "")}</extra>`})),
    {yaxis: {title: {text: "loss"}}, xaxis: {title: {text: "step"}}, showlegend: true});
  const base = new Map(d.curves[0].step.map((step, i) => [step, d.curves[0].loss[i]]));
  const others = d.curves.slice(1).map((c, i) => {
    const both = c.step.map((step, at) => [step, c.loss[at], base.get(step)]).filter(([, a, b]) => a !== null && b !== null && b !== undefined);
    return {x: both.map(([s]) => s), y: both.map(([, a, b]) => a - b), mode: "lines", name: safe(c.name), line: {...line(i + 1), width: 1.6}, hovertemplate: "step %{x}: %{y:.3g}<extra></extra>"};
  });
  const place = section.querySelector("[data-chart=gap]");
  place.hidden = !others.length;
  if (others.length) plot(place, others, {yaxis: {title: {text: "minus bare"}, tickformat: ".1e"}, xaxis: {title: {text: "step"}}, showlegend: false, margin: {l: 60, r: 12, t: 8, b: 40}});
});
