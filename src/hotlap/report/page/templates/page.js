"use strict";
/* What panels share: data, colours, numbers as people read them, charts. Texts from a run become text, never markup. */
const hotlap = (() => {
  const root = document.documentElement;
  const data = JSON.parse(document.getElementById("hotlap-data").textContent);
  const made = [];   // [name, function that is given (data, section) and returns a function that draws]
  const draws = [];
  const nonce = document.currentScript.nonce;

  /* Okabe and Ito's palette, which colour-blind people can tell apart. */
  const C = {orange: "#e69f00", sky: "#56b4e9", green: "#009e73", yellow: "#f0e442", blue: "#0072b2", red: "#d55e00", pink: "#cc79a7", gray: "#9aa0a6", dark: "#6b7078"};
  const PARTS = {
    "phase:data": C.orange, "phase:h2d": C.pink, "phase:forward": C.sky, "phase:backward": C.blue, "phase:optimizer": C.green, "phase:other": C.gray,
    "device:compute": C.blue, "device:communication": C.pink, "device:copy": C.green, "device:idle": C.gray,
    "idle:input": C.orange, "idle:launch": C.sky, "idle:sync": C.red, "idle:python": C.yellow, "idle:communication": C.pink,
    "idle:allocator": C.green, "idle:copy": C.blue, "idle:between kernels": "#c4c8cc", "idle:profiler": C.dark, "idle:unknown": C.gray,
    "memory:parameters": C.blue, "memory:buffers": C.sky, "memory:gradients": C.orange, "memory:optimizer state": C.green, "memory:inputs": C.yellow,
    "memory:outputs": C.pink, "memory:activations": C.red, "memory:temporaries": C.gray, "memory:held": C.dark,
  };
  const HOST = {op: C.sky, "launch call": C.blue, wait: C.red, allocation: C.green, "host call": C.gray, python: C.yellow};

  function colour(kind) {
    if (kind.startsWith("idle: ")) return PARTS["idle:" + kind.slice(6)];
    return HOST[kind] || PARTS["phase:" + kind] || PARTS["device:" + kind] || PARTS["memory:" + kind] || C.gray;
  }
  const light = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255).map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);   // relative luminance, WCAG 2
  const ink = (back) => light(back) > 0.179 ? "#111111" : "#ffffff";   // whichever has more contrast
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  /* plotly reads a little markup in its texts; from a run nothing is markup */
  const safe = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  function three(value) {
    const size = Math.abs(value);
    const digits = size >= 100 ? 0 : size >= 10 ? 1 : 2;
    return value.toLocaleString("en", {minimumFractionDigits: digits, maximumFractionDigits: digits});
  }
  function ms(value) {
    if (value === null || value === undefined || !isFinite(value)) return "unknown";
    if (value > 0 && value < 0.001) return three(value * 1e6) + " ns";
    if (value > 0 && value < 0.1) return three(value * 1e3) + " µs";
    return value >= 999.5 ? three(value / 1000) + " s" : three(value) + " ms";
  }
  const percent = (share) => share > 0 && share < 0.005 ? "<1%" : Math.round(share * 100) + "%";

  function layout(more) {
    const line = {gridcolor: css("--grid"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true};
    const merged = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: {l: 48, r: 12, t: 24, b: 40},
      font: {family: "system-ui, sans-serif", size: 12, color: css("--ink")},
      hoverlabel: {bgcolor: css("--card"), bordercolor: css("--line"), font: {color: css("--ink")}, align: "left"},
      legend: {orientation: "h", y: 1.02, yanchor: "bottom", x: 0}, dragmode: "zoom", ...more,
    };
    for (const axis of Object.keys(merged).filter((key) => /^[xy]axis/.test(key))) merged[axis] = {...line, ...merged[axis]};
    for (const axis of ["xaxis", "yaxis"]) merged[axis] = merged[axis] || line;
    return merged;
  }
  function plot(place, traces, more) {
    const phone = place.clientWidth < 520;   // where a drag has to scroll the page
    window.Plotly.react(place, traces, layout({dragmode: phone ? false : "zoom", ...more}), {responsive: true, displayModeBar: false, scrollZoom: false});
  }
  /* plotly's script is large: it runs when the first chart comes near. */
  let loading = null;
  function plotly() {
    loading = loading || new Promise((resolve, reject) => {
      const inside = document.getElementById("plotly-source"), script = document.createElement("script");
      script.nonce = nonce;
      if (inside) script.textContent = inside.textContent;
      else {
        script.src = document.querySelector("[data-plotly]").dataset.plotly;
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${script.getAttribute("src")} is missing beside this page`));
      }
      document.body.append(script);
      if (inside) resolve();
    });
    return loading;
  }

  function paint() {
    for (const one of document.querySelectorAll("[data-part]")) {
      const back = PARTS[one.dataset.part] || C.gray;
      one.style.background = back;
      one.style.color = ink(back);
    }
    for (const one of document.querySelectorAll("[data-kind]")) one.style.background = colour(one.dataset.kind);
  }
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  function redraw() { for (const draw of draws) draw(); }
  function themed() {
    const button = document.getElementById("theme");
    const show = () => { button.setAttribute("aria-pressed", String(dark())); button.querySelector("span").textContent = dark() ? "light" : "dark"; };
    button.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); redraw(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { show(); redraw(); });
    show();
  }
  function shown([name, make]) {
    const draw = make(data[name], document.getElementById(name));
    if (draw) { draws.push(draw); draw(); }
  }
  const far = new Map();   // panels with charts: name to [panel, promise that it is drawn, once it is wanted]
  async function drawn(one) {
    try { await plotly(); shown(one); }
    catch (error) { for (const place of document.getElementById(one[0]).querySelectorAll(".chart")) place.textContent = `No chart: ${error.message}`; }
  }
  function chart(name) {
    const entry = far.get(name);
    entry[1] = entry[1] || drawn(entry[0]);
    return entry[1];
  }
  const all = () => Promise.all([...far.keys()].map(chart));
  function start() {
    themed();
    paint();
    const here = made.filter(([name]) => data[name] !== undefined && document.getElementById(name));
    const charted = ([name]) => document.getElementById(name).querySelector(".chart");
    for (const one of here.filter(charted)) far.set(one[0], [one, null]);
    here.filter((one) => !charted(one)).forEach(shown);
    const near = new IntersectionObserver((seen) => seen.filter((one) => one.isIntersecting).forEach((one) => { near.unobserve(one.target); chart(one.target.id); }), {rootMargin: "100% 0px"});
    addEventListener("DOMContentLoaded", () => far.forEach((_, name) => near.observe(document.getElementById(name))));   // plotly's text is there by then
    addEventListener("beforeprint", all);
    performance.mark("hotlap-ready");
    root.dataset.ready = "1";
  }
  return {panel: (name, make) => made.push([name, make]), start, all, plot, safe, ms, percent, three, colour, ink, css, C};
})();
