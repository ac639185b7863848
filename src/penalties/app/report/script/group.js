// Charts that have one axis, one zoom and one cursor: those of a run, or of a comparison.

const settings = { axis: "step", smoothing: 0 };

class Group {
  constructor(letters) {
    this.letters = letters;
    this.charts = new Set();
    this.zoom = null;
    this.off = new Set(); // letters of runs that are not drawn
  }

  // Without the axis in some run, charts stay over steps.
  axis() {
    return this.letters.every((letter) => run(letter).has(settings.axis)) ? settings.axis : "step";
  }

  range() {
    return this.zoom ?? this.whole();
  }

  whole() {
    const ends = this.letters.map((letter) => run(letter).ends(this.axis()));
    const [low, high] = [Math.min(...ends.map((one) => one[0])), Math.max(...ends.map((one) => one[1]))];
    return low < high ? [low, high] : [low - 0.5, high + 0.5];
  }

  setZoom(zoom) {
    this.zoom = zoom;
    const [min, max] = this.range();
    for (const chart of this.charts) chart.uplot?.setScale("x", { min, max });
    document.dispatchEvent(new CustomEvent("zoomed"));
  }

  // Around a place on the axis, by a factor.
  scaleBy(factor, around) {
    const [min, max] = this.range();
    const [left, right] = this.whole();
    const width = (max - min) * factor;
    const first = Math.max(left, Math.min(around - (around - min) * factor, right - width));
    this.setZoom(width < right - left ? [first, first + width] : null);
  }

  // The cursors of the other charts go where this one is; at null they leave.
  follow(leader, x) {
    for (const chart of this.charts) if (chart !== leader) chart.moveTo(x);
  }

  toggle(letter) {
    if (!this.off.delete(letter)) this.off.add(letter);
    for (const chart of this.charts) {
      chart.press();
      chart.rebuild();
    }
    document.dispatchEvent(new CustomEvent("toggled"));
  }
}

const groups = new Map();

function group(name) {
  if (!groups.has(name)) {
    const all = [...document.querySelectorAll("script.numbers")].map((one) => one.id.replace("numbers-", ""));
    groups.set(name, new Group(name === "all" ? all : [name]));
  }
  return groups.get(name);
}
