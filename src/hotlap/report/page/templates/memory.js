"use strict";
hotlap.panel("memory", (d, section) => () => {
  const {C, plot, safe} = hotlap, GIB = 2 ** 30;
  const colours = [C.blue, C.red, C.green, C.pink, C.orange, C.sky], dashes = ["solid", "dash", "dot", "dashdot"];
  const traces = [];
  const unit = (values) => { const most = Math.max(...values, 0); return most >= GIB ? ["GiB", GIB] : most >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 1024]; };
  const [word, one] = unit(d.curves.flatMap((c) => [...c.allocated.slice(0, 1), Math.max(...c.allocated), Math.max(...c.reserved)]));
  d.curves.forEach((c, index) => {
    const who = c.device < 0 ? "host" : `device ${c.device}`, x = c.time.map((ns) => ns / 1e6);
    traces.push({x, y: c.allocated.map((b) => b < 0 ? null : b / one), mode: "lines", line: {shape: "hv", width: 1.4, color: colours[index % 6]}, fill: "tozeroy", name: `${who}, allocated`, hovertemplate: `%{y:.3g} ${word} at %{x:.2f} ms<extra></extra>`});
    if (c.reserved.some((b) => b > 0)) traces.push({x, y: c.reserved.map((b) => b < 0 ? null : b / one), mode: "lines", line: {shape: "hv", width: 1.2, dash: "dash", color: colours[(index + 1) % 6]}, name: `${who}, reserved`, hovertemplate: `%{y:.3g} ${word} at %{x:.2f} ms<extra></extra>`});
  });
  if (traces.length) plot(section.querySelector("[data-chart=curves]"), traces, {yaxis: {title: {text: `${word}, torch's allocator`}, rangemode: "tozero"}, xaxis: {title: {text: "ms from the first profiled step"}}, showlegend: true});
  if (d.sampled.length) {
    const [name, size] = unit(d.sampled.flatMap((s) => s.y.map((b) => b || 0)));
    plot(section.querySelector("[data-chart=sampled]"), d.sampled.map((s, i) => ({x: s.x, y: s.y.map((b) => b === null ? null : b / size), mode: "lines", name: safe(s.name), line: {color: colours[i % 6], dash: dashes[i % 4], width: 1.4}, hovertemplate: `%{y:.3g} ${name} at %{x:.1f} s<extra></extra>`})),
      {yaxis: {title: {text: name}, rangemode: "tozero"}, xaxis: {title: {text: "seconds of the run"}}, showlegend: true});
  }
});
