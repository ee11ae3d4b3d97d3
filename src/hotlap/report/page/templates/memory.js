"use strict";
hotlap.panel("memory", (d, section) => () => {
  const {C, plot, safe, colour, css} = hotlap, GIB = 2 ** 30;
  const colours = [C.blue, C.red, C.green, C.pink, C.orange, C.sky], dashes = ["solid", "dash", "dot", "dashdot"];
  const largest = (values) => values.reduce((most, value) => Math.max(most, value || 0), 0);
  const unit = (values) => { const most = largest(values); return most >= GIB ? ["GiB", GIB] : most >= 2 ** 20 ? ["MiB", 2 ** 20] : ["KiB", 1024]; };
  const place = (name) => section.querySelector(`[data-chart=${name}]`);
  if (d.window) steps(d.window);
  if (d.tiles.length) tiles(d.tiles);
  if (d.curves.length) curves(d.curves);
  if (d.series.length) lines("series", d.series, "step", "of step %{x}");
  if (d.sampled.length) lines("sampled", d.sampled, "seconds of the run", "at %{x:.1f} s");

  function steps(w) {
    const x = w.times.map((ns) => ns / 1e6), total = x.map((_, at) => w.bytes.reduce((sum, of) => sum + of[at], 0));
    const [word, one] = unit(total), end = x[x.length - 1] || 0;
    const traces = w.categories.map((name, at) => ({
      x, y: w.bytes[at].map((b) => b / one), mode: "lines", stackgroup: "all", line: {shape: "hv", width: 0.5, color: colour(name)}, fillcolor: colour(name),
      name: safe(name), hovertemplate: `${safe(name)}: %{y:.3g} ${word} at %{x:.2f} ms<extra></extra>`,
    }));
    let mark = -1;
    const doing = w.times.map((ns) => { while (mark + 1 < w.marks.length && w.marks[mark + 1][0] <= ns) mark += 1; return mark < 0 ? "" : safe(`${w.marks[mark][1]}, step ${w.marks[mark][2]}`); });
    traces.push({x, y: total.map((b) => b / one), text: doing, mode: "lines", line: {shape: "hv", width: 1.3, color: css("--ink")}, name: "all", hovertemplate: `%{y:.4g} ${word} at %{x:.2f} ms<br>%{text}<extra></extra>`});
    const shapes = [], annotations = [];
    w.marks.forEach(([ns, phase, step], at) => {
      const from = ns / 1e6, to = at + 1 < w.marks.length ? w.marks[at + 1][0] / 1e6 : end;
      if (phase === "step end") shapes.push({type: "line", x0: from, x1: from, yref: "paper", y0: 0, y1: 1, line: {color: css("--dim"), width: 1, dash: "dot"}});
      else shapes.push({type: "rect", x0: from, x1: to, yref: "paper", y0: 0.97, y1: 1, fillcolor: colour(phase), line: {width: 0}});
      if (phase !== "step end" && to - from > 0.09 * end) annotations.push({x: (from + to) / 2, y: 0.96, yref: "paper", yanchor: "top", showarrow: false, text: safe(phase), font: {size: 11}, bgcolor: css("--card"), opacity: 0.85});
    });
    plot(place("window"), traces, {shapes, annotations, yaxis: {title: {text: `${word}, allocated`}, rangemode: "tozero"}, xaxis: {title: {text: "ms; dotted: a step ends"}}, showlegend: true});
  }

  function tiles(categories) {
    const ids = [], labels = [], parents = [], values = [], painted = [];
    const add = (id, label, parent, value, name) => { ids.push(id); labels.push(safe(label)); parents.push(parent); values.push(value); painted.push(colour(name)); };
    const [word, one] = unit(categories.map((c) => c.bytes));
    categories.forEach((c, at) => {
      const rest = c.parts.reduce((left, [, size]) => left - size, c.bytes);   // of the category's own tile
      add(`${at}`, c.name, "", rest / one, c.name);
      c.parts.forEach(([name, size], part) => add(`${at}/${part}`, name, `${at}`, size / one, c.name));
    });
    const text = values.map((value, at) => `${parents[at] ? value.toPrecision(3) : (categories[Number(ids[at])].bytes / one).toPrecision(3)} ${word}`);
    plot(place("tiles"), [{type: "treemap", ids, labels, parents, values, text, branchvalues: "remainder", marker: {colors: painted}, pathbar: {visible: false}, tiling: {pad: 2}, textinfo: "label+text", hovertemplate: "%{label}<br>%{text}<extra></extra>"}], {margin: {l: 4, r: 4, t: 4, b: 4}});
  }

  function curves(found) {
    const traces = [];
    const [word, one] = unit(found.flatMap((c) => [largest(c.allocated), largest(c.reserved)]));
    found.forEach((c, index) => {
      const who = c.device < 0 ? "host" : `device ${c.device}`, x = c.time.map((ns) => ns / 1e6);
      traces.push({x, y: c.allocated.map((b) => b < 0 ? null : b / one), mode: "lines", line: {shape: "hv", width: 1.4, color: colours[index % 6]}, fill: "tozeroy", name: `${who}, allocated`, hovertemplate: `%{y:.3g} ${word} at %{x:.2f} ms<extra></extra>`});
      if (c.reserved.some((b) => b > 0)) traces.push({x, y: c.reserved.map((b) => b < 0 ? null : b / one), mode: "lines", line: {shape: "hv", width: 1.2, dash: "dash", color: colours[(index + 1) % 6]}, name: `${who}, reserved`, hovertemplate: `%{y:.3g} ${word} at %{x:.2f} ms<extra></extra>`});
    });
    plot(place("curves"), traces, {yaxis: {title: {text: `${word}, torch's allocator`}, rangemode: "tozero"}, xaxis: {title: {text: "ms from the first profiled step"}}, showlegend: true});
  }

  function lines(chart, found, axis, at) {
    const [word, one] = unit(found.flatMap((s) => s.y));
    plot(place(chart), found.map((s, i) => ({x: s.x, y: s.y.map((b) => b === null ? null : b / one), mode: "lines", name: safe(s.name), line: {color: colours[i % 6], dash: dashes[i % 4], width: 1.4}, hovertemplate: `%{y:.3g} ${word} ${at}<extra></extra>`})),
      {yaxis: {title: {text: word}, rangemode: "tozero"}, xaxis: {title: {text: axis}}, showlegend: true});
  }
});
