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
  for (const input of all("input[name=across]")) input.addEventListener("change", () => signal(views.get("path"), "across", input.value));
  for (const input of all("input[name=complete]")) input.addEventListener("change", () => signal(views.get("path"), "complete", input.value === "all"));
}

async function begin() {
  if (one("#command")) breakBetweenWords(one("#command"));
  if (one("#copy")) one("#copy").addEventListener("click", copyCommand);
  if (fields.length) buildSelect();
  all("#tables table").forEach(makeSortable);
  for (const place of all("[data-chart]")) await drawOrExplain(place); // from the top, so that the first are there first
  if (fields.length) colourBars(state.colour);
  if (page.budget) buildPlanner();
  addEventListener("scroll", hideTipUnlessFocused, { passive: true });
  document.documentElement.dataset.ready = String(Math.round(performance.now()));
}

begin();
