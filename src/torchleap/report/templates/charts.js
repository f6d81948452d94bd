// ---- charts ----

function chartTip(chart) {
  return (handler, event, item, value) => {
    const datum = value && typeof value === "object" ? value : null;
    if (chart === "trajectories") highlight(views.get(chart), datum ? [datum.name] : markedNames());
    if (!datum) return hideTip();
    describe(datum, page.words && page.words[chart]);
    placeTip(event.clientX, event.clientY);
  };
}

function dataOf(spec) {
  const named = [spec, ...(spec.layer || [])].filter((part) => part.data && part.data.name);
  return Object.fromEntries(named.map((part) => [part.data.name, page.data[part.data.name]]));
}

async function drawOrExplain(place) {
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

function highlight(view, names) {
  signal(view, "marked", names);
}

function markedNames() {
  if (state.picked) return [state.picked];
  return state.query ? fields.filter(matches).map(nameOf) : [];
}
