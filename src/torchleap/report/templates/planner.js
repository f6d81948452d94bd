// ---- the budget ----

// The groups are in the order of `torchleap.selection.rank`; the slider starts at the protected ones.
function within(budget) {
  const kept = new Set();
  let spent = 0;
  for (const group of page.budget.groups) {
    if (spent + group.width > budget) continue;
    spent += group.width;
    group.members.forEach((place) => kept.add(place));
  }
  return { kept, spent };
}

// ---- what a budget costs: from the path, or else from the curve ----

function onPath(kept) {
  const open = new Set(fields.keys());
  let nearest = null;
  const spent = [...kept].reduce((sum, place) => sum + fields[place].values.width, 0);
  for (const point of page.path.points) {
    point.closed.forEach((place) => open.delete(place));
    const others = [...open].filter((place) => !kept.has(place)).length;
    const exact = open.size === kept.size && others === 0;
    const distance = exact ? -1 : Math.abs(point.dims - spent);
    if (!nearest || distance < nearest.distance) nearest = { ...point, exact, distance, others, fields: open.size };
  }
  return nearest;
}

function expectedOnPath(kept) {
  const point = onPath(kept);
  const expected = ` Expected ${page.path.metric} on validation rows:`;
  if (point.exact) return `${expected} ${point.text}, measured on the path with these fields${page.path.unadapted}.`;
  const others = point.others ? `, ${format.count(point.others)} of them dropped here` : "";
  return `${expected} about ${point.text}, as on the path with ${format.plural(point.fields, "field")}${others}${page.path.unadapted}.`;
}

function metricAfter(count) {
  const points = page.curve;
  const after = points.findIndex((point) => point.fields >= count);
  if (after < 0 || count < points[0].fields) return null;
  const [left, right] = [points[Math.max(0, after - 1)], points[after]];
  const way = right.fields === left.fields ? 1 : (count - left.fields) / (right.fields - left.fields);
  return left.value + way * (right.value - left.value);
}

// The curve drops the worst fields first. A budget may pass over some of them: then only bounds are known.
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
  const worse = page.higherIsBetter ? "below" : "above";
  if (worst === null) return ` Expected ${page.metric} ${worse} ${format.metric(best)} ${where}.`;
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
    score: field.score,
    kept: kept.has(place),
  });
  return { format: 1, method: page.method, settings: { dims: budget }, rule: { dims: budget }, fields: fields.map(record) };
}

function chips(list, places, kept) {
  const chip = (place) => {
    const field = fields[place];
    const changed = (field.decision === "dropped") === kept;
    const item = make("li", { text: nameOf(field), className: changed ? "changed" : "" });
    item.title = `${nameOf(field)}: ${field.shown.width} wide, ${one("#ladder").dataset.short} ${field.amount}${changed ? ", otherwise in the report's selection" : ""}`;
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
  const cost = keptPlaces.reduce((sum, place) => sum + (fields[place].cost || 0), 0);
  signal(views.get("path"), "planned", { fields: keptPlaces.length, dims: spent, cost });
  return kept;
}

function planWords(keptPlaces, spent) {
  const kept = new Set(keptPlaces);
  const changed = fields.filter((field, place) => (field.decision !== "dropped") !== kept.has(place)).length;
  const size = `Keeps ${format.plural(keptPlaces.length, "field")} with ${format.plural(spent, "dimension")}.`;
  const other = changed ? ` ${format.plural(changed, "field")} (outlined) differ${changed === 1 ? "s" : ""} from the report's selection.` : " This is the report's selection.";
  return size + expected(kept) + other;
}

function expected(kept) {
  if (page.path) return expectedOnPath(kept);
  return page.curve.length > 1 ? expectedMetric(kept) : "";
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
