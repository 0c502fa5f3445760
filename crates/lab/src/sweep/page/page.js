"use strict";
// Draws the rows of a sweep. All text goes into the page as text nodes, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const {parameters, metrics, labels, rows} = data;
const names = parameters.map(parameter => parameter.name);
// The first colour belongs to shootdown on all pages.
const COLOURS = ["#2f9b62", "#3b7db3", "#c26a1b", "#8a4fb0", "#d0323c", "#6b7280", "#0f9aa8", "#a38a00"];
const NONE = -1;
const isNumber = at => at !== NONE && parameters[at].values.every(value => typeof value === "number");
const label = name => labels[name] || name;
const number = value => value === null ? "–" : value.toLocaleString("en", {maximumSignificantDigits: 6});
const short = value => {
  const size = Math.abs(value);
  for (const [unit, factor] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (size >= factor) return +(value / factor).toPrecision(3) + unit;
  }
  return String(+value.toPrecision(3));
};

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made[key] = value;
  made.append(...children);
  return made;
}
function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// The choices of the reader.
const find = (...wanted) => wanted.map(name => names.indexOf(name)).find(at => at >= 0) ?? NONE;
const free = (...taken) => names.findIndex((name, at) => !taken.includes(at) && name !== "seed");
const cpus = find("cpus"), design = find("design");
const x = cpus !== NONE ? cpus : free(design);
const state = {chart: "lines", metric: 0, x, by: design !== x ? design : NONE, panels: NONE,
  scale: "linear", range: "all"};
// Values of different workloads have no common mean.
const workload = find("workload", "recording", "file", "command");
state.panels = [state.x, state.by].includes(workload) ? free(state.x, state.by) : workload;
if (state.panels === NONE) state.panels = free(state.x, state.by);
if (state.panels === workload) state.range = "own";
const preferred = ["value", "time_ns", "interrupts", "ipis_sent", "runs"].map(name => metrics.indexOf(name));
state.metric = Math.max(0, preferred.find(at => at >= 0) ?? 0);
const hidden = parameters.map(() => new Set());

function choice(text, key, options) {
  const select = element("select", {onchange: () => { state[key] = select.value; draw(); }});
  for (const [value, name] of options) select.append(element("option", {value, textContent: name}));
  select.value = state[key];
  return element("label", {}, text + " ", select);
}
function controls() {
  const axes = [[NONE, "–"], ...names.map((name, at) => [at, name])];
  const box = document.getElementById("controls");
  box.append(
    choice("metric", "metric", metrics.map((name, at) => [at, label(name)])),
    choice("chart", "chart", [["lines", "lines"], ["heat", "heat map"]]),
    choice("across", "x", axes.slice(1)),
    choice("lines or rows", "by", axes),
    choice("panels", "panels", axes),
    choice("scale", "scale", [["linear", "linear from 0"], ["log", "logarithmic"]]),
    choice("range", "range", [["all", "the same in all panels"], ["own", "of each panel"]]));
  const filters = document.getElementById("filters");
  parameters.forEach((parameter, at) => {
    const set = element("fieldset", {}, element("legend", {textContent: parameter.name}));
    parameter.values.forEach((value, index) => {
      const box = element("input", {type: "checkbox", checked: true, onchange: () => {
        hidden[at][box.checked ? "delete" : "add"](index);
        draw();
      }});
      set.append(element("label", {}, box, String(value)));
    });
    filters.append(set);
  });
}

// Means over all parameters that are not shown: panel -> line -> position -> mean.
function means(metric, panels, by, across) {
  const found = new Map(), at = (row, axis) => axis === NONE ? 0 : row[axis];
  let count = 0, most = 0;
  for (const row of rows) {
    if (hidden.some((set, axis) => set.has(row[axis]))) continue;
    const value = row[names.length + metric];
    if (value === null) continue;
    const key = [panels, by, across].map(axis => at(row, axis)).join();
    const sum = found.get(key) || {total: 0, count: 0, least: value, most: value};
    sum.total += value;
    sum.count += 1;
    sum.least = Math.min(sum.least, value);
    sum.most = Math.max(sum.most, value);
    most = Math.max(most, sum.count);
    found.set(key, sum);
    count += 1;
  }
  const shown = axis => axis === NONE ? [0]
    : parameters[axis].values.map((_, index) => index).filter(index => !hidden[axis].has(index));
  const get = (panel, line, position) => {
    const sum = found.get([panel, line, position].join());
    return sum ? {...sum, mean: sum.total / sum.count} : null;
  };
  return {get, shown, count, most};
}
function colour(axis, index) {
  const ours = axis === NONE ? 0 : parameters[axis].values.indexOf("shootdown");
  return COLOURS[index === ours ? 0 : 1 + (index - (ours >= 0 && index > ours ? 1 : 0)) % (COLOURS.length - 1)];
}
const text = (axis, index) => axis === NONE ? "all rows" : String(parameters[axis].values[index]);

function draw() {
  const [metric, across, by, panels] = [state.metric, state.x, state.by, state.panels].map(Number);
  const {get, shown, count, most} = means(metric, panels, by, across);
  const place = document.getElementById("panels");
  place.replaceChildren();
  const [positions, lines] = [shown(across), shown(by)];
  const meansOf = panel => lines.flatMap(line =>
    positions.map(position => get(panel, line, position)?.mean).filter(value => value !== undefined));
  const values = shown(panels).flatMap(meansOf);
  const note = most > 1 ? `${count} rows; each value is a mean of up to ${most} rows` : `${count} rows`;
  document.getElementById("note").textContent = values.length ? note : "no rows: choose fewer filters";
  if (!values.length) return;
  const range = values => ({least: values.reduce((a, b) => Math.min(a, b)), most: values.reduce((a, b) => Math.max(a, b))});
  const drawn = state.chart === "heat" ? heatMap : lineChart;
  for (const panel of shown(panels)) {
    const own = meansOf(panel);
    if (!own.length) continue;
    const of = {panel, positions, lines, across, by, get: (line, at) => get(panel, line, at),
      range: range(state.range === "own" ? own : values)};
    const title = panels === NONE ? label(metrics[metric]) : `${names[panels]} ${text(panels, panel)}`;
    place.append(element("figure", {}, element("figcaption", {textContent: title}), drawn(of), exact(of)));
  }
  if (state.chart === "lines" && by !== NONE) {
    const key = lines.map(line => {
      const mark = element("i");
      mark.style.background = colour(by, line);
      return element("span", {}, mark, text(by, line));
    });
    place.prepend(element("p", {className: "key"}, ...key));
  }
}

const WIDTH = 430, HEIGHT = 250, LEFT = 58, RIGHT = 12, TOP = 10, BOTTOM = 40;
function frame(name) {
  const svg = shape("svg", {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": name});
  svg.style.width = "100%";
  return svg;
}
// A scale is logarithmic if the numbers grow by factors, as numbers of CPUs do.
function scaleX({positions, across}) {
  const values = positions.map(position => parameters[across].values[position]);
  const width = WIDTH - LEFT - RIGHT;
  if (!isNumber(across) || values.length < 2) {
    return position => LEFT + width * (positions.indexOf(position) + 0.5) / positions.length;
  }
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const size = least > 0 && most / least > 7 ? Math.log2 : value => value;
  const [from, to] = [size(least), size(most)];
  return position => LEFT + 8 + (width - 16) * (size(parameters[across].values[position]) - from) / (to - from || 1);
}
function scaleY({least, most}) {
  const height = HEIGHT - TOP - BOTTOM, isLog = state.scale === "log" && most > 0;
  if (!isLog) {
    const [from, to] = [Math.min(0, least), most > 0 ? most : 1];
    const step = niceStep((to - from) / 4), ticks = [];
    for (let tick = Math.ceil(from / step) * step; tick <= to * 1.0001; tick += step) ticks.push(tick);
    return {at: value => TOP + height * (1 - (value - from) / (to - from)), ticks};
  }
  // Zero has no logarithm, and is drawn at the bottom.
  const from = Math.floor(Math.log10(least > 0 ? least : most / 1e4));
  const to = Math.max(from + 1, Math.ceil(Math.log10(most))), ticks = [];
  for (let power = from; power <= to; power++) ticks.push(10 ** power);
  const at = value => TOP + height * (1 - (Math.max(from, Math.log10(value)) - from) / (to - from));
  return {at, ticks};
}
function niceStep(step) {
  const power = 10 ** Math.floor(Math.log10(step || 1));
  return [1, 2, 5, 10].map(digit => digit * power).find(nice => nice >= step) || power;
}
function axisX(svg, of, at) {
  let end = -Infinity;
  for (const position of of.positions) {
    const name = text(of.across, position), middle = at(position), half = Math.min(name.length, 14) * 3.6;
    if (middle - half < end + 6) continue;
    end = middle + half;
    svg.append(shape("text", {x: middle, y: HEIGHT - BOTTOM + 17, "text-anchor": "middle"}, name.slice(0, 14)));
  }
  svg.append(shape("text", {x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 5, "text-anchor": "middle", class: "axis"},
    names[of.across]));
}
function lineChart(of) {
  const svg = frame(`lines over ${names[of.across]}`), at = scaleX(of), up = scaleY(of.range);
  for (const tick of up.ticks) {
    const y = up.at(tick);
    svg.append(shape("line", {x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y, class: "grid"}));
    svg.append(shape("text", {x: LEFT - 6, y: y + 4, "text-anchor": "end"}, short(tick)));
  }
  axisX(svg, of, at);
  for (const line of of.lines) {
    const ink = colour(of.by, line), points = [];
    for (const position of of.positions) {
      const value = of.get(line, position);
      if (value) points.push([at(position), up.at(value.mean), position, value]);
    }
    const path = points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");
    svg.append(shape("polyline", {points: path, fill: "none", stroke: ink, "stroke-width": 2}));
    for (const [x, y, position, value] of points) {
      const point = shape("circle", {cx: x, cy: y, r: 4, fill: ink});
      point.append(shape("title", {}, tip(of, line, position, value)));
      svg.append(point);
    }
  }
  return svg;
}
function heatMap(of) {
  const height = 30, top = 4, svg = frame(`heat map over ${names[of.across]}`);
  const name = line => text(of.by, line).slice(0, 18);
  const left = 16 + 7.4 * Math.max(...of.lines.map(line => name(line).length));
  const width = (WIDTH - left - 4) / of.positions.length, bottom = top + height * of.lines.length;
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${bottom + 40}`);
  const {least, most} = of.range, isLog = state.scale === "log" && least > 0;
  const size = isLog ? Math.log : value => value, span = size(most) - size(least) || 1;
  of.lines.forEach((line, row) => {
    const y = top + row * height;
    svg.append(shape("text", {x: left - 8, y: y + 20, "text-anchor": "end"}, name(line)));
    of.positions.forEach((position, column) => {
      const value = of.get(line, position);
      if (!value) return;
      const share = (size(value.mean) - size(least)) / span, x = left + column * width;
      const cell = shape("rect", {x: x + 1, y: y + 1, width: width - 2, height: height - 2,
        fill: `color-mix(in oklab, #c0392b ${Math.round(share * 100)}%, #e9eef2)`});
      cell.append(shape("title", {}, tip(of, line, position, value)));
      const ink = share > 0.55 ? "#fff" : "#111";
      svg.append(cell);
      if (width > 36) svg.append(shape("text", {x: x + width / 2, y: y + 20, "text-anchor": "middle",
        fill: ink, class: "inside"}, short(value.mean)));
    });
  });
  of.positions.forEach((position, column) => {
    const every = Math.ceil(of.positions.length * 44 / (WIDTH - left));
    if (column % every) return;
    svg.append(shape("text", {x: left + (column + 0.5) * width, y: bottom + 17, "text-anchor": "middle"},
      text(of.across, position).slice(0, 10)));
  });
  svg.append(shape("text", {x: (left + WIDTH) / 2, y: bottom + 36, "text-anchor": "middle", class: "axis"},
    of.by === NONE ? names[of.across] : `${names[of.across]}, below each other: ${names[of.by]}`));
  return svg;
}
function tip(of, line, position, value) {
  const where = [[of.by, line], [of.across, position]].filter(([axis]) => axis !== NONE);
  const means = value.count > 1 ? `\nmean of ${value.count}: ${number(value.least)} to ${number(value.most)}` : "";
  return where.map(([axis, index]) => `${names[axis]} ${text(axis, index)}`).join(", ")
    + `\n${label(metrics[state.metric])}: ${number(value.mean)}${means}`;
}
// The exact values of a panel, as a table.
function exact(of) {
  const head = element("tr", {}, element("th", {textContent: names[of.across]}),
    ...of.lines.map(line => element("th", {textContent: of.by === NONE ? label(metrics[state.metric]) : text(of.by, line)})));
  const body = of.positions.map(position => element("tr", {}, element("td", {textContent: text(of.across, position)}),
    ...of.lines.map(line => element("td", {textContent: number(of.get(line, position)?.mean ?? null)}))));
  const table = element("div", {className: "wide"}, element("table", {}, head, ...body));
  return element("details", {}, element("summary", {textContent: "exact values"}), table);
}
controls();
draw();
