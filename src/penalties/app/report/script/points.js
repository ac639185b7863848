// Charts without steps. Each has points, which a cursor visits in their order, and a row of words about one of them.

const REACH = 30; // pixels within which the pointer finds a point

class Points extends Figure {
  constructor(figure, spec) {
    super(figure, spec);
    this.where = figure.querySelector(".where");
    this.points = this.list();
    this.at = null; // the point under the cursor
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.go(null));
    this.plot.addEventListener("pointermove", (event) => this.go(this.closest(event)));
    this.plot.addEventListener("pointerdown", (event) => this.go(this.closest(event)));
    this.plot.addEventListener("pointerleave", () => this.go(null));
  }

  // Points as { x, y, css, words }, where x and y are those of the axes.
  list() {
    return [];
  }

  // Where a point is in the plot, in pixels.
  place(point) {
    return [this.uplot.valToPos(point.x, "x"), this.uplot.valToPos(point.y, "y")];
  }

  closest(event) {
    if (!this.uplot) return null;
    const box = this.uplot.over.getBoundingClientRect();
    let [best, reach] = [null, REACH];
    this.points.forEach((point, number) => {
      const [left, top] = this.place(point);
      const far = Math.hypot(left - (event.clientX - box.left), top - (event.clientY - box.top));
      if (far < reach) [best, reach] = [number, far];
    });
    return best;
  }

  key(event) {
    if (!this.uplot || !this.points.length || event.altKey || event.ctrlKey || event.metaKey) return;
    const [now, last] = [this.at ?? -1, this.points.length - 1];
    const moves = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: last };
    if (event.key in moves) this.go(Math.min(last, Math.max(0, moves[event.key])));
    else if (event.key === "Escape") this.go(null);
    else return;
    event.preventDefault();
  }

  go(number) {
    if (number === this.at || !this.uplot) return;
    this.at = number;
    const words = number === null ? "" : this.points[number].words;
    this.where.textContent = words;
    if (words) {
      this.plot.setAttribute("aria-valuenow", number + 1);
      this.plot.setAttribute("aria-valuetext", words);
    }
    this.uplot.redraw(false);
  }

  // A ring around the point under the cursor.
  ring(u) {
    if (this.at === null) return;
    const { ctx } = u;
    const point = this.points[this.at];
    ctx.save();
    ctx.strokeStyle = color("--ink");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.beginPath();
    ctx.arc(u.valToPos(point.x, "x", true), u.valToPos(point.y, "y", true), 7 * devicePixelRatio, 0, 2 * Math.PI);
    ctx.stroke();
    ctx.restore();
  }

  words(label) {
    return { label, labelSize: 18, labelFont: "12px sans-serif", values: (_, splits) => labels(splits, shown) };
  }
}

// A row of dots for each name, with its mean and its interval.
class Dots extends Points {
  // Rows from the top: the last one is at 0.
  height(row) {
    return this.spec.rows.length - 1 - row;
  }

  list() {
    return this.spec.rows.flatMap((row, place) => {
      const dots = row.values.map((x, at) => ({ x, y: this.height(place), css: row.css, words: this.said(row, x, at) }));
      return dots.sort((one, other) => one.x - other.x);
    });
  }

  said(row, value, at) {
    const of = row.labels[at] === undefined ? "" : `, ${row.labels[at]}`;
    const mean = row.mean === null ? "" : `; mean ${shown(row.mean)}`;
    const interval = row.low === null || row.high === null ? "" : `, ${shown(row.low)} to ${shown(row.high)}`;
    return `${row.name}${of}: ${shown(value)}${mean}${interval}`;
  }

  drawing() {
    const { rows, x } = this.spec;
    const numbers = rows.flatMap((row) => [...row.values, row.mean, row.low, row.high].filter((one) => one !== null));
    const [low, high] = limits([numbers], { scale: "linear", zero: true, all: true });
    const tables = rows.map((row, place) => {
      const values = [...row.values].sort((one, other) => one - other);
      return [values, values.map(() => this.height(place))];
    });
    const data = tables.some((one) => one[0].length) ? uPlot.join(tables) : [[]];
    const wide = Math.min(0.35 * this.plot.clientWidth, 24 + 7 * Math.max(0, ...rows.map((row) => row.name.length)));
    const name = (place) => (Number.isInteger(place) && rows[this.height(place)] ? cut(rows[this.height(place)].name, wide / 7) : "");
    const series = rows.map((row) => ({
      paths: () => null,
      stroke: () => color(row.css),
      points: { show: true, size: 7, fill: () => color(row.css), stroke: () => color("--paper") },
    }));
    return {
      data,
      options: {
        padding: [8, 14, 0, 0],
        scales: { x: { time: false, range: () => [low, high] }, y: { range: () => [-0.6, rows.length - 0.4] } },
        axes: [
          this.axis({ ...this.words(x), size: 44, space: 60 }),
          this.axis({ size: wide, splits: () => rows.map((_, place) => place), values: (_, splits) => splits.map(name) }),
        ],
        series: [{}, ...series],
        cursor: { show: false },
        hooks: { drawClear: [(u) => this.intervals(u)], draw: [(u) => this.ring(u)] },
      },
    };
  }

  intervals(u) {
    const { ctx, bbox } = u;
    const ratio = devicePixelRatio;
    const across = (x) => u.valToPos(x, "x", true);
    ctx.save();
    ctx.strokeStyle = color("--quiet");
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(across(0), bbox.top);
    ctx.lineTo(across(0), bbox.top + bbox.height);
    ctx.stroke();
    this.spec.rows.forEach((row, place) => {
      const top = u.valToPos(this.height(place), "y", true);
      ctx.strokeStyle = color(row.css);
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      if (row.low !== null && row.high !== null) {
        ctx.moveTo(across(row.low), top);
        ctx.lineTo(across(row.high), top);
      }
      if (row.mean !== null) {
        ctx.moveTo(across(row.mean), top - 9 * ratio);
        ctx.lineTo(across(row.mean), top + 9 * ratio);
      }
      ctx.stroke();
    });
    ctx.restore();
  }

  rows() {
    const labelled = this.spec.rows.some((row) => row.labels.length);
    const of = (row, at) => (labelled ? [row.labels[at] ?? ""] : []);
    const rows = this.spec.rows.flatMap((row) => row.values.map((value, at) => [row.name, ...of(row, at), value, row.mean ?? "", row.low ?? "", row.high ?? ""]));
    return { header: ["name", ...(labelled ? ["of"] : []), this.spec.x, "mean", "low", "high"], rows };
  }
}

function cut(name, most) {
  const whole = Math.max(6, Math.floor(most));
  return name.length <= whole ? name : `${name.slice(0, whole >> 1)}…${name.slice((whole >> 1) + 1 - whole)}`;
}
