// A page that is served is loaded again when a log has grown, with what was chosen on it.

const KEPT = `penalties ${location.pathname}`;
const YOUNG = 2000; // milliseconds that a page stays at least

{
  const kept = JSON.parse(sessionStorage.getItem(KEPT) ?? "{}");
  for (const input of document.querySelectorAll(".controls input[name=axis]")) {
    if (input.value !== kept.axis) continue;
    input.checked = true;
    settings.axis = kept.axis;
  }
  const smoothing = document.querySelector(".controls input[type=range]");
  if (kept.smoothing !== undefined) smoothing.value = kept.smoothing;
  for (const id of kept.open ?? []) document.getElementById(id)?.setAttribute("open", "");
  for (const letter of kept.off ?? []) group("all").off.add(letter);
  for (const [name, zoom] of kept.zooms ?? []) if (document.querySelector(`[data-group="${name}"]`)) group(name).zoom = zoom;

  // A chart is made when it comes near the screen: then its lines and its scale are as they were chosen.
  const name = (chart) => `${chart.figure.dataset.group} ${chart.title}`;
  const charts = new Map(kept.charts ?? []);
  Lines.prepare = (chart) => {
    const { scale, off, on } = charts.get(name(chart)) ?? {};
    if (chart.spec.scales.includes(scale)) chart.scale = scale;
    for (const line of chart.lines) {
      if (off?.includes(line.name)) line.on = false;
      if (on?.includes(line.name)) line.on = true;
    }
  };
  const chosenIn = (chart) => {
    const named = (on) => chart.lines.filter((line) => line.on === on && line.on === Boolean(line.hidden)).map((line) => line.name);
    return { scale: chart.scale, off: named(false), on: named(true) };
  };

  const again = () => {
    // Not while somebody reads a menu, a table, or with the keyboard a chart.
    if (document.querySelector(".menu[open], .figures, .plot:focus-visible")) {
      setTimeout(again, YOUNG);
      return;
    }
    const open = [...document.querySelectorAll("details.run[open]")].map((one) => one.id);
    const zooms = [...groups].filter(([, one]) => one.zoom).map(([name, one]) => [name, one.zoom]);
    for (const chart of every) if (chart instanceof Lines && !chart.small) charts.set(name(chart), chosenIn(chart));
    const off = [...group("all").off];
    const chosen = { axis: settings.axis, smoothing: smoothing.value, open, off, zooms, charts: [...charts] };
    sessionStorage.setItem(KEPT, JSON.stringify(chosen));
    location.reload();
  };
  const changes = new EventSource(`changes?${document.querySelector("meta[name=watched]").content}`);
  changes.onmessage = () => {
    changes.close();
    setTimeout(again, Math.max(0, YOUNG - performance.now()));
  };
}
