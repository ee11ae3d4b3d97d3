"use strict";
/* "What should I try first?": asks the decision table with what the fields say, by the rules of diagnose/advise.py. */
const hotlapAdvice = (() => {
  function valueOf(share, known) {
    let value = share.of === "step" ? 1.0 : known[share.of];
    if (value === undefined) return null;
    for (const name of share.less || []) value = value - (known[name] === undefined ? 0.0 : known[name]);
    value = Math.max(0.0, value);
    for (const name of share.times || []) value = value * (known[name] === undefined ? 1.0 : known[name]);
    return value;
  }

  function holds(condition, known, share) {
    const value = condition.measure === "share" ? share : known[condition.measure];
    const missing = value === undefined || value === null;
    if (condition.unknown || missing) return Boolean(condition.unknown) && missing;
    return (condition.above === undefined || value > condition.above) &&
      (condition.at_most === undefined || value <= condition.at_most);
  }

  function percent(value) {
    const whole = Math.floor(value * 100 + 0.5);
    return whole === 0 && value > 0 ? "<1%" : whole + "%";
  }

  function asked(row, known) {
    const share = row.share ? valueOf(row.share, known) : null;
    if (!(row.if || []).every((condition) => holds(condition, known, share))) return null;
    const because = row.because.replace(/\{(\w+)\}/g, (all, name) => {
      const value = name === "share" ? share : known[name];
      return value === undefined || value === null ? all : percent(value);
    });
    const levers = row.levers || [];
    return {
      id: row.id, bound: row.bound, title: row.title, kind: row.kind || "", because: because, do: row.do,
      levers: levers, verify: verify(levers, row.verify), share: share,
      at_most: row.removable && share !== null && share < 1 ? 1 / (1 - share) : null,
    };
  }

  function verify(levers, text) {
    return (levers.length ? "`hotlap tune --only " + levers.join(",") + " COMMAND` tries them, with proof. " : "") + text;
  }

  /* table; known: measures by name, 0 to 1. The rows that hold, the largest share first. */
  function suggest(table, known) {
    const order = (one) => (one.share === null ? -1.0 : one.share);
    const found = table.rows.map((row) => asked(row, known)).filter((one) => one !== null);
    if (found.length) return found.sort((a, b) => order(b) - order(a));
    return table.otherwise.map((row) => asked(row, known)).filter((one) => one !== null).slice(0, 1);
  }

  return {suggest, percent};
})();
if (typeof module !== "undefined") module.exports = hotlapAdvice;

if (typeof hotlap !== "undefined") hotlap.panel("advise", (d, section) => {
  const answers = section.querySelector(".advice");
  const inputs = Array.from(section.querySelectorAll("[data-measure]"));
  const exact = new Map();   // what the run says, of which a field shows less

  function make(name, text, className) {
    const made = document.createElement(name);
    if (className) made.className = className;
    text.split("`").forEach((part, at) => {   // `...` is code
      if (!(at % 2)) { made.append(part); return; }
      const code = document.createElement("code");
      code.textContent = part;
      made.append(code);
    });
    return made;
  }

  function shown(one, at) {
    const item = document.createElement("li"), list = document.createElement("ul"), more = document.createElement("details");
    item.dataset.advice = one.id;
    item.append(make("b", one.title));
    item.append(make("p", one.because + (one.at_most ? " At most " + one.at_most.toFixed(2) + "× as fast." : "")));
    more.open = at === 0;
    more.append(make("summary", "what to do"));
    if (one.evidence) {
      const said = make("p", "", "hint");
      said.textContent = one.evidence + (one.place ? " · at " + one.place : "");
      more.append(said);
    }
    one.do.forEach((text) => list.append(make("li", text)));
    more.append(list, make("p", "Verify: " + one.verify, "hint"));
    item.append(more);
    return item;
  }

  function known() {
    const values = {};
    for (const input of inputs) {
      const name = input.dataset.measure, said = Number(input.value);
      if (exact.has(name)) values[name] = exact.get(name);
      else if (input.type === "number" && input.value !== "" && said >= 0 && said <= 100) values[name] = said / 100;
    }
    return values;
  }

  function update() {
    const values = known(), measured = d.measures || {};
    const asRun = Object.keys({...values, ...measured}).every((name) => values[name] === measured[name]);
    const list = asRun ? d.suggestions : hotlapAdvice.suggest(d.table, values);
    answers.replaceChildren(...list.map((one, at) => shown(one, at)));
    for (const input of inputs) if (input.type === "range") input.classList.toggle("unasked", values[input.dataset.measure] === undefined);
  }

  function shownPercent(value) {
    return String(Math.round(value * 1000) / 10);
  }

  /* Both fields of a measure, but the one that is being moved. */
  function fields(name, text, but) {
    for (const input of inputs) if (input !== but && input.dataset.measure === name) set(input, text);
  }

  function set(input, text) {
    input.value = text || (input.type === "range" ? "0" : "");
  }

  function fill(measures) {
    exact.clear();
    for (const input of inputs) {
      const value = measures[input.dataset.measure];
      if (value !== undefined) exact.set(input.dataset.measure, value);
      set(input, value === undefined ? "" : shownPercent(value));
    }
    update();
  }

  /* Another answer takes the place of the run's within it; a whole of the run follows its parts. As with_answers there. */
  section.addEventListener("input", (event) => {
    const name = event.target.dataset.measure;
    if (!name) return;
    exact.delete(name);
    fields(name, event.target.value, event.target);
    for (const part of d.table.measures) if (part.within === name && exact.delete(part.name)) fields(part.name, "");
    const values = known(), within = (whole) => d.table.measures.filter((one) => one.within === whole.name);
    for (const whole of d.table.measures) {
      if (!whole.adds_up || !exact.has(whole.name) || !within(whole).some((one) => one.name === name)) continue;
      exact.set(whole.name, Math.min(1, within(whole).reduce((sum, one) => sum + (values[one.name] || 0), 0)));
      fields(whole.name, shownPercent(exact.get(whole.name)));
    }
    update();
  });
  section.querySelector("[data-control=clear]").addEventListener("click", () => fill({}));
  const again = section.querySelector("[data-control=measured]");
  if (again) again.addEventListener("click", () => fill(d.measures || {}));
  fill(d.measures || {});
  return null;
});
