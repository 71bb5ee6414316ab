"use strict";
(() => {
  const island = document.getElementById("data");
  const scenarios = island ? JSON.parse(island.textContent).scenarios || [] : [];
  const space = (document.querySelector("svg") || {}).namespaceURI;
  const CHARTS = [
    { key: "received", title: "Calls the dependency received", help: "per second, counted by the dependency itself; grey: operations offered", rate: true, reference: true, lead: true },
    { key: "useful", title: "Useful completions", help: "per second; grey: operations offered", rate: true, reference: true },
    { key: "amplification", title: "Amplification", help: "calls received for each original admitted", unit: "×", base: 1 },
    { key: "admitted", title: "Originals admitted", help: "per second; grey: operations offered", rate: true, reference: true },
    { key: "refused", title: "Originals refused", help: "per second", rate: true },
    { key: "retries_refused", title: "Retries refused", help: "per second", rate: true },
    { key: "retries", title: "Retries received", help: "attempts after the first that reached the dependency, per second", rate: true },
    { key: "queue_age_ms", title: "Oldest wait in the dependency's queue", help: "milliseconds", unit: " ms" },
    { key: "in_flight", title: "Calls at once at the dependency", help: "most in each interval" },
  ];

  // === small things ===

  const make = (name, attributes = {}, text = "") => {
    const element = name.startsWith("svg:") ? document.createElementNS(space, name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== "") element.textContent = text;
    return element;
  };
  const number = (value) => {
    if (value === null || !Number.isFinite(value)) return "n/a";
    const size = Math.abs(value);
    const places = size === 0 || size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
    return value.toLocaleString("en-US", { minimumFractionDigits: 0, maximumFractionDigits: places });
  };
  const seconds = (ms) => `${number(Math.round(ms / 10) / 100)} s`;
  const letter = (at) => String.fromCharCode(65 + (at % 26)) + (at < 26 ? "" : Math.floor(at / 26) + 1);
  const nice = (most, count) => {
    const rough = most / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
  };

  // === theme ===

  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* not kept */ }
  const showTheme = () => root.setAttribute("data-theme", chosen || (dark.matches ? "dark" : "light"));
  showTheme();
  dark.addEventListener("change", showTheme);
  for (const button of document.querySelectorAll("[data-theme-switch]")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = root.getAttribute("data-theme") === "dark" ? "light" : "dark";
      try { localStorage.setItem("theme", chosen); } catch { /* not kept */ }
      showTheme();
    });
  }
  for (const time of document.querySelectorAll("time[data-unix]")) {
    const at = new Date(Number(time.dataset.unix) * 1000);
    time.textContent = at.toISOString().replace("T", " ").slice(0, 16) + " UTC";
  }

  // === what is drawn ===

  /* Bins are put together until a chart has about so many: finer ones show noise. */
  const POINTS = 60;
  const PEAKS = ["queue_age_ms", "in_flight"];
  const coarse = (scenario) => {
    const bins = Math.max(0, ...scenario.strategies.flatMap((run) => Object.values(run.series).map((list) => list.length)));
    const by = Math.max(1, Math.ceil(bins / POINTS));
    const join = (key, list) => {
      const joined = [];
      for (let at = 0; at < list.length; at += by) {
        const part = list.slice(at, at + by);
        joined.push(PEAKS.includes(key) ? Math.max(...part) : part.reduce((sum, value) => sum + value, 0));
      }
      return joined;
    };
    const series = (run) => Object.fromEntries(Object.entries(run.series).map(([key, list]) => [key, join(key, list)]));
    return { ...scenario, bin_ms: scenario.bin_ms * by, strategies: scenario.strategies.map((run) => ({ ...run, series: series(run) })) };
  };

  const values = (strategy, chart, bin) => {
    const series = strategy.series;
    if (chart.key === "amplification") {
      return series.received.map((received, at) => (series.admitted[at] > 0 ? received / series.admitted[at] : null));
    }
    const all = series[chart.key] || [];
    return chart.rate ? all.map((count) => (count * 1000) / bin) : all;
  };
  const shownRuns = (view) => view.data.strategies.filter((run) => run.variant === view.variant && !view.hidden.has(run.name));

  /* Labels at the right, each near its line's end, none on another. */
  const spread = (labels, top, bottom, gap) => {
    labels.sort((a, b) => a.y - b.y);
    let last = top - gap;
    for (const label of labels) last = label.y = Math.max(label.y, last + gap);
    let next = bottom + gap;
    for (const label of labels.reverse()) next = label.y = Math.min(label.y, next - gap);
  };

  const drawAxes = (svg, frame, most, chart, unit) => {
    const step = nice(most, frame.tall ? 5 : 4);
    for (let value = 0; value <= most * 1.0001; value += step) {
      const y = frame.y(value);
      svg.append(make("svg:line", { x1: frame.left, x2: frame.right, y1: y, y2: y, class: value === 0 ? "axis" : "grid" }));
      svg.append(make("svg:text", { x: frame.left - 7, y: y + 4, "text-anchor": "end" }, number(value) + (unit === "×" ? unit : "")));
    }
  };

  const drawTime = (svg, frame, view) => {
    const span = frame.span;
    const step = nice(span / 1000, Math.max(2, Math.floor((frame.right - frame.left) / 80))) * 1000;
    for (let at = 0; at <= span; at += step) {
      const last = at + step > span;
      const anchor = at === 0 ? "start" : last && frame.x(at) > frame.right - 14 ? "end" : "middle";
      svg.append(make("svg:text", { x: frame.x(at), y: frame.bottom + 17, "text-anchor": anchor }, seconds(at)));
    }
    /* What began within the load ends after it. */
    if (span > view.data.duration_ms) {
      const x = frame.x(view.data.duration_ms);
      svg.append(make("svg:line", { x1: x, x2: x, y1: frame.top, y2: frame.bottom, class: "base" }));
      svg.append(make("svg:text", { x, y: frame.top - 5, "text-anchor": "middle", class: "reference-name" }, "load ends"));
    }
    view.data.marks.forEach((mark, at) => {
      const x = frame.x(Math.min(mark.at_ms, span));
      if (mark.until_ms !== null) {
        const end = frame.x(Math.min(mark.until_ms, span));
        svg.append(make("svg:rect", { x, y: frame.top, width: Math.max(1, end - x), height: frame.bottom - frame.top, class: "band" }));
        svg.append(make("svg:line", { x1: end, x2: end, y1: frame.top, y2: frame.bottom, class: "edge" }));
      }
      svg.append(make("svg:line", { x1: x, x2: x, y1: frame.top, y2: frame.bottom, class: mark.until_ms === null ? "moment" : "edge" }));
      /* Letters of marks at one time stand side by side. */
      const before = view.data.marks.slice(0, at).filter((other) => Math.abs(frame.x(other.at_ms) - x) < 10).length;
      svg.append(make("svg:text", { x: x + before * 11, y: frame.top - 5, class: "letter", "text-anchor": "middle" }, letter(at)));
    });
  };

  /* The last bin in which anything happened, of all strategies: their charts share one width. */
  const bins = (data) => {
    const last = (list) => list.reduce((found, value, at) => (value > 0 ? at + 1 : found), 0);
    return Math.max(0, ...data.strategies.flatMap((run) => Object.values(run.series).map(last)));
  };

  const path = (points) => {
    let text = "";
    let pen = false;
    for (const [x, y] of points) {
      if (y === null) { pen = false; continue; }
      text += `${pen ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = true;
    }
    return text;
  };

  const drawChart = (view, chart, plot) => {
    const width = plot.clientWidth;
    if (width < 50) return;
    const runs = shownRuns(view);
    const bin = view.data.bin_ms;
    const lines = runs.map((run) => ({ run, values: values(run, chart, bin).slice(0, view.bins) }));
    const offered = runs.length > 0 ? runs[0] : view.data.strategies.find((run) => run.variant === view.variant);
    const reference = chart.reference && offered ? offered.series.offered.slice(0, view.bins).map((count) => (count * 1000) / bin) : [];
    let most = Math.max(chart.base || 0, ...reference, ...lines.flatMap((line) => line.values.filter((value) => value !== null)));
    if (most <= 0) most = 1;
    const step = nice(most, chart.lead ? 5 : 4);
    most = Math.ceil((most * 1.02) / step) * step;
    const height = chart.lead ? 290 : 190;
    const narrow = width < 440;
    const frame = { left: 46, right: width - (narrow ? 50 : 58), top: 20, bottom: height - 26, tall: chart.lead };
    frame.span = Math.max(1, view.data.duration_ms, view.bins * bin);
    frame.x = (ms) => frame.left + ((frame.right - frame.left) * ms) / frame.span;
    frame.y = (value) => frame.bottom - ((frame.bottom - frame.top) * value) / most;
    const svg = make("svg:svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(view, chart, lines) });
    if (reference.length > 0) {
      const points = reference.map((value, at) => [frame.x((at + 0.5) * bin), frame.y(value)]);
      const first = points[0], last = points[points.length - 1];
      svg.append(make("svg:path", { class: "reference", d: `M${first[0]} ${frame.bottom}${path(points).replace("M", "L")}L${last[0]} ${frame.bottom}Z` }));
    }
    drawAxes(svg, frame, most, chart, chart.unit);
    drawTime(svg, frame, view);
    if (chart.base) svg.append(make("svg:line", { x1: frame.left, x2: frame.right, y1: frame.y(chart.base), y2: frame.y(chart.base), class: "base" }));
    const labels = [];
    for (const { run, values: list } of lines) {
      const points = list.map((value, at) => [frame.x((at + 0.5) * bin), value === null ? null : frame.y(value)]);
      svg.append(make("svg:path", { class: `line s${run.slot}`, d: path(points) }));
      /* Beside where it was when the load ended: afterwards all end at nothing. */
      const ends = points.slice(0, Math.max(1, Math.round(view.data.duration_ms / bin))).filter((point) => point[1] !== null).slice(-3);
      const height = ends.reduce((sum, point) => sum + point[1], 0) / ends.length;
      if (ends.length > 0) labels.push({ y: height, text: run.name, slot: run.slot });
    }
    spread(labels, frame.top + 4, frame.bottom, 13);
    for (const label of labels) {
      const most = narrow ? 7 : 9;
      const text = label.text.length > most ? `${label.text.slice(0, most - 1)}…` : label.text;
      svg.append(make("svg:text", { x: frame.right + 6, y: label.y + 4, class: `direct s${label.slot}` }, text));
    }
    const cross = make("svg:g", { class: "crosshair" });
    svg.append(cross);
    plot.replaceChildren(svg);
    plot.drawn = { frame, lines, reference, cross };
  };

  const describe = (view, chart, lines) => {
    const parts = lines.map(({ run, values: list }) => {
      const known = list.filter((value) => value !== null);
      return known.length > 0 ? `${run.name} at most ${number(Math.max(...known))}${chart.unit || ""}` : `${run.name} n/a`;
    });
    return `${chart.title}, ${chart.help}, over ${seconds(view.data.duration_ms)}: ${parts.join("; ")}`;
  };

  // === crosshair and tooltip ===

  const tip = make("div", { class: "tip", role: "status" });
  tip.hidden = true;
  document.body.append(tip);

  const point = (view, bin) => {
    for (const { plot } of view.plots) {
      if (!plot.drawn) continue;
      const { frame, lines, cross } = plot.drawn;
      cross.replaceChildren();
      if (bin === null) continue;
      const x = frame.x((bin + 0.5) * view.data.bin_ms);
      cross.append(make("svg:line", { x1: x, x2: x, y1: frame.top, y2: frame.bottom, class: "cross" }));
      for (const { run, values: list } of lines) {
        if (list[bin] === null || list[bin] === undefined) continue;
        cross.append(make("svg:circle", { cx: x, cy: frame.y(list[bin]), r: 4, class: `dot s${run.slot}` }));
      }
    }
  };

  const tell = (view, chart, plot, bin, left, top) => {
    const { lines, reference } = plot.drawn;
    const from = bin * view.data.bin_ms;
    tip.replaceChildren(make("p", { class: "when" }, `${seconds(from)} to ${seconds(from + view.data.bin_ms)}`));
    view.data.marks.forEach((mark, at) => {
      const end = mark.until_ms === null ? mark.at_ms + view.data.bin_ms : mark.until_ms;
      if (mark.at_ms < from + view.data.bin_ms && end > from) tip.append(make("p", { class: "mark" }, `${letter(at)} ${mark.label}`));
    });
    const table = make("table");
    const row = (name, value, slot) => {
      const line = make("tr", slot === null ? {} : { class: `s${slot}` });
      const cell = make("td");
      cell.append(make("span", { class: "chip" }), name);
      line.append(cell, make("td", {}, number(value) + (value !== null && chart.unit ? chart.unit : chart.rate ? "/s" : "")));
      table.append(line);
    };
    const sorted = [...lines].sort((a, b) => (b.values[bin] ?? -1) - (a.values[bin] ?? -1));
    for (const { run, values: list } of sorted) row(run.name, list[bin] ?? null, run.slot);
    if (reference.length > 0) row("offered", reference[bin] ?? null, null);
    tip.append(table);
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const room = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, left + 16 + box.width > room ? left - 16 - box.width : left + 16)}px`;
    tip.style.top = `${Math.max(4, Math.min(top + 12, window.innerHeight - box.height - 6))}px`;
  };

  const watch = (view, chart, plot) => {
    const count = () => Math.max(0, ...plot.drawn.lines.map((line) => line.values.length));
    const show = (bin, left, top) => {
      if (count() === 0) return;
      view.bin = Math.max(0, Math.min(count() - 1, bin));
      point(view, view.bin);
      tell(view, chart, plot, view.bin, left, top);
    };
    const leave = () => { point(view, null); tip.hidden = true; };
    plot.addEventListener("pointermove", (event) => {
      if (!plot.drawn) return;
      const { frame } = plot.drawn;
      const share = (event.clientX - plot.getBoundingClientRect().left - frame.left) / (frame.right - frame.left);
      show(Math.floor((share * frame.span) / view.data.bin_ms), event.clientX, event.clientY);
    });
    plot.addEventListener("pointerleave", leave);
    plot.addEventListener("blur", leave);
    plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -1e9, End: 1e9 }[event.key];
      if (event.key === "Escape") leave();
      if (move === undefined || !plot.drawn) return;
      event.preventDefault();
      const bin = Math.max(0, Math.min(count() - 1, (view.bin ?? -1) + move));
      const box = plot.getBoundingClientRect();
      show(bin, box.left + plot.drawn.frame.x((bin + 0.5) * view.data.bin_ms), box.top + 20);
    });
  };

  // === the chart of variants ===

  const drawVariants = (view, plot) => {
    const width = plot.clientWidth;
    if (width < 50) return;
    const data = view.data;
    const height = 290;
    const names = [...new Set(data.strategies.map((run) => run.name))].filter((name) => !view.hidden.has(name));
    const runs = data.strategies.filter((run) => names.includes(run.name) && run.amplification !== null);
    const step = nice(Math.max(1, ...runs.map((run) => run.amplification)), 5);
    const most = Math.ceil((Math.max(1, ...runs.map((run) => run.amplification)) * 1.02) / step) * step;
    const frame = { left: 46, right: width - (width < 440 ? 50 : 58), top: 20, bottom: height - 26, tall: true };
    frame.y = (value) => frame.bottom - ((frame.bottom - frame.top) * value) / most;
    const x = (at) => frame.left + 24 + ((frame.right - frame.left - 48) * at) / Math.max(1, data.variants.length - 1);
    const says = runs.map((run) => `${run.name}, ${run.variant}: ${number(run.amplification)}×`).join("; ");
    const svg = make("svg:svg", { height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Amplification for each variant: ${says}` });
    drawAxes(svg, frame, most, {}, "×");
    data.variants.forEach((variant, at) => {
      const short = width < 520 ? variant.split(" ")[0] : variant;
      svg.append(make("svg:text", { x: x(at), y: frame.bottom + 17, "text-anchor": "middle" }, short));
    });
    const labels = [];
    for (const name of names) {
      const mine = runs.filter((run) => run.name === name);
      const points = mine.map((run) => [x(data.variants.indexOf(run.variant)), frame.y(run.amplification)]);
      if (points.length === 0) continue;
      const slot = mine[0].slot;
      svg.append(make("svg:path", { class: `line s${slot}`, d: path(points) }));
      points.forEach(([cx, cy], at) => {
        const dot = make("svg:circle", { cx, cy, r: 4.5, class: `dot s${slot}` });
        dot.append(make("svg:title", {}, `${name}, ${mine[at].variant}: ${number(mine[at].amplification)}×`));
        svg.append(dot);
      });
      labels.push({ y: points[points.length - 1][1], text: name, slot });
    }
    spread(labels, frame.top + 4, frame.bottom, 13);
    for (const label of labels) {
      const text = label.text.length > 9 ? `${label.text.slice(0, 8)}…` : label.text;
      svg.append(make("svg:text", { x: frame.right - 12, y: label.y + 4, class: `direct s${label.slot}` }, text));
    }
    plot.replaceChildren(svg);
  };

  // === one scenario ===

  const fillTable = (view, chart, box) => {
    const runs = shownRuns(view);
    const table = make("table");
    const head = make("tr");
    head.append(make("th", { scope: "col" }, "from"), ...runs.map((run) => make("th", { scope: "col", class: "number" }, run.name)));
    const lists = runs.map((run) => values(run, chart, view.data.bin_ms).slice(0, view.bins));
    const body = make("tbody");
    for (let at = 0; at < Math.max(0, ...lists.map((list) => list.length)); at += 1) {
      const row = make("tr");
      row.append(make("th", { scope: "row" }, seconds(at * view.data.bin_ms)));
      for (const list of lists) row.append(make("td", { class: "number" }, number(list[at] ?? null)));
      body.append(row);
    }
    const top = make("thead");
    top.append(head);
    table.append(make("caption", {}, `${chart.title}, ${chart.help}`), top, body);
    box.replaceChildren(table);
  };

  const figure = (chart, view) => {
    const figure = make("figure", chart.lead ? { class: "lead" } : {});
    const caption = make("figcaption");
    caption.append(make("b", {}, chart.title), make("small", {}, chart.help));
    const plot = make("div", { class: "plot", tabindex: "0" });
    figure.append(caption, plot);
    if (chart.key) {
      const details = make("details");
      const box = make("div", { class: "scroll", tabindex: "0" });
      details.append(make("summary", {}, "As a table"), box);
      details.addEventListener("toggle", () => { if (details.open) fillTable(view, chart, box); });
      figure.append(details);
      view.refill.push(() => { if (details.open) fillTable(view, chart, box); });
      watch(view, chart, plot);
    }
    view.plots.push({ chart, plot });
    return figure;
  };

  for (const section of document.querySelectorAll("[data-scenario]")) {
    const place = section.querySelector("[data-charts]");
    const found = scenarios[Number(section.dataset.scenario)];
    if (!found || !place || !space) continue;
    const data = coarse(found);
    const view = { data, variant: data.variants[data.variants.length - 1], hidden: new Set(), plots: [], refill: [], bins: bins(data), bin: null };
    place.replaceChildren();
    const idle = [];
    if (data.variants.length > 1) place.append(figure({ title: "Amplification for each variant", help: "calls received for each original admitted, over the whole run", lead: true }, view));
    for (const chart of CHARTS) {
      const any = data.strategies.some((run) => values(run, chart, data.bin_ms).some((value) => value > 0));
      if (any) place.append(figure(data.variants.length > 1 ? { ...chart, lead: false } : chart, view));
      else idle.push(chart.title.toLowerCase());
    }
    if (idle.length > 0) place.after(make("p", { class: "quiet" }, `Nothing to draw, zero throughout: ${idle.join(", ")}.`));
    const draw = () => {
      for (const { chart, plot } of view.plots) {
        if (chart.key) drawChart(view, chart, plot);
        else drawVariants(view, plot);
      }
      for (const refill of view.refill) refill();
    };
    const showVariant = () => {
      for (const part of section.querySelectorAll("[data-of-variant]")) part.hidden = data.variants[Number(part.dataset.ofVariant)] !== view.variant;
    };
    for (const button of section.querySelectorAll(".legend [data-strategy]")) {
      button.addEventListener("click", () => {
        const name = button.dataset.strategy;
        const off = view.hidden.delete(name) ? false : Boolean(view.hidden.add(name));
        button.setAttribute("aria-pressed", String(!off));
        for (const row of section.querySelectorAll(".bars [data-strategy]")) if (row.dataset.strategy === name) row.hidden = off;
        draw();
      });
    }
    const choices = [...section.querySelectorAll("[data-variant]")];
    for (const button of choices) {
      button.addEventListener("click", () => {
        view.variant = data.variants[Number(button.dataset.variant)];
        for (const other of choices) other.setAttribute("aria-pressed", String(other === button));
        showVariant();
        draw();
      });
    }
    showVariant();
    draw();
    new ResizeObserver(() => window.requestAnimationFrame(draw)).observe(place);
    window.addEventListener("beforeprint", draw);
  }
})();
