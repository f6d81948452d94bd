"use strict";
// Plain functions over one state: the query, the picked field, the colours and the order of the table.
// Names reach the page as text only.

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
  if (datum.tip) {
    fillTip(datum.tip.title, datum.tip.lines);
  } else if (field) {
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
  for (const view of views.values()) highlight(view, markedNames());
}

function showInside(element) {
  const box = element.closest(".ladder, .scroll-both");
  const top = element.offsetTop - box.scrollTop;
  if (top < 40 || top > box.clientHeight - 40) box.scrollTop = element.offsetTop - box.clientHeight / 2;
}
