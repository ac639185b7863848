// What all charts have in common: their place on the page, their colours, and when they are drawn.

const colors = new Map();

// The colour of a CSS class, or a custom property of the page.
function color(name) {
  if (!colors.has(name)) {
    const probe = document.createElement("i");
    if (!name.startsWith("--")) probe.className = name;
    document.body.append(probe);
    colors.set(name, getComputedStyle(probe).getPropertyValue(name.startsWith("--") ? name : "--c").trim());
    probe.remove();
  }
  return colors.get(name);
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const every = []; // all charts of the page, drawn or not

class Figure {
  constructor(figure, spec) {
    this.figure = figure;
    this.spec = spec;
    this.title = figure.querySelector("figcaption strong")?.textContent ?? "";
    this.plot = figure.querySelector(".plot");
    this.small = figure.classList.contains("spark");
    this.uplot = null;
    every.push(this);
  }

  // Draw it for the first time, or again where something else is to be drawn.
  build() {
    if (!this.plot.clientWidth) return;
    this.uplot?.destroy();
    const { options, data } = this.drawing();
    const size = { width: this.plot.clientWidth, height: this.plot.clientHeight };
    this.uplot = new uPlot({ ...size, legend: { show: false }, ...options }, data, this.plot);
    this.figure.classList.add("drawn");
  }

  rebuild() {
    if (this.uplot) this.build();
  }

  fit() {
    if (this.uplot && this.plot.clientWidth && this.plot.clientWidth !== this.uplot.width) {
      this.uplot.setSize({ width: this.plot.clientWidth, height: this.plot.clientHeight });
    }
  }

  axis(more) {
    return {
      stroke: () => color("--quiet"),
      grid: { stroke: () => color("--grid"), width: 1 },
      ticks: { show: false },
      font: `12px ${getComputedStyle(document.body).fontFamily}`,
      show: !this.small,
      ...more,
    };
  }

  // A table of what is drawn: a header, and rows of numbers.
  rows() {
    return { header: [], rows: [] };
  }
}
