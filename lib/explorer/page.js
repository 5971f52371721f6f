"use strict";
// What is drawn follows from `state` alone; every change of a control draws all of it again.
const began = performance.now();
const $ = (id) => document.getElementById(id);
// Mappings without a prototype: a metric may be called "constructor".
const data = JSON.parse($("data").textContent, (_, value) => (
  value && typeof value === "object" && !Array.isArray(value) ? Object.assign(Object.create(null), value) : value));
const words = data.words;
const Z95 = 1.959964;
const DASHES = { all: "", drop_first: "7 4", drop_sinks: "2 3" };
const ALL_TASKS = "all";
const LEAD = "Difference to the output"; // as in the figures

// Tables

const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f4: Float32Array };

function bytes(text) {
  const raw = atob(text), out = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) out[i] = raw.charCodeAt(i);
  return out.buffer;
}

// A column as a function of the row; a number that is missing is null.
function column({ type, data: packed, values }) {
  const array = new ARRAYS[type](bytes(packed));
  if (values) return (i) => values[array[i]];
  return (i) => (Number.isNaN(array[i]) ? null : array[i]);
}

function unpack({ rows, columns }) {
  const table = { rows };
  for (const name in columns) table[name] = column(columns[name]);
  return table;
}

function curves(packed, keys) {
  const index = unpack(packed.index), points = unpack(packed.points), places = new Map();
  const starts = new Uint32Array(index.rows + 1);
  for (let i = 0; i < index.rows; i++) {
    places.set(keys.map((k) => index[k](i)).join("\n"), i);
    starts[i + 1] = starts[i] + index.length(i);
  }
  index.start = (i) => starts[i];
  return { index, points, find: (names) => places.get(keys.map((k) => names[k]).join("\n")) };
}

const METRIC = ["model", "revision", "corpus", "sublayer", "metric", "protocol", "tokens", "alpha", "normalization"];
const VARIANT = ["corpus", "sublayer", "protocol", "alpha", "normalization"];
const SCORE = ["model", "revision", "tokens", "pooling", "scored", "of"];
const metrics = curves(data.metrics, METRIC);
const scores = curves(data.scores, SCORE);
const associations = unpack(data.associations);
const choices = unpack(data.choices);

function distinct(table, name) {
  const seen = new Set();
  for (let i = 0; i < table.rows; i++) seen.add(table[name](i));
  return [...seen];
}

// The combinations of settings that there are, by metric; and what was scored.
const variants = Object.create(null), scored = [];
{
  const seen = new Set();
  for (let i = 0; i < metrics.index.rows; i++) {
    const own = VARIANT.map((k) => metrics.index[k](i));
    const metric = metrics.index.metric(i), key = metric + "\n" + own.join("\n");
    if (seen.has(key)) continue;
    seen.add(key);
    (variants[metric] ??= []).push(Object.fromEntries(VARIANT.map((k, at) => [k, own[at]])));
  }
  for (let i = 0; i < scores.index.rows; i++) {
    const key = scores.index.scored(i) + "\n" + scores.index.of(i);
    if (!seen.has(key)) { seen.add(key); scored.push(key); }
  }
}
const tokensThere = [...new Set([...distinct(metrics.index, "tokens"), ...distinct(scores.index, "tokens")])]
  .sort((a, b) => Object.keys(words.tokens).indexOf(a) - Object.keys(words.tokens).indexOf(b));
const poolings = distinct(scores.index, "pooling");

// State, which the address holds too

const state = {
  models: data.models.slice(0, 7).map((m) => m.name), tokens: [tokensThere[0]],
  stop: 0, checkpoint: "", trail: false, axis: "depth",
  scored: scored[0] ?? "", pooling: poolings.includes("mean") ? "mean" : poolings[0] ?? "",
  metric: "prompt_entropy" in variants ? "prompt_entropy" : Object.keys(variants)[0] ?? "",
  corpus: "", sublayer: "block", protocol: "paper", alpha: "1", normalization: "raw",
};

function recall() {
  try {
    const saved = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    for (const key in state) if (typeof saved[key] === typeof state[key]) state[key] = saved[key];
  } catch { /* an address that someone altered */ }
  state.models = data.models.map((m) => m.name).filter((n) => state.models.includes(n));
  state.tokens = tokensThere.filter((t) => state.tokens.includes(t));
  const stop = data.timeline.indexOf(state.checkpoint); // a number would change its meaning with the run
  state.stop = stop < 0 ? Math.max(0, data.timeline.length - 1) : stop;
  if (!scored.includes(state.scored)) state.scored = scored[0] ?? "";
  if (!poolings.includes(state.pooling)) state.pooling = poolings[0] ?? "";
  if (!(state.metric in variants)) state.metric = Object.keys(variants)[0] ?? "";
}

// A metric that lacks what is chosen takes the first that it has.
function settle() {
  let left = variants[state.metric] ?? [];
  const offered = {};
  for (const key of VARIANT) {
    offered[key] = [...new Set(left.map((v) => v[key]))];
    const usual = { protocol: "paper", alpha: "1", normalization: "raw", sublayer: "block" }[key];
    if (!offered[key].includes(state[key]))
      state[key] = offered[key].includes(usual) ? usual : offered[key][0] ?? "";
    left = left.filter((v) => v[key] === state[key]);
  }
  return offered;
}

// Words and numbers

const short = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(4))).replace("-", "−"));
const exact = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(7))));
const two = (value) => value.toFixed(2).replace("-", "−"); // as in the figures
const one = (value) => value.toFixed(1).replace("-", "−"); // of scores × 100, as in the report
const points100 = (value) => (value === null ? null : value * 100);

function scoreName() {
  const [how, of] = state.scored.split("\n");
  if (how === ALL_TASKS) return "Mean score over all tasks";
  return how === "task_type" ? `Mean score, ${of}` : `Score, ${of}`;
}

function metricName() {
  const notes = [words.unit[state.metric]?.[state.normalization] ?? ""];
  if (state.normalization && state.normalization !== "raw") notes.push(words.normalization[state.normalization]);
  if (state.alpha && state.alpha !== "1") notes.push(`α = ${state.alpha.replace("inf", "∞")}`);
  const suffix = notes.filter(Boolean).join(", ");
  const name = words.metric[state.metric] ?? state.metric;
  return suffix ? `${name} (${suffix})` : name;
}

// What is drawn

const revisionAt = (model, stop) => (model.at[stop] < 0 ? null : model.revisions[model.at[stop]]);

function lineOf(which, model, revision, tokens) {
  const place = which === "score"
    ? scores.find({ model: model.name, revision, tokens, pooling: state.pooling,
                    scored: state.scored.split("\n")[0], of: state.scored.split("\n")[1] })
    : metrics.find({ ...state, model: model.name, revision, tokens });
  if (place === undefined) return null;
  const from = which === "score" ? scores : metrics, { index, points } = from;
  const start = index.start(place), length = index.length(place), found = [];
  for (let i = start; i < start + length; i++) {
    const layer = points.layer(i), point = { layer, depth: model.last ? layer / index.last(place) : 0 };
    if (which === "score") {
      const ends = [points.low(i), points.high(i)].map(points100);
      point.value = points100(points.value(i));
      point.n = points.n_tasks(i); point.counted = "tasks"; point.sources = points.n_clusters(i);
      // Of several tasks the interval is that of the difference to the output, of a single one the evaluator's.
      if (point.n === 1) point.ends = ends;
      else if (ends[0] !== null) point.lead = [point.value, ...ends].map((value) => value - points100(points.output_score(i)));
    } else {
      point.value = points.value(i); point.stderr = points.stderr(i);
      if (point.value !== null && point.stderr !== null) {
        point.low = point.value - Z95 * point.stderr; point.high = point.value + Z95 * point.stderr;
      }
      point.n = points.n(i); point.counted = "prompts"; point.left = points.n_left_out(i);
    }
    found.push(point);
  }
  const line = { which, model, revision, tokens, points: found, file: index.file(place) };
  if (which === "score") {
    const output = points100(points.output_score(start));
    if (output !== null) line.output = { layer: index.last(place), depth: 1, value: output, output: true, n: found[0].n, counted: "tasks", sources: found[0].sources };
  }
  return line;
}

// Layers are compared by the interval of their difference to the output: the lines of a chart of their own.
function leadsOf(lines) {
  return lines.filter((line) => line.points.some((p) => p.lead)).map((line) => ({ ...line, which: "lead", output: undefined,
    points: line.points.map((p) => { const [value, low, high] = p.lead ?? [null]; return { ...p, value, low, high }; }) }));
}

function drawnLines(which) {
  const full = [], faint = [], lacking = new Set();
  for (const name of state.models) {
    const model = data.models.find((m) => m.name === name);
    const now = revisionAt(model, state.stop);
    for (const tokens of state.tokens) {
      const line = now === null ? null : lineOf(which, model, now, tokens);
      if (line) full.push(line); else lacking.add(now === null || model.revisions.length < 2 ? name : `${name} at ${now}`);
      if (!state.trail || model.revisions.length < 2) continue;
      for (let r = 0; r < model.at[state.stop]; r++) {
        const before = lineOf(which, model, model.revisions[r], tokens);
        if (before) faint.push(before);
      }
    }
  }
  return { full, faint, lacking: lacking.size ? ` Not shown: ${[...lacking].join(", ")}.` : "" };
}

// Rank correlation of the points shown; no interval belongs to it, since layers are one curve.
function ranks(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]), result = [];
  for (let i = 0; i < order.length;) {
    let j = i;
    while (j + 1 < order.length && values[order[j + 1]] === values[order[i]]) j++;
    for (let k = i; k <= j; k++) result[order[k]] = (i + j) / 2;
    i = j + 1;
  }
  return result;
}

function spearman(xs, ys) {
  if (xs.length < 3) return null;
  const a = ranks(xs), b = ranks(ys), mean = (xs.length - 1) / 2;
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) {
    ab += (a[i] - mean) * (b[i] - mean); aa += (a[i] - mean) ** 2; bb += (b[i] - mean) ** 2;
  }
  return aa && bb ? ab / Math.sqrt(aa * bb) : null;
}

function pairsOf(scoreLines, metricLines) {
  const pairs = [];
  for (const m of metricLines) {
    const s = scoreLines.find((line) => line.model === m.model && line.tokens === m.tokens && line.revision === m.revision);
    if (!s) continue;
    const points = m.points.flatMap((p) => {
      const q = s.points.find((other) => other.layer === p.layer);
      return q && p.value !== null && q.value !== null
        ? [{ layer: p.layer, depth: p.depth, x: p.value, value: q.value, ends: q.ends, lead: q.lead, n: q.n, counted: q.counted, metric: p }] : [];
    });
    if (points.length) pairs.push({ ...m, which: "against", points, scoreFile: s.file, output: undefined, own: s.output,
                 rho: spearman(points.map((p) => p.x), points.map((p) => p.value)) });
  }
  return pairs;
}

// Which rows of the stored tables are about a pair of curves. A study may be of fewer tasks than
// are shown: of all the tasks there are, none but the same are as many.
function storedRows(table, line) {
  const [how, of] = state.scored.split("\n"), matches = [];
  const score = how === "task" ? null : lineOf("score", line.model, line.revision, line.tokens);
  if (!score) return matches;
  const wanted = { model: line.model.name, revision: line.revision, tokens: line.tokens, pooling: state.pooling,
                   task_type: how === ALL_TASKS ? "all" : of, metric: state.metric, corpus: state.corpus,
                   protocol: state.protocol, alpha: state.alpha, normalization: state.normalization,
                   n_tasks: score.points[0].n };
  if (state.sublayer !== "block") return matches;
  for (let i = 0; i < table.rows; i++)
    if (Object.keys(wanted).every((k) => table[k](i) === wanted[k])) matches.push(i);
  return matches;
}

// Drawing

const SVG = "http://www.w3.org/2000/svg";

function make(parent, name, given = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const key in given) element.setAttribute(key, given[key]);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

function element(parent, name, given = {}, text) {
  const made = document.createElement(name);
  for (const key in given) made.setAttribute(key, given[key]);
  if (text !== undefined) made.textContent = text;
  parent?.append(made);
  return made;
}

const MARKERS = [
  (x, y, r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`,
  (x, y, r) => `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}z`,
  (x, y, r) => `M${x} ${y - r * 1.2}l${r * 1.15} ${r * 2}h${-r * 2.3}z`,
  (x, y, r) => `M${x} ${y - r * 1.35}l${r * 1.35} ${r * 1.35}l${-r * 1.35} ${r * 1.35}l${-r * 1.35} ${-r * 1.35}z`,
  (x, y, r) => `M${x} ${y + r * 1.2}l${r * 1.15} ${-r * 2}h${-r * 2.3}z`,
  (x, y, r) => `M${x - r * .45} ${y - r * 1.3}h${r * .9}v${r * .85}h${r * .85}v${r * .9}h${-r * .85}v${r * .85}h${-r * .9}v${-r * .85}h${-r * .85}v${-r * .9}h${r * .85}z`,
  (x, y, r) => `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`,
];
const colourOf = (model) => `var(--c${model.colour})`;

function ticks(low, high, most) {
  const raw = (high - low) / most, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((k) => k * power).find((k) => k >= raw * 0.999);
  const values = [];
  for (let t = Math.ceil(low / step - 1e-9); t * step <= high + step * 1e-9; t++) values.push(Number((t * step).toPrecision(12)));
  return values;
}

function extent(values) {
  let low = Infinity, high = -Infinity;
  for (const v of values) if (v !== null && v !== undefined && Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
  if (low > high) return null;
  const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 0.5;
  return [low - room, high + room];
}

const charts = {};

function chart(id, { full, faint = [], x, xLabel, y, whole, marks = [], connect = true, zero }) {
  const box = document.querySelector(`#${id} .chart`);
  box.replaceChildren();
  const width = Math.max(260, box.clientWidth), height = box.clientHeight;
  const svg = make(box, "svg", { viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: "group",
    "aria-label": `${document.querySelector(`#${id} h2`).textContent}. Arrow keys: left and right along a curve, up and down between curves.` });
  const all = [...full, ...faint];
  const points = (line) => line.points.concat(line.output ?? []);
  // Bands belong into view, unless they are far wider than all curves together.
  const values = extent(all.flatMap((l) => points(l).map((p) => p.value)));
  const xs = whole ? [0, whole] : extent(all.flatMap((l) => l.points.map(x)));
  charts[id] = { svg, full, at: () => null };
  if (!values || !xs) {
    make(svg, "text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing to draw for these choices");
    return;
  }
  const bands = connect && extent(full.flatMap((l) => l.points.flatMap((p) => [p.low ?? null, p.high ?? null])));
  const span = values[1] - values[0];
  const ys = bands ? [Math.min(values[0], Math.max(bands[0], values[0] - span)), Math.max(values[1], Math.min(bands[1], values[1] + span))] : values;
  const yTicks = ticks(ys[0], ys[1], height / 48), xTicks = ticks(xs[0], xs[1], width / 75);
  const left = 14 + 7 * Math.max(...yTicks.map((t) => short(t).length)), right = 12, top = 8, bottom = 38;
  const px = (v) => left + ((v - xs[0]) / (xs[1] - xs[0])) * (width - left - right);
  const py = (v) => height - bottom - ((v - ys[0]) / (ys[1] - ys[0])) * (height - top - bottom);
  const inside = (v) => Math.max(top, Math.min(height - bottom, py(v)));
  for (const t of yTicks) {
    make(svg, "line", { class: "grid", x1: left, x2: width - right, y1: py(t), y2: py(t) });
    make(svg, "text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, short(t));
  }
  for (const t of xTicks) make(svg, "text", { x: px(t), y: height - bottom + 16, "text-anchor": "middle" }, short(t));
  make(svg, "line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom });
  if (zero) make(svg, "line", { class: "axis", x1: left, x2: width - right, y1: py(0), y2: py(0) });
  make(svg, "text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel);
  const runs = (line) => {
    const segments = [[]];
    for (const p of line.points) p.value === null ? segments.push([]) : segments.at(-1).push(p);
    return segments.filter((r) => r.length);
  };
  const path = (run) => run.map((p, i) => `${i ? "L" : "M"}${px(x(p)).toFixed(1)} ${py(p.value).toFixed(1)}`).join("");
  for (const line of faint)
    make(svg, "path", { class: "faint", d: runs(line).map(path).join(""), fill: "none", stroke: colourOf(line.model), "stroke-opacity": 0.18, "stroke-dasharray": DASHES[line.tokens] ?? "" });
  for (const line of full) {
    for (const run of connect ? runs(line) : []) {
      const known = run.filter((p) => p.low !== undefined && p.low !== null);
      if (known.length > 1) {
        const up = known.map((p, i) => `${i ? "L" : "M"}${px(x(p)).toFixed(1)} ${inside(p.high).toFixed(1)}`).join("");
        const down = known.toReversed().map((p) => `L${px(x(p)).toFixed(1)} ${inside(p.low).toFixed(1)}`).join("");
        make(svg, "path", { class: "band", d: `${up}${down}z`, fill: colourOf(line.model), "fill-opacity": 0.13 });
      }
    }
  }
  for (const line of full) {
    make(svg, "path", { class: "line", d: runs(line).map(path).join(""), fill: "none", stroke: colourOf(line.model),
      "stroke-width": connect ? 2 : 1, "stroke-opacity": connect ? 1 : 0.4, "stroke-dasharray": DASHES[line.tokens] ?? "",
      "data-model": line.model.name, "data-tokens": line.tokens, "data-revision": line.revision });
    const shown = line.points.filter((p) => p.value !== null);
    const every = connect ? Math.ceil(shown.length / 40) : 1;
    const d = shown.filter((_, i) => i % every === 0).map((p) => MARKERS[line.model.marker](px(x(p)), py(p.value), connect ? 2.6 : 3.6)).join("");
    make(svg, "path", { d, fill: line.model.marker === 6 ? "none" : colourOf(line.model), stroke: colourOf(line.model),
      "fill-opacity": line.tokens === state.tokens[0] ? 1 : 0.25 });
    if (line.output)
      make(svg, "path", { class: "output", d: MARKERS[0](px(x(line.output)), py(line.output.value), 5.5), fill: "none", stroke: colourOf(line.model), "stroke-width": 2 });
  }
  for (const { line, layer, kind } of marks) {
    const p = line.points.find((q) => q.layer === layer && q.value !== null);
    if (p) make(svg, "path", { class: kind, d: MARKERS[kind === "selected" ? 3 : 0](px(x(p)), py(p.value), 7), fill: "none", stroke: "var(--ink)", "stroke-width": 1.6 });
  }
  const ring = make(svg, "circle", { r: 6, fill: "none", stroke: "var(--ink)", "stroke-width": 2.5, visibility: "hidden" });
  const tip = element(box, "div", { class: "tip", hidden: "" });
  const flat = full.flatMap((line) => points(line).filter((p) => p.value !== null).map((point) => ({ line, point })));
  function show(target, spoken) {
    ring.setAttribute("visibility", target ? "visible" : "hidden");
    tip.hidden = !target;
    if (!target) return;
    ring.setAttribute("cx", px(x(target.point))); ring.setAttribute("cy", py(target.point.value));
    tip.textContent = describe(target, y).join("\n");
    const at = px(x(target.point)) * (box.clientWidth / width);
    tip.style.left = `${Math.max(0, Math.min(at + 12, box.clientWidth - tip.offsetWidth))}px`;
    const over = py(target.point.value) - tip.offsetHeight - 12;
    tip.style.top = `${over < 0 ? py(target.point.value) + 14 : over}px`;
    if (spoken) detail(target, y);
  }
  charts[id] = { svg, full, show, y, connect };
  const others = (target) => {
    for (const other in charts) {
      if (other === id || !charts[other].show) continue;
      const line = charts[other].full.find((l) => l.model === target?.line.model && l.tokens === target.line.tokens);
      const point = line?.points.find((p) => p.layer === target.point.layer && p.value !== null && !target.point.output);
      charts[other].show(point ? { line, point } : null);
    }
  };
  let now = null;
  const go = (target, spoken = true) => { now = target; show(target, spoken); others(target); };
  svg.addEventListener("pointermove", (event) => {
    const place = svg.getBoundingClientRect();
    const mx = ((event.clientX - place.left) * width) / place.width, my = ((event.clientY - place.top) * height) / place.height;
    let nearest = null, least = 60 ** 2;
    for (const each of flat) {
      const d = (px(x(each.point)) - mx) ** 2 + (py(each.point.value) - my) ** 2;
      if (d < least) { least = d; nearest = each; }
    }
    if (nearest !== now) go(nearest);
  });
  svg.addEventListener("pointerleave", () => go(null));
  svg.addEventListener("blur", () => go(null));
  svg.addEventListener("keydown", (event) => {
    const along = { ArrowRight: 1, ArrowLeft: -1 }[event.key], across = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") return go(null);
    if ((!along && !across) || !full.length) return;
    event.preventDefault();
    const lines = full.filter((l) => points(l).some((p) => p.value !== null));
    let line = now?.line ?? lines[0], own = points(line).filter((p) => p.value !== null);
    if (!now) return go({ line, point: own[0] });
    if (across) {
      line = lines[(lines.indexOf(line) + across + lines.length) % lines.length];
      own = points(line).filter((p) => p.value !== null);
      return go({ line, point: own.reduce((a, b) => (Math.abs(b.depth - now.point.depth) < Math.abs(a.depth - now.point.depth) ? b : a)) });
    }
    go({ line, point: own[Math.max(0, Math.min(own.length - 1, own.indexOf(now.point) + along))] });
  });
}

// The words about a point: what it is, value, interval, count.
function describe({ line, point }, name) {
  const what = point.output ? "model output" : `layer ${point.layer} of ${line.model.last}`;
  const parts = [`${line.model.name}${line.model.revisions.length > 1 ? `, ${line.revision}` : ""}: ${what}`,
                words.tokens[line.tokens] ?? line.tokens];
  if (line.which === "against") parts.push(`${metricName()}: ${short(point.x)}`);
  const number = line.which === "metric" ? short : one;
  parts.push(`${name}: ${number(point.value)}`);
  const ends = (low, high) => `95% CI ${number(low)} to ${number(high)}`;
  if ((point.low ?? null) !== null) parts.push(ends(point.low, point.high));
  else if (point.lead) parts.push(`${LEAD}: ${one(point.lead[0])} (${ends(...point.lead.slice(1))})`);
  else if ((point.ends?.[0] ?? null) !== null) parts.push(`${ends(...point.ends)} of the evaluator`);
  else if (!point.output) parts.push("no interval");
  if (point.n) {
    const sources = point.sources && point.sources !== point.n ? `, ${point.sources} task cluster${point.sources > 1 ? "s" : ""}` : "";
    parts.push(`n = ${point.n} ${point.n === 1 ? point.counted.slice(0, -1) : point.counted}${sources}${point.left ? `, ${point.left} left out` : ""}`);
  }
  return parts;
}

function detail(target, name) {
  const box = $("detail");
  box.textContent = `${describe(target, name).join(" · ")} · `;
  element(box, "a", { href: target.line.file }, decodeURI(target.line.file));
  if (target.line.scoreFile) { box.append(" · "); element(box, "a", { href: target.line.scoreFile }, decodeURI(target.line.scoreFile)); }
}

// The better end of the metric, or the highest score, of those shown.
function endOf(line, direction) {
  let best = null;
  for (const p of line.points) if (p.value !== null && (best === null || direction * p.value > direction * best.value)) best = p;
  return best;
}

// The layer that a metric selects: the stored one, or that at the better end of the curve shown.
// None where several are equal, or where another layer is at that end without the first token.
function selectedBy(line, stored) {
  const direction = words.direction[state.metric];
  const end = direction ? endOf(line, direction) : null;
  const layer = stored !== undefined ? choices.layer(stored) : end?.layer ?? null;
  if (layer === null) return { layer, why: direction ? "none" : "none: the metric has no better end" };
  if (stored !== undefined && choices.unreliable(stored)) return { layer: null, why: `unreliable: ${choices.unreliable(stored)}` };
  if (stored === undefined && line.points.filter((p) => p.value === end.value).length > 1) return { layer: null, why: "none: several layers are equal" };
  const bare = direction && line.tokens === "all" ? lineOf("metric", line.model, line.revision, "drop_first") : null;
  if (bare && endOf(bare, direction)?.layer !== layer) return { layer: null, why: `none: the first token decides it (layer ${layer})` };
  return { layer, why: `layer ${layer}` };
}

function cells(row, values, heads) {
  values.forEach((value, i) => element(row, "td", { "data-label": heads[i], ...(typeof value === "number" && { class: "number" }) }, typeof value === "number" ? short(value) : value));
}

function tableOf(parent, heads, rows) {
  const table = element(parent, "table"), head = element(element(table, "thead"), "tr"), body = element(table, "tbody");
  for (const name of heads) element(head, "th", { scope: "col" }, name);
  for (const values of rows) cells(element(body, "tr"), values, heads);
  return table;
}

function drawSure(pairs) {
  const box = document.querySelector("#sure .scroll"), files = new Set(), reasons = new Set();
  box.replaceChildren();
  const name = (line) => `${line.model.name}${line.model.revisions.length > 1 ? `, ${line.revision}` : ""}${state.tokens.length > 1 ? `, ${words.tokens[line.tokens]}` : ""}`;
  const measured = pairs.map((line) => {
    const found = {};
    for (const i of storedRows(associations, line)) {
      const null95 = associations.null95(i), low = associations.low(i), value = associations.value(i);
      files.add(associations.file(i));
      if (value === null) {
        if (associations.reason(i)) reasons.add(`${name(line)}: ${associations.reason(i)}`);
        continue;
      }
      const clusters = associations.n_sources?.(i) ?? words.fewest_clusters;
      const about = low === null ? (null95 === null ? " (no CI)" : ` (${two(null95)})`)
        : clusters < words.fewest_clusters ? ` (no CI: ${clusters} task clusters)` : ` (${two(low)} to ${two(associations.high(i))})`;
      found[associations.measure(i)] = two(value) + about;
    }
    return [name(line), line.rho === null ? "–" : two(line.rho), ...["r", "slope", "dcor"].map((m) => found[m] ?? "–")];
  });
  if (!pairs.length) {
    element(box, "p", {}, "No model here has both this metric and this score.");
    return;
  }
  const about = tableOf(box, ["", "Spearman’s ρ", "Partial r (null 95%)", "Slope, points per SD (95% CI)", "dCor (null 95%)"], measured);
  about.setAttribute("aria-label", "Association");
  element(box, "p", { class: "note" }, "Null 95%: the level that 95% of unrelated curves as smooth as the score’s stay below; for a distance correlation, of random walks. The layers of a model are one curve, so ρ has no p-value." +
    (measured.every((r) => r.slice(2).every((v) => v === "–")) ? " No study of this run has this pair." : ""));
  const chosen = pairs.map((line) => {
    const best = line.points.reduce((a, b) => (b.value > a.value ? b : a), line.points[0]);
    const ofOutput = line.own && line.own.value > best.value, highest = ofOutput ? line.own.value : best.value;
    const i = storedRows(choices, line)[0];
    if (i !== undefined) files.add(choices.file(i));
    const curve = lineOf("metric", line.model, line.revision, line.tokens);
    const { layer, why } = selectedBy(curve, i), stored = i === undefined ? null : choices.layer(i);
    const at = line.points.find((p) => p.layer === (layer ?? stored));
    let lost = "–";
    if (at && i !== undefined && choices.regret(i) !== null) {
      const [value, low, high] = ["regret", "regret_low", "regret_high"].map((name) => points100(choices[name](i)));
      lost = `${one(value)} (${low === null ? "no CI" : `${one(low)} to ${one(high)}`})`;
    } else if (at) lost = `${one(highest - at.value)} (no CI)`;
    return [name(line), why, at ? one(at.value) : "–", lost, ofOutput ? `model output: ${one(highest)}` : `layer ${best.layer}: ${one(highest)}`];
  });
  const table = tableOf(box, ["", `Layer selected by ${words.metric[state.metric] ?? state.metric}`, "Its score", "Points lost (95% CI)", "Best layer"], chosen);
  table.setAttribute("aria-label", "Layers selected");
  const links = element(box, "p", { class: "note" });
  for (const reason of reasons) links.append(`${reason}. `);
  for (const file of files) { element(links, "a", { href: file }, decodeURI(file)); links.append(" "); }
}

const HEADS = ["quantity", "model", "checkpoint", "tokens", "layer", "depth (%)", "value", "low", "high", "n", "counted", "file"];

function drawnRows(lines, name) {
  return lines.flatMap((line) => line.points.concat(line.output ?? []).filter((p) => p.value !== null).map((p) => [
    name, line.model.name, line.revision, line.tokens, p.output ? "output" : p.layer, 100 * p.depth, p.value, ...(p.low === undefined ? p.ends ?? [null, null] : [p.low, p.high]),
    p.n, p.counted, line.file]));
}

const MOST_ROWS = 400;
let rows = [];

function drawTable() {
  const table = document.querySelector("#values table");
  table.replaceChildren();
  const head = element(element(table, "thead"), "tr"), body = element(table, "tbody");
  for (const name of HEADS) element(head, "th", { scope: "col" }, name);
  for (const row of rows.slice(0, MOST_ROWS)) {
    const made = element(body, "tr");
    cells(made, row.slice(0, -1).map((v) => v ?? ""), HEADS);
    element(element(made, "td"), "a", { href: row.at(-1) }, decodeURI(row.at(-1)));
  }
  $("count").textContent = rows.length > MOST_ROWS ? `The first ${MOST_ROWS} of ${rows.length} rows; the CSV holds all.` : `${rows.length} rows`;
}

// Programs for spreadsheets run what begins like a formula; an apostrophe in front makes it text.
function csv() {
  const cell = (value) => {
    if (value === null || value === undefined) return "";
    if (typeof value === "number") return exact(value);
    const safe = /^\s*[=+\-@]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [HEADS, ...rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

// A chart as a file of its own, with title, axis label, legend and source: the page's style is written into each element.
const STYLED = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "font-family", "font-size", "text-anchor", "visibility"];

function wrapped(text, most) {
  const lines = [""];
  for (const word of text.split(" ")) lines.at(-1).length + word.length < most ? lines.push(`${lines.pop()} ${word}`.trim()) : lines.push(word);
  return lines;
}

function picture(id) {
  const { svg, full, y, connect } = charts[id], copy = svg.cloneNode(true), [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  const own = [...svg.querySelectorAll("*")], theirs = [...copy.querySelectorAll("*")];
  own.forEach((each, i) => {
    const style = getComputedStyle(each);
    for (const name of STYLED) theirs[i].style.setProperty(name, style.getPropertyValue(name));
  });
  const page = getComputedStyle(document.documentElement), card = getComputedStyle(document.querySelector(".card"));
  const colour = (value) => value.replace(/var\((--\w+)\)/, (_, name) => page.getPropertyValue(name).trim());
  const section = document.querySelector(`#${id}`), side = 22, top = 30, line = 17, font = { "font-family": card.fontFamily || "sans-serif", fill: colour(card.color || "black") };
  const notes = wrapped(section.querySelector(".note").textContent, (width + side) / 5.6);
  const sources = [...new Set(full.flatMap((l) => [l.file, l.scoreFile]).filter(Boolean))].map((file) => decodeURI(file));
  notes.push(...wrapped(`Source: ${data.title}; ${sources.slice(0, 3).join(", ")}${sources.length > 3 ? ` and ${sources.length - 3} more files` : ""}`, (width + side) / 5.6));
  const whole = make(null, "svg", { width: width + side, height: top + height + line * (full.length + notes.length) + 12 });
  make(whole, "rect", { width: "100%", height: "100%", fill: colour(card.backgroundColor || "white") });
  make(whole, "text", { ...font, class: "title", x: 8, y: 20, "font-size": 15, "font-weight": "bold" }, section.querySelector("h2").textContent);
  make(whole, "text", { ...font, class: "y", "font-size": 12, "text-anchor": "middle", transform: `translate(14 ${top + height / 2}) rotate(-90)` }, y);
  for (const [name, value] of Object.entries({ x: side, y: top, width, height })) copy.setAttribute(name, value);
  whole.append(copy);
  let at = top + height + line;
  for (const { model, revision, tokens } of full) {
    const stroke = colour(colourOf(model)), dash = DASHES[tokens] ?? "";
    if (connect) make(whole, "line", { x1: 8, x2: 40, y1: at - 4, y2: at - 4, stroke, "stroke-width": 2, "stroke-dasharray": dash });
    make(whole, "path", { d: MARKERS[model.marker](24, at - 4, 4), fill: model.marker === 6 ? "none" : stroke, stroke });
    const names = [model.name, model.revisions.length > 1 ? revision : "", state.tokens.length > 1 ? words.tokens[tokens] ?? tokens : ""];
    make(whole, "text", { ...font, class: "legend", x: 48, y: at, "font-size": 12 }, names.filter(Boolean).join(", "));
    at += line;
  }
  for (const note of notes) { make(whole, "text", { ...font, class: "note", x: 8, y: at, "font-size": 11 }, note); at += line; }
  const size = Object.fromEntries(["width", "height"].map((name) => [name, Number(whole.getAttribute(name))]));
  return { text: new XMLSerializer().serializeToString(whole), ...size };
}

function save(id, type) {
  const { text, width, height } = picture(id);
  if (type === "svg") return download(new Blob([text], { type: "image/svg+xml" }), `${id}.svg`);
  const image = new Image(), canvas = element(null, "canvas", { width: 2 * width, height: 2 * height });
  image.addEventListener("load", () => {
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob((blob) => download(blob, `${id}.png`));
  });
  image.src = `data:image/svg+xml,${encodeURIComponent(text)}`;
}

function draw() {
  const start = performance.now();
  offer(settle());
  $("detail").textContent = "";
  const score = drawnLines("score"), metric = drawnLines("metric");
  const byLayer = state.axis === "layer";
  const deepest = Math.max(1, ...state.models.map((n) => data.models.find((m) => m.name === n).last));
  const x = byLayer ? (p) => p.layer : (p) => 100 * p.depth;
  const along = { x, xLabel: byLayer ? "Layer" : "Depth (% of layers)", whole: byLayer ? deepest : 100 };
  const pairs = pairsOf(score.full, metric.full);
  const selected = metric.full.flatMap((line) => {
    const { layer } = selectedBy(line, storedRows(choices, line)[0]);
    return layer === null ? [] : [{ line, layer, kind: "selected" }];
  });
  const best = score.full.map((line) => ({ line, layer: endOf(line, 1)?.layer, kind: "best" }));
  const onScore = selected.flatMap((p) => score.full.filter((l) => l.model === p.line.model && l.tokens === p.line.tokens).map((line) => ({ line, layer: p.layer, kind: "selected" })));
  const single = score.full.every((line) => line.points[0].n === 1);
  const leads = leadsOf(score.full), few = leads.length || single ? "" : ` No intervals: they take ${words.fewest_clusters} task clusters (tasks of the same texts count as one).`;
  head("score", scoreName(), `Score × 100. Circle: best layer. Thick circle at the end: model output. Diamond: layer selected by the metric.${few}${score.lacking}`);
  head("lead", LEAD, "Points. Bands: 95% CI over task clusters (tasks of the same texts count as one), for all layers together: where a band excludes 0, the layer differs from the output.");
  $("lead").hidden = !leads.length;
  head("metric", metricName(), `${[state.corpus, words.protocol[state.protocol] ?? state.protocol].filter(Boolean).join(", ")}. Diamond: layer selected. Bands: 95% CI over prompts (1.96 standard errors).${metric.lacking}`);
  head("against", `${words.metric[state.metric] ?? state.metric} against score`, "A point per layer, joined in order of depth.");
  drawSure(pairs); // first, as the height of the charts beside it follows from its own
  chart("score", { ...score, ...along, y: scoreName(), marks: [...best, ...onScore] });
  if (leads.length) chart("lead", { ...along, full: leads, y: `${LEAD} (points)`, zero: true }); else delete charts.lead;
  chart("metric", { ...metric, ...along, y: metricName(), marks: selected });
  chart("against", { full: pairs, x: (p) => p.x, xLabel: metricName(), y: scoreName(), connect: false });
  rows = [...drawnRows([...score.full, ...score.faint], scoreName()), ...drawnRows(leads, LEAD), ...drawnRows([...metric.full, ...metric.faint], metricName())];
  drawTable();
  state.checkpoint = data.timeline[state.stop] ?? "";
  history.replaceState(null, "", `#${encodeURIComponent(JSON.stringify(state))}`);
  document.body.dataset.drawn = Number(document.body.dataset.drawn ?? 0) + 1;
  document.body.dataset.ms = (performance.now() - start).toFixed(1);
}

function head(id, title, note) {
  document.querySelector(`#${id} h2`).textContent = title;
  document.querySelector(`#${id} .note`).textContent = note;
}

// Controls

const selects = {};

function select(name, label, onChange) {
  const holder = element($("choices"), "label", { id: `choose-${name}` }, label);
  const made = element(holder, "select", { name });
  made.addEventListener("change", () => { state[name] = made.value; onChange?.(); draw(); });
  selects[name] = { holder, made };
}

function fill(name, options, always) {
  const { holder, made } = selects[name];
  if (made.dataset.options !== JSON.stringify(options)) {
    made.replaceChildren();
    for (const [value, text] of options) element(made, "option", { value }, text);
    made.dataset.options = JSON.stringify(options);
  }
  made.value = state[name];
  holder.hidden = options.length < (always ? 1 : 2);
}

function offer(offered) {
  const known = {
    corpus: (v) => v, sublayer: (v) => words.sublayer[v] ?? v, protocol: (v) => words.protocol[v] ?? v,
    alpha: (v) => (v === "" ? "none" : v.replace("inf", "∞")), normalization: (v) => words.normalization[v] ?? v,
  };
  for (const key of VARIANT) fill(key, offered[key].map((v) => [v, known[key](v)]));
  $("stop").value = state.stop;
  $("stopname").textContent = data.timeline[state.stop] ?? "";
}

function check(parent, name, value, swatch, text) {
  const label = element(parent, "label", { class: "check" });
  const box = element(label, "input", { type: "checkbox", name, value });
  box.checked = state[name].includes(value);
  if (swatch) label.append(swatch);
  element(label, "span", {}, text);
  box.addEventListener("change", () => {
    state[name] = [...parent.querySelectorAll("input:checked")].map((b) => b.value);
    draw();
  });
}

function swatch(colour, dash, marker) {
  const svg = make(null, "svg", { width: 34, height: 14, "aria-hidden": "true" });
  make(svg, "line", { x1: 1, x2: 33, y1: 7, y2: 7, stroke: colour, "stroke-width": 2, "stroke-dasharray": dash });
  if (marker !== undefined) make(svg, "path", { d: MARKERS[marker](17, 7, 4), fill: marker === 6 ? "none" : colour, stroke: colour });
  return svg;
}

let playing = null;

function play(on) {
  clearInterval(playing);
  playing = null;
  if (on) {
    if (state.stop >= data.timeline.length - 1) state.stop = 0; else state.stop++;
    draw();
    playing = setInterval(() => {
      if (state.stop >= data.timeline.length - 1) return play(false);
      state.stop++; draw();
    }, Math.max(120, Math.min(700, 12000 / data.timeline.length)));
  }
  $("play").textContent = playing ? "❚❚" : "▶";
  $("play").setAttribute("aria-label", playing ? "Stop" : "Play training");
}

function setUp() {
  recall();
  document.title = data.title;
  $("title").textContent = data.title;
  const checkpoints = data.models.reduce((n, m) => n + m.revisions.length, 0);
  const n = data.models.filter((m) => !m.copy).length, copies = data.models.filter((m) => m.copy).map((m) => `${m.name} has the weights of ${m.copy} and is not counted. `);
  $("about").textContent = `${n} model${n === 1 ? "" : "s"}, ${checkpoints} checkpoint${checkpoints === 1 ? "" : "s"}, ` +
    `${Object.keys(variants).length} metrics, ${scored.filter((s) => s.startsWith("task\n")).length} tasks. ${copies.join("")}` +
    "Point at a curve, or go along it with the arrow keys, for values, intervals and the file behind them; the CSV has seven digits, the files hold all.";
  for (const model of data.models) check($("models"), "models", model.name, swatch(colourOf(model), "", model.marker), model.name);
  for (const tokens of tokensThere) check($("tokens"), "tokens", tokens, swatch("var(--soft)", DASHES[tokens] ?? ""), words.tokens[tokens] ?? tokens);
  select("scored", "Score"); select("pooling", "Representation"); select("metric", "Metric");
  for (const [name, label] of [["corpus", "Corpus"], ["sublayer", "Part of the block"], ["protocol", "Protocol"], ["alpha", "α"], ["normalization", "Normalisation"]]) select(name, label);
  select("axis", "Along");
  fill("axis", [["depth", "depth, %"], ["layer", "layer number"]], true);
  fill("scored", scored.map((key) => {
    const [how, of] = key.split("\n");
    return [key, how === ALL_TASKS ? "all tasks" : how === "task_type" ? `type: ${of}` : of];
  }), true);
  fill("pooling", poolings.map((p) => [p, words.pooling[p] ?? p]));
  fill("metric", Object.keys(variants).map((m) => [m, words.metric[m] ?? m]).sort((a, b) => a[1].localeCompare(b[1])), true);
  $("training").hidden = data.timeline.length < 2;
  $("stop").max = Math.max(0, data.timeline.length - 1);
  $("stop").addEventListener("input", () => { play(false); state.stop = Number($("stop").value); draw(); });
  $("play").addEventListener("click", () => play(!playing));
  $("trail").checked = state.trail;
  $("trail").addEventListener("change", () => { state.trail = $("trail").checked; draw(); });
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("download").addEventListener("click", () => {
    download(new Blob([csv()], { type: "text/csv" }), "layers.csv");
  });
  for (const button of document.querySelectorAll(".save button")) button.addEventListener("click", () => save(button.dataset.chart, button.dataset.type));
  addEventListener("hashchange", () => location.reload());
  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  draw();
  document.body.dataset.first = (performance.now() - began).toFixed(1);
}

setUp();
