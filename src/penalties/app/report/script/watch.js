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

  const again = () => {
    // Not while somebody reads a menu or a table.
    if (document.querySelector(".menu[open], .figures")) {
      setTimeout(again, YOUNG);
      return;
    }
    const open = [...document.querySelectorAll("details.run[open]")].map((one) => one.id);
    const zooms = [...groups].filter(([, one]) => one.zoom).map(([name, one]) => [name, one.zoom]);
    const chosen = { axis: settings.axis, smoothing: smoothing.value, open, off: [...group("all").off], zooms };
    sessionStorage.setItem(KEPT, JSON.stringify(chosen));
    location.reload();
  };
  const changes = new EventSource(`changes?${document.querySelector("meta[name=watched]").content}`);
  changes.onmessage = () => {
    changes.close();
    setTimeout(again, Math.max(0, YOUNG - performance.now()));
  };
}
