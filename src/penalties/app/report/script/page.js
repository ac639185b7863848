// The page: charts are drawn when they come near the screen; the bar above them holds for all.

const KINDS = { lines: Lines, shares: Lines, dots: Dots, scatter: Scatter };
const drawnOf = new Map(); // by figure

function chartOf(figure) {
  if (!drawnOf.has(figure)) {
    const spec = JSON.parse(figure.querySelector("script").textContent);
    const chart = new KINDS[spec.kind](figure, spec);
    drawnOf.set(figure, chart);
    const menu = figure.querySelector(".menu");
    menu?.addEventListener("toggle", () => menu.open && menu.children.length === 1 && fillMenu(chart, menu));
  }
  return drawnOf.get(figure);
}

const figures = [...document.querySelectorAll(".chart")];

const watching = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      const chart = chartOf(target);
      if (!chart.uplot) chart.build();
      if (chart.uplot) watching.unobserve(target);
    }
  },
  { rootMargin: "400px" },
);
for (const figure of figures) watching.observe(figure);

const sizes = new ResizeObserver(() => every.forEach((chart) => chart.fit()));
sizes.observe(document.querySelector("main"));

function repaint() {
  colors.clear();
  for (const chart of every) chart.uplot?.redraw(false);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);

// The bar: what charts are over, smoothing, the way back from a zoom, and the runs of a comparison.
const bar = document.querySelector(".controls");
if (bar) {
  bar.hidden = false;
  const letters = group("all").letters;
  for (const input of bar.querySelectorAll("input[name=axis]")) {
    // Drawn over steps while the page opens: reading the numbers of all runs can wait.
    input.addEventListener("change", () => {
      settings.axis = input.value;
      for (const one of groups.values()) one.zoom = null;
      every.forEach((chart) => chart.rebuild());
      document.dispatchEvent(new CustomEvent("zoomed"));
    });
  }
  const smoothing = bar.querySelector("input[type=range]");
  const said = bar.querySelector("output");
  const choose = () => {
    settings.smoothing = Number(smoothing.value) / 100;
    said.textContent = settings.smoothing ? `${smoothing.value}${SPACE}%` : "off";
  };
  choose();
  smoothing.addEventListener("input", () => {
    choose();
    every.forEach((chart) => chart instanceof Lines && !chart.small && chart.rebuild());
  });
  const back = bar.querySelector(".back");
  back.addEventListener("click", () => groups.forEach((one) => one.zoom && one.setZoom(null)));
  document.addEventListener("zoomed", () => (back.hidden = ![...groups.values()].some((one) => one.zoom)));
  for (const chip of bar.querySelectorAll("button[data-letter]")) {
    const press = () => chip.setAttribute("aria-pressed", !group("all").off.has(chip.dataset.letter));
    chip.addEventListener("click", () => group("all").toggle(chip.dataset.letter));
    document.addEventListener("toggled", press);
  }
}

// A menu closes when somebody clicks elsewhere, or leaves it with Escape.
document.addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(event.target)) menu.open = false;
});
document.addEventListener("keydown", (event) => {
  const menu = event.key === "Escape" && document.activeElement?.closest(".menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("summary").focus();
});

// A link to a run opens it.
function open() {
  const run = location.hash && document.getElementById(location.hash.slice(1));
  if (run instanceof HTMLDetailsElement) {
    run.open = true;
    run.scrollIntoView();
  }
}
addEventListener("hashchange", open);
open();

// What is closed on the screen is open on paper, which is light.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printing");
  for (const one of document.querySelectorAll("details:not(.menu)")) one.open = true;
  colors.clear();
  for (const figure of figures) {
    const chart = chartOf(figure);
    if (chart.uplot) chart.uplot.redraw(false);
    else chart.build();
  }
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("printing");
  repaint();
});
