"use strict";
hotlap.panel("timeline", (d, section) => {
  const canvas = section.querySelector("canvas"), told = section.querySelector(".readout");
  const control = (name) => section.querySelector(`[data-control=${name}]`);
  const HEIGHT = {phases: 26, host: 18, device: 24, idle: 20};
  let line = d.timelines[0], from = 0, to = line.span_ns, chosen = null, places = [];

  const narrow = () => canvas.clientWidth < 620;
  const gutter = () => narrow() ? 0 : 190;
  const x = (at) => gutter() + (at - from) / (to - from) * (canvas.clientWidth - gutter());
  const time = (px) => from + (px - gutter()) / (canvas.clientWidth - gutter()) * (to - from);

  function view(a, b) {
    const length = Math.min(line.span_ns, Math.max(200, b - a));
    from = Math.max(0, Math.min(a, line.span_ns - length));
    to = from + length;
    draw();
  }
  const zoom = (factor, at = (from + to) / 2) => view(at - (at - from) * factor, at + (to - at) * factor);
  const move = (share) => view(from + share * (to - from), to + share * (to - from));

  function first(row, at) {   // index of the first bar that ends after a time
    let low = 0, high = row.start.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.start[middle] + row.dur[middle] <= at) low = middle + 1; else high = middle;
    }
    return low;
  }
  function ticks(pen, top, bottom) {
    const rough = (to - from) / Math.max(2, (canvas.clientWidth - gutter()) / 110);
    const power = 10 ** Math.floor(Math.log10(rough));
    const each = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    pen.strokeStyle = hotlap.css("--grid");
    pen.fillStyle = hotlap.css("--dim");
    for (let at = Math.ceil(from / each) * each; at <= to; at += each) {
      const px = Math.round(x(at)) + 0.5;
      pen.beginPath(); pen.moveTo(px, top - 4); pen.lineTo(px, bottom); pen.stroke();
      const digits = Math.max(0, Math.min(4, 6 - Math.floor(Math.log10(each))));
      pen.fillText((at / 1e6).toFixed(digits) + " ms", Math.min(px + 3, canvas.clientWidth - 44), 11);
    }
  }
  function bars(pen, row, top, height) {
    const left = gutter(), right = canvas.clientWidth, dim = hotlap.css("--code");
    pen.fillStyle = dim;
    pen.fillRect(left, top, right - left, height);
    for (let i = first(row, from); i < row.start.length && row.start[i] < to; i++) {
      const a = Math.max(left, x(row.start[i])), b = Math.min(right, x(row.start[i] + row.dur[i]));
      const back = hotlap.colour(d.kinds[row.kind[i]]);
      pen.globalAlpha = row.count[i] > 1 ? 0.3 + 0.7 * row.busy[i] / Math.max(1, row.dur[i]) : 1;
      pen.fillStyle = back;
      pen.fillRect(a, top, Math.max(b - a - (b - a > 3 ? 0.6 : 0), 0.7), height);
      pen.globalAlpha = 1;
      if (b - a > 44 && row.count[i] === 1) {
        const text = row.group === "phases" ? d.kinds[row.kind[i]] : row.group === "idle" ? d.kinds[row.kind[i]].slice(6) : line.texts[row.name[i]];
        pen.save(); pen.beginPath(); pen.rect(a, top, b - a - 2, height); pen.clip();
        pen.fillStyle = hotlap.ink(back); pen.fillText(text, a + 4, top + height / 2 + 4); pen.restore();
      }
    }
  }
  function draw() {
    const labels = narrow() ? 15 : 0;
    let bottom = 20;
    places = line.rows.map((row, index) => {
      if (index && row.group !== line.rows[index - 1].group) bottom += 6;
      const top = bottom + labels;
      bottom = top + HEIGHT[row.group] + 3;
      return [top, HEIGHT[row.group]];
    });
    const scale = window.devicePixelRatio || 1;
    canvas.style.height = bottom + "px";
    canvas.width = canvas.clientWidth * scale;
    canvas.height = bottom * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.font = "11.5px system-ui, sans-serif";
    line.rows.forEach((row, index) => {
      const [top, height] = places[index];
      bars(pen, row, top, height);
      pen.fillStyle = hotlap.css("--ink");
      pen.fillText(row.label, narrow() ? 2 : 0, narrow() ? top - 4 : top + height / 2 + 4, narrow() ? undefined : 184);
    });
    ticks(pen, 18, bottom);
    pen.strokeStyle = hotlap.css("--ink");
    pen.setLineDash([4, 3]);
    for (const at of new Set([...line.device, ...line.host])) if (at > from && at < to) { pen.beginPath(); pen.moveTo(x(at), 14); pen.lineTo(x(at), bottom); pen.stroke(); }
    pen.setLineDash([]);
    if (chosen) {
      const row = line.rows[chosen.row], [top, height] = places[chosen.row];
      pen.lineWidth = 2;
      pen.strokeRect(x(row.start[chosen.bar]) - 1, top - 1, Math.max(3, x(row.start[chosen.bar] + row.dur[chosen.bar]) - x(row.start[chosen.bar])) + 2, height + 2);
      pen.lineWidth = 1;
    }
  }
  function tell() {
    const row = line.rows[chosen.row], i = chosen.bar, kind = d.kinds[row.kind[i]];
    const name = line.texts[row.name[i]], at = line.texts[row.at[i]];
    const many = row.count[i] > 1 ? ` · ${row.count[i]} events, ${hotlap.ms(row.busy[i] / 1e6)} of it, most of it this` : "";
    told.textContent = `${row.label} · ${kind}${name && name !== kind ? ": " + name : ""} · ${hotlap.ms(row.dur[i] / 1e6)} from ${hotlap.ms(row.start[i] / 1e6)}${at ? " · " + at : ""}${many}`;
  }
  function pick(event) {
    const box = canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    const index = places.findIndex(([top, height]) => py >= top - 2 && py <= top + height + 2);
    if (index < 0 || px < gutter()) return;
    const row = line.rows[index], slack = 3 * (to - from) / canvas.clientWidth, at = time(px);
    const bar = first(row, at - slack);
    if (bar < row.start.length && row.start[bar] <= at + slack) { chosen = {row: index, bar}; tell(); draw(); }
  }
  function step(by) {
    if (!chosen) chosen = {row: 0, bar: first(line.rows[0], from)};
    else chosen.bar = Math.max(0, Math.min(line.rows[chosen.row].start.length - 1, chosen.bar + by));
    const row = line.rows[chosen.row], at = row.start[chosen.bar];
    if (at < from || at > to) view(at - (to - from) / 2, at + (to - from) / 2);
    tell(); draw();
  }
  function other(by) {
    const index = Math.max(0, Math.min(line.rows.length - 1, (chosen ? chosen.row : -by) + by));
    const at = chosen ? line.rows[chosen.row].start[chosen.bar] : from;
    chosen = {row: index, bar: Math.min(first(line.rows[index], at), line.rows[index].start.length - 1)};
    tell(); draw();
  }
  const keys = {ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), "0": () => view(0, line.span_ns),
    ArrowUp: () => other(-1), ArrowDown: () => other(1), n: () => step(1), p: () => step(-1)};
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;   // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, time(event.clientX - canvas.getBoundingClientRect().left));
  }, {passive: false});
  let held = null;
  canvas.addEventListener("pointerdown", (event) => { held = {px: event.clientX, from, to}; pick(event); });
  canvas.addEventListener("pointermove", (event) => {
    if (!held || !event.buttons) { held = null; if (event.pointerType === "mouse") pick(event); return; }
    const by = (held.px - event.clientX) / (canvas.clientWidth - gutter()) * (held.to - held.from);
    view(held.from + by, held.to + by);
  });
  addEventListener("pointerup", () => { held = null; });
  control("in").addEventListener("click", () => zoom(0.5));
  control("out").addEventListener("click", () => zoom(2));
  control("left").addEventListener("click", () => move(-0.4));
  control("right").addEventListener("click", () => move(0.4));
  control("all").addEventListener("click", () => view(0, line.span_ns));
  if (control("rank")) control("rank").addEventListener("change", (event) => { line = d.timelines[Number(event.target.value)]; chosen = null; view(0, line.span_ns); });
  new ResizeObserver(draw).observe(canvas.parentElement);
  return draw;
});
