"use strict";
// Plain functions over one state: the words searched for, the field picked, the colours, the budget. Names reach the page as text only.

const page = JSON.parse(document.getElementById("data").textContent);
const fields = (page.fields || []).map(revive);
const byName = new Map(fields.map((field) => [field.values.name, field]));
const views = new Map();
const state = { query: "", picked: null, colour: null, sort: { key: null, down: false } };

function revive(field) {
  const keyed = (list) => Object.fromEntries(page.columns.map((column, index) => [column.key, list[index]]));
  return { ...field, values: keyed(field.values), shown: keyed(field.shown) };
}

const one = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];
const nameOf = (field) => field.values.name;

function make(tag, { text, className, children = [] } = {}) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const format = {
  count: (value) => value.toLocaleString("en-US", { maximumFractionDigits: 0 }),
  metric: (value) => value.toFixed(4),
  plural: (value, noun) => `${format.count(value)} ${noun}${value === 1 ? "" : "s"}`,
};

// ---- theme ----

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

one("#theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
});

// ---- details on pointing ----

function shownValue(field, column) {
  const text = field.shown[column.key];
  return text === null || text === undefined ? "–" : String(text);
}

function fillTip(title, pairs) {
  const list = make("dl");
  for (const [key, value] of pairs) list.append(make("dt", { text: key }), make("dd", { text: value }));
  one("#tip").replaceChildren(make("strong", { text: title }), list);
}

function describe(datum, words = {}) {
  const field = byName.get(datum.name);
  if (field) {
    const known = page.columns.slice(1).filter((column) => shownValue(field, column) !== "–");
    fillTip(nameOf(field), known.map((column) => [column.title, shownValue(field, column)]));
  } else {
    const known = Object.entries(datum).filter(([, value]) => value !== null && typeof value !== "object");
    const text = (value) => (typeof value === "number" ? String(Number(value.toPrecision(6))) : String(value));
    const title = datum.label || datum.series || datum.measure || "";
    fillTip(title, known.filter(([, value]) => value !== title).map(([key, value]) => [words[key] || key, text(value)]));
  }
}

function placeTip(x, y) {
  const tip = one("#tip");
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
  tip.style.top = `${y + 16 + height > innerHeight ? Math.max(8, y - height - 12) : y + 16}px`;
}

function hideTip() {
  one("#tip").hidden = true;
}

function hideTipUnlessFocused() {
  if (!document.activeElement.matches("[data-field]:focus-visible")) hideTip();
}

// ---- charts ----

function chartTip(chart) {
  return (handler, event, item, value) => {
    const datum = value && typeof value === "object" ? value : null;
    if (chart === "trajectories") bringOut(views.get(chart), datum ? [datum.name] : markedNames());
    if (!datum) return hideTip();
    describe(datum, page.words && page.words[chart]);
    placeTip(event.clientX, event.clientY);
  };
}

function dataOf(spec) {
  const named = [spec, ...(spec.layer || [])].filter((part) => part.data && part.data.name);
  return Object.fromEntries(named.map((part) => [part.data.name, page.data[part.data.name]]));
}

async function drawOrSay(place) {
  try {
    await draw(place);
  } catch (error) {
    place.textContent = "This chart could not be drawn.";
    console.error(place.dataset.chart, error);
  }
}

async function draw(place) {
  const chart = place.dataset.chart;
  const spec = { ...page.specs[chart], datasets: dataOf(page.specs[chart]) };
  const { view } = await vegaEmbed(place, spec, { renderer: "svg", actions: false, defaultStyle: false, tooltip: chartTip(chart) });
  views.set(chart, view);
  view.addEventListener("click", (event, item) => {
    const name = item && item.datum && item.datum.name;
    if (byName.has(name)) pick(name);
  });
}

function signal(view, name, value) {
  if (!view || !(name in view.getState({ signals: (key) => key === name, data: () => false }).signals)) return;
  view.signal(name, value).runAsync();
}

function bringOut(view, names) {
  signal(view, "marked", names);
}

function markedNames() {
  if (state.picked) return [state.picked];
  return state.query ? fields.filter(matches).map(nameOf) : [];
}

// ---- search and mark ----

function matches(field) {
  return nameOf(field).toLowerCase().includes(state.query.toLowerCase());
}

function search(words) {
  state.query = words.trim();
  state.picked = null;
  for (const input of all(".query")) if (input.value.trim() !== state.query) input.value = words;
  for (const element of all("[data-field]")) element.hidden = !matches(fields[element.dataset.field]);
  const found = fields.filter(matches).length;
  for (const text of all(".found")) text.textContent = state.query ? `${format.count(found)} of ${format.plural(fields.length, "field")}` : "";
  for (const text of all(".empty")) text.hidden = found > 0;
  showMarks();
}

function pick(name) {
  state.picked = state.picked === name ? null : name;
  showMarks();
}

function showMarks() {
  for (const element of all("[data-field]")) {
    const marked = nameOf(fields[element.dataset.field]) === state.picked;
    element.classList.toggle("marked", marked);
    if (element.getAttribute("role") === "option") element.setAttribute("aria-selected", String(marked));
    if (marked && !element.hidden) showInside(element);
  }
  for (const view of views.values()) bringOut(view, markedNames());
}

function showInside(element) {
  const box = element.closest(".ladder, .scroll-both");
  const top = element.offsetTop - box.scrollTop;
  if (top < 40 || top > box.clientHeight - 40) box.scrollTop = element.offsetTop - box.clientHeight / 2;
}

// ---- the ladder ----

const along = (value) => (100 * (value - page.axis.low)) / (page.axis.high - page.axis.low);

function bar(field) {
  const track = make("span", { className: "track" });
  const score = field.values.score;
  if (typeof score === "number") {
    const fill = make("i");
    const [from, to] = [along(Math.min(0, score)), along(Math.max(0, score))];
    fill.style.left = `${from}%`;
    fill.style.width = `${to - from}%`;
    track.append(fill);
  }
  track.append(...thresholdLine());
  return track;
}

function thresholdLine() {
  if (page.axis.threshold === null) return [];
  const line = make("b");
  line.style.left = `${along(page.axis.threshold)}%`;
  return [line];
}

function rung(place, rank) {
  const field = fields[place];
  const cell = (key, className) => make("span", { text: key in field.shown ? field.shown[key] : "", className });
  const row = make("div", {
    className: `rung ${field.decision}`,
    children: [
      make("span", { text: String(rank + 1), className: "rank" }),
      make("span", { text: nameOf(field), className: "name" }),
      bar(field),
      cell("score", "amount"),
      cell("width", "amount width"),
      cell("sparsity", "amount sparsity"),
      make("span", { text: field.decision, className: "fate" }),
    ],
  });
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", "false");
  row.tabIndex = rank === 0 ? 0 : -1;
  row.dataset.field = place;
  return row;
}

function ladderHead(word) {
  const track = make("span", { className: "track" });
  page.axis.ticks.forEach((tick) => {
    const text = make("span", { text: tick.text });
    text.style.left = `${along(tick.at)}%`;
    if (along(tick.at) > 96) text.className = "last";
    track.append(text);
  });
  const title = (text, className) => make("span", { text, className });
  const cells = [title("", "rank"), title(`field, by ${word}`, "name"), track];
  const known = (key) => (page.columns.some((column) => column.key === key) ? key : "");
  cells.push(title(one("#ladder").dataset.short, "amount"), title(known("width"), "amount width"));
  cells.push(title(known("sparsity"), "amount sparsity"), title("", "fate"));
  const head = make("div", { className: "rung head", children: cells });
  head.setAttribute("role", "presentation");
  return head;
}

function colourBars(by) {
  state.colour = by;
  for (const row of all("#ladder [data-field]")) {
    const fill = row.querySelector("i");
    if (fill) fill.style.background = fields[row.dataset.field].colours[by];
  }
  for (const legend of all("[data-legend]")) legend.hidden = legend.dataset.legend !== by;
  signal(views.get("ranks"), "colour", by);
}

function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -1e9, End: 1e9 }[event.key];
  const rows = all("#ladder [data-field]:not([hidden])");
  const here = rows.indexOf(document.activeElement);
  if (step !== undefined && rows.length) {
    event.preventDefault();
    const next = rows[Math.max(0, Math.min(rows.length - 1, here + step))];
    for (const row of rows) row.tabIndex = row === next ? 0 : -1;
    next.focus();
  } else if ((event.key === "Enter" || event.key === " ") && here >= 0) {
    event.preventDefault();
    pick(nameOf(fields[rows[here].dataset.field]));
  }
}

function goToBoundary() {
  const rows = all("#ladder [data-field]:not([hidden])");
  const last = rows.findLast((row) => fields[row.dataset.field].decision === "kept") || rows[0];
  if (last) one("#ladder").scrollTo({ top: last.offsetTop - one("#ladder").clientHeight / 2 });
}

function buildLadder() {
  const ladder = one("#ladder");
  const empty = make("p", { text: "No field has this in its name.", className: "empty" });
  empty.hidden = true;
  ladder.replaceChildren(ladderHead(ladder.dataset.word), ...page.order.map(rung), empty);
  ladder.addEventListener("keydown", moveFocus);
  if (one("#boundary")) one("#boundary").addEventListener("click", goToBoundary);
  pointAtRows(ladder);
}

function pointAtRows(box) {
  const fieldAt = (event) => {
    const row = event.target.closest("[data-field]");
    return row && fields[row.dataset.field];
  };
  box.addEventListener("pointermove", (event) => {
    const field = fieldAt(event);
    if (!field || event.pointerType !== "mouse") return hideTip();
    describe(field.values);
    placeTip(event.clientX, event.clientY);
  });
  box.addEventListener("pointerleave", hideTip);
  box.addEventListener("click", (event) => {
    const field = fieldAt(event);
    if (!field) return;
    pick(nameOf(field));
    describe(field.values);
    placeTip(event.clientX, event.clientY);
  });
  box.addEventListener("focusin", (event) => {
    const field = fieldAt(event);
    if (!field || !event.target.matches(":focus-visible")) return;
    const { left, bottom } = event.target.getBoundingClientRect();
    describe(field.values);
    placeTip(left + 60, bottom - 12);
  });
  box.addEventListener("focusout", hideTip);
}

// ---- the budget ----

// The teams come in the order in which `torchleap.selection.rank` takes them; the slider starts at the protected ones.
function within(budget) {
  const kept = new Set();
  let spent = 0;
  for (const team of page.budget.teams) {
    if (spent + team.width > budget) continue;
    spent += team.width;
    team.members.forEach((place) => kept.add(place));
  }
  return { kept, spent };
}

function metricAfter(count) {
  const points = page.curve;
  const after = points.findIndex((point) => point.fields >= count);
  if (after < 0 || count < points[0].fields) return null;
  const [left, right] = [points[Math.max(0, after - 1)], points[after]];
  const way = right.fields === left.fields ? 1 : (count - left.fields) / (right.fields - left.fields);
  return left.value + way * (right.value - left.value);
}

// The curve drops the worst fields first. A budget may pass over some: then the curve is known on both sides only.
function expectedMetric(kept) {
  const dropped = page.removal.map((place) => !kept.has(place));
  const first = dropped.indexOf(false);
  const inner = first < 0 ? dropped.length : first;
  const off = fields.length - kept.size > dropped.filter(Boolean).length; // one is dropped that the curve always keeps
  const outer = off ? Infinity : dropped.lastIndexOf(true) + 1;
  const [best, worst] = [metricAfter(inner), metricAfter(outer)];
  if (best === null) return "";
  const where = "on validation rows, before fine-tuning";
  if (inner === outer) return ` Expected ${page.metric} about ${format.metric(best)} ${where}.`;
  if (worst === null) return ` Expected ${page.metric} below ${format.metric(best)} ${where}.`;
  const [low, high] = [Math.min(best, worst), Math.max(best, worst)].map(format.metric);
  return ` Expected ${page.metric} ${low === high ? `about ${low}` : `between ${low} and ${high}`} ${where}.`;
}

function asSelection(budget, kept) {
  const record = (field, place) => ({
    name: nameOf(field),
    width: field.values.width,
    cost: field.cost,
    protected: field.protected,
    group: field.group,
    score: field.values.score,
    kept: kept.has(place),
  });
  return { format: 1, method: page.method, settings: { dims: budget }, rule: { dims: budget }, fields: fields.map(record) };
}

function chips(list, places, kept) {
  const chip = (place) => {
    const field = fields[place];
    const changed = (field.decision === "dropped") === kept;
    const item = make("li", { text: nameOf(field), className: changed ? "changed" : "" });
    item.title = `${nameOf(field)}: ${field.shown.width} wide, score ${field.shown.score}${changed ? ", otherwise in the report's selection" : ""}`;
    return item;
  };
  list.replaceChildren(...places.map(chip));
}

function plan(budget) {
  const { kept, spent } = within(budget);
  const keptPlaces = page.order.filter((place) => kept.has(place));
  const droppedPlaces = page.order.filter((place) => !kept.has(place));
  chips(one("#kept-names"), keptPlaces, true);
  chips(one("#dropped-names"), droppedPlaces, false);
  one("#kept-title").textContent = `Kept: ${format.plural(keptPlaces.length, "field")}`;
  one("#dropped-title").textContent = `Dropped: ${format.plural(droppedPlaces.length, "field")}`;
  one("#dims-text").textContent = `${format.plural(budget, "dimension")} of ${format.count(page.budget.most)}`;
  one("#planned").textContent = planWords(keptPlaces, spent);
  signal(views.get("return"), "removed", page.budget.most - spent);
  return kept;
}

function planWords(keptPlaces, spent) {
  const kept = new Set(keptPlaces);
  const changed = fields.filter((field, place) => (field.decision !== "dropped") !== kept.has(place)).length;
  const size = `Keeps ${format.plural(keptPlaces.length, "field")} with ${format.plural(spent, "dimension")}.`;
  const other = changed ? ` ${format.plural(changed, "field")} (outlined) differ${changed === 1 ? "s" : ""} from the report's selection.` : " This is the report's selection.";
  return size + (page.curve.length > 1 ? expectedMetric(kept) : "") + other;
}

function download(name, content) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/json" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

function buildPlanner() {
  const { least, most, start } = page.budget;
  const [slider, number] = [one("#dims"), one("#dims-number")];
  for (const input of [slider, number]) Object.assign(input, { min: least, max: most, value: start });
  let kept = plan(start);
  const set = (value) => {
    const budget = Math.max(least, Math.min(most, Math.round(value) || least));
    slider.value = budget;
    kept = plan(budget);
    return budget;
  };
  slider.addEventListener("input", () => (number.value = set(Number(slider.value))));
  number.addEventListener("input", () => set(Number(number.value)));
  number.addEventListener("change", () => (number.value = set(Number(number.value))));
  one("#download").addEventListener("click", () => {
    download("selection.json", `${JSON.stringify(asSelection(Number(slider.value), kept), null, 2)}\n`);
  });
  one("#planner").hidden = false;
}

// ---- the table ----

function tableRow(place) {
  const field = fields[place];
  const row = make("tr", { className: field.decision });
  row.dataset.field = place;
  for (const column of page.columns) {
    const cell = make("td", { text: shownValue(field, column), className: column.number ? "number" : "" });
    cell.dataset.key = column.key;
    if (column.key === "fate") {
      const dot = make("span", { className: "dot" });
      dot.style.background = field.colours.decision;
      cell.prepend(dot);
    }
    row.append(cell);
  }
  row.firstChild.title = nameOf(field);
  return row;
}

function compare(key, down) {
  const empty = (value) => value === null || value === undefined;
  return (left, right) => {
    const [a, b] = [fields[left].values[key], fields[right].values[key]];
    if (empty(a) || empty(b)) return empty(a) - empty(b);
    const order = typeof a === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return down ? -order : order;
  };
}

function sortBy(column) {
  const { key, down } = state.sort;
  state.sort = { key: column.key, down: key === column.key ? !down : column.number };
  const body = one("#table tbody");
  const rows = new Map([...body.children].map((row) => [Number(row.dataset.field), row]));
  const order = [...page.order].sort(compare(column.key, state.sort.down));
  body.replaceChildren(...order.map((place) => rows.get(place)));
  showSort();
}

function showSort() {
  all("#table th").forEach((head, index) => {
    if (page.columns[index].key !== state.sort.key) head.removeAttribute("aria-sort");
    else head.setAttribute("aria-sort", state.sort.down ? "descending" : "ascending");
  });
}

function buildTable() {
  const heads = page.columns.map((column) => {
    const button = make("button", { text: column.title });
    button.type = "button";
    button.addEventListener("click", () => sortBy(column));
    const head = make("th", { className: column.number ? "number" : "", children: [button] });
    head.scope = "col";
    head.dataset.key = column.key;
    return head;
  });
  one("#table thead").replaceChildren(make("tr", { children: heads }));
  one("#table tbody").replaceChildren(...page.order.map(tableRow));
  pointAtRows(one("#table tbody"));
  state.sort = { key: "score", down: true };
  showSort();
}

// ---- the tables of a benchmark ----

function compareRows(index, number, down) {
  const text = (a, b) => a.localeCompare(b, "en", { numeric: true });
  return (left, right) => {
    const [a, b] = [left, right].map((row) => row.cells[index].dataset.by);
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    const order = number ? a - b : text(a, b);
    return down ? -order : order;
  };
}

function sortRows(table, head) {
  const number = head.classList.contains("number");
  const before = head.getAttribute("aria-sort");
  const down = before ? before === "ascending" : number;
  const body = table.tBodies[0];
  body.append(...[...body.rows].sort(compareRows(head.cellIndex, number, down)));
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
}

function makeSortable(table) {
  for (const head of table.tHead.rows[0].cells) {
    const button = make("button", { text: head.textContent || "–" });
    button.type = "button";
    button.addEventListener("click", () => sortRows(table, head));
    head.replaceChildren(button);
  }
}

// ---- begin ----

function breakBetweenWords(place) {
  const words = place.textContent.split(" ").map((word) => make("span", { text: word }));
  place.replaceChildren(...words.flatMap((word, number) => (number ? [" ", word] : [word])));
}

function copyCommand() {
  const range = document.createRange();
  range.selectNodeContents(one("#command"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  document.execCommand("copy");
  one("#copy").textContent = "Copied";
  setTimeout(() => (one("#copy").textContent = "Copy"), 1500);
}

function buildSelect() {
  buildLadder();
  buildTable();
  for (const input of all(".query")) input.addEventListener("input", () => search(input.value));
  for (const input of all("input[name=colour]")) input.addEventListener("change", () => colourBars(input.value));
  colourBars(one("input[name=colour]:checked").value);
}

async function begin() {
  if (one("#command")) breakBetweenWords(one("#command"));
  if (one("#copy")) one("#copy").addEventListener("click", copyCommand);
  if (fields.length) buildSelect();
  all("#tables table").forEach(makeSortable);
  for (const place of all("[data-chart]")) await drawOrSay(place); // from the top, so that the first are there first
  if (fields.length) colourBars(state.colour);
  if (page.budget) buildPlanner();
  addEventListener("scroll", hideTipUnlessFocused, { passive: true });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin();
