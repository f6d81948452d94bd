// ---- the table ----

function tableRow(place) {
  const field = fields[place];
  const row = make("tr", { className: field.decision });
  row.dataset.field = place;
  for (const column of page.columns) {
    const cell = make("td", { text: shownValue(field, column), className: column.number ? "number" : "" });
    cell.dataset.key = column.key;
    if (column.key === "decision") {
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
  state.sort = { key: page.sorted, down: true };
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
