// ---- the ladder ----

const stretched = (value) => (page.axis.constant === null ? value : Math.sign(value) * Math.log1p(Math.abs(value) / page.axis.constant));
const along = (value) => (100 * (stretched(value) - stretched(page.axis.low))) / (stretched(page.axis.high) - stretched(page.axis.low));

function between(tag, low, high) {
  const mark = make(tag);
  mark.style.left = `${along(low)}%`;
  mark.style.width = `${along(high) - along(low)}%`;
  return mark;
}

function bar(field) {
  const track = make("span", { className: "track" });
  if (field.bar !== null) track.append(between("i", Math.min(0, field.bar), Math.max(0, field.bar)));
  if (field.whisker) track.append(between("u", ...field.whisker));
  track.append(...limitLine());
  return track;
}

function limitLine() {
  if (page.axis.limit === null) return [];
  const line = make("b");
  line.style.left = `${along(page.axis.limit)}%`;
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
      make("span", { text: field.amount, className: "amount" }),
      cell("width", "amount width"),
      cell("sparsity", "amount sparsity"),
      make("span", { text: field.decision, className: "decision" }),
    ],
  });
  row.setAttribute("role", "option");
  row.setAttribute("aria-selected", "false");
  row.tabIndex = rank === 0 ? 0 : -1;
  row.dataset.field = place;
  return row;
}

function ladderHead(score) {
  const track = make("span", { className: "track" });
  page.axis.ticks.forEach((tick) => {
    const text = make("span", { text: tick.text });
    text.style.left = `${along(tick.at)}%`;
    if (along(tick.at) < 4) text.className = "first";
    if (along(tick.at) > 96) text.className = "last";
    track.append(text);
  });
  const title = (text, className) => make("span", { text, className });
  const cells = [title("", "rank"), title(`field, by ${score}`, "name"), track];
  const known = (key) => (page.columns.some((column) => column.key === key) ? key : "");
  cells.push(title(one("#ladder").dataset.short, "amount"), title(known("width"), "amount width"));
  cells.push(title(known("sparsity"), "amount sparsity"), title("", "decision"));
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
  ladder.replaceChildren(ladderHead(ladder.dataset.score), ...page.order.map(rung), empty);
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
