// Charts over steps: lines, and shares on top of each other.

const NEAR = 6; // pixels within which the cursor looks for a step that most lines have
const FEW = 24; // a line of at most this many numbers has a dot at each

class Lines extends Figure {
  constructor(figure, spec) {
    super(figure, spec);
    this.group = group(figure.dataset.group);
    this.group.charts.add(this);
    this.scale = spec.scales[0];
    this.all = false; // whether nothing is off the scale
    this.stacked = spec.kind === "shares";
    this.index = null;
    this.exact = null;
    this.hovered = false;
    this.where = figure.querySelector(".where");
    this.beyond = figure.querySelector(".beyond");
    const buttons = [...figure.querySelectorAll(".legend button")];
    this.lines = spec.lines.map((line, place) => ({ ...line, button: buttons[place], on: !line.hidden }));
    for (const line of this.lines) {
      line.output = line.button?.querySelector("output");
      line.button?.addEventListener("click", () => this.toggle(line));
    }
    Lines.prepare(this);
    this.press();
    if (this.small) return;
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.leave());
    this.beyond?.addEventListener("click", () => {
      this.all = true;
      this.rebuild();
    });
  }

  // Called with each chart that is made.
  static prepare() {}

  shown(line) {
    return line.on && !(line.letter && this.group.off.has(line.letter));
  }

  toggle(line) {
    if (line.letter) this.group.toggle(line.letter);
    else {
      line.on = !line.on;
      this.press();
      this.rebuild();
    }
  }

  press() {
    for (const line of this.lines) line.button?.setAttribute("aria-pressed", this.shown(line));
  }

  // The numbers of each line along the axis.
  gather() {
    const axis = this.group.axis();
    this.stepAt = new Map();
    for (const line of this.lines) {
      const from = run(line.run);
      const { steps, values, means } = from.column(line.column, line.times);
      line.steps = steps;
      line.values = values;
      line.xs = from.along(axis, steps);
      line.numbers = values.map((value) => (value === null ? undefined : typeof value === "number" ? value : null));
      const source = means ?? { steps, values: line.numbers };
      const width = Math.round(settings.smoothing * source.values.length);
      line.trend =
        line.smooth && width > 1
          ? { xs: means ? from.along(axis, source.steps) : line.xs, values: smoothed(source.values, width) }
          : null;
      if (this.group.letters.length === 1) line.xs.forEach((x, place) => this.stepAt.set(x, steps[place]));
    }
    if (this.stacked) this.share();
  }

  // Shares of what is shown in the sum of magnitudes, at each step.
  share() {
    const shown = this.lines.filter((line) => this.shown(line));
    const parts = (take) => {
      const columns = shown.map(take);
      const sums = (columns[0] ?? []).map((_, place) => columns.reduce((sum, one) => sum + Math.abs(one[place] ?? 0), 0));
      const broken = (columns[0] ?? []).map((_, place) => columns.some((one) => one[place] === null));
      return columns.map((one) =>
        one.map((value, place) => (broken[place] ? null : sums[place] > 0 ? Math.abs(value ?? 0) / sums[place] : 0)),
      );
    };
    const raw = parts((line) => line.numbers);
    const trends = shown.every((line) => line.trend) && shown.length ? parts((line) => line.trend.values) : raw;
    let below = null;
    shown.forEach((line, place) => {
      line.shares = raw[place];
      line.edge = trends[place].map((part, at) => (part === null ? null : part + (below ? below[at] : 0)));
      line.along = line.trend ? line.trend.xs : line.xs;
      below = line.edge;
    });
  }

  drawing() {
    this.gather();
    const shown = this.lines.filter((line) => this.shown(line));
    this.drawn = [];
    for (const line of shown) {
      if (this.stacked) this.drawn.push({ line, xs: line.along, values: line.edge, area: true });
      else {
        this.drawn.push({ line, xs: line.xs, values: line.numbers, faint: line.trend !== null });
        if (line.trend) this.drawn.push({ line, xs: line.trend.xs, values: line.trend.values.map((one) => (typeof one === "number" ? one : undefined)), trend: true });
      }
    }
    const data = this.drawn.length ? uPlot.join(this.drawn.map((one) => [one.xs, one.values])) : [[]];
    this.common(data);
    return { data, options: this.options() };
  }

  // How many lines have a number at each place on the axis.
  common(data) {
    this.counts = new Uint16Array(data[0].length);
    for (let row = 1; row < data.length; row += 1) {
      if (this.drawn[row - 1].trend) continue;
      data[row].forEach((value, place) => (this.counts[place] += value === undefined ? 0 : 1));
    }
  }

  options() {
    const tick = TICKS[this.spec.unit];
    const right = this.drawn.some((one) => one.line.right);
    const lettered = this.lines.some((line) => line.letter);
    const chosen = (value) => value !== null && (this.scale !== "log" || "125".includes(value.toExponential()[0]));
    const words = (_, splits) => labels(splits.map((one) => (chosen(one) ? one : null)), tick);
    const y = { size: (_, said) => room(54, said), gap: 4, splits: SPLITS[this.scale], ...(this.scale === "linear" ? {} : { grid: DECADES }), values: words };
    const axis = AXES[this.group.axis()];
    const x = { size: 28, gap: 4, space: 70, values: (_, splits) => labels(splits, axis.tick) };
    if (GAPS[this.group.axis()]) x.incrs = GAPS[this.group.axis()];
    return {
      padding: this.small ? [2, 2, 2, 2] : [12, lettered ? 16 : right ? 0 : 10, 0, 0],
      scales: { x: { time: false, range: () => this.group.range() }, y: this.limited("y"), y2: this.limited("y2") },
      axes: [
        this.axis({ ...x, scale: "x", grid: { show: false } }),
        this.axis({ ...y, scale: "y" }),
        this.axis({ ...y, scale: "y2", side: 1, show: right, grid: { show: false } }),
      ],
      series: [{}, ...this.drawn.map((one) => this.look(one))],
      bands: this.stacked ? this.drawn.slice(1).map((_, place) => ({ series: [place + 2, place + 1] })) : [],
      cursor: this.cursor(),
      hooks: {
        draw: [(u) => this.marks(u)],
        setSelect: [(u) => this.selected(u)],
        setCursor: [(u) => this.moved(u)],
      },
    };
  }

  limited(scale) {
    const on = (side) => this.drawn.filter((one) => (one.line.right ? "y2" : "y") === side);
    const right = on("y2");
    // What is a multiple of something on the left has its axis, so that both are one line.
    const times = scale === "y2" && right.length && right[0].line.times > 0 && right[0].line.times !== 1 ? right[0].line.times : 1;
    const of = times === 1 ? on(scale) : on("y");
    const asinh = this.scale === "asinh" ? linear(of.map((one) => one.values.filter(Number.isFinite))) : 1;
    const options = { scale: this.scale, zero: this.spec.zero, all: this.all, asinh };
    const { low, high } = this.spec;
    const range = () => {
      if (this.stacked) return [0, 1];
      const [min, max] = this.group.range();
      const lists = of.map((one) => one.values.filter((value, at) => Number.isFinite(value) && one.xs[at] >= min && one.xs[at] <= max));
      const [first, last] = limits(lists, options);
      return [times * (low ?? first), times * (high ?? last)];
    };
    return { range, distr: DISTRIBUTIONS[this.scale], asinh };
  }

  look({ line, values, faint, trend, area }) {
    const stroke = () => color(line.css);
    const dash = line.look === "dashed" || line.css.includes("dash1") ? [6, 3] : line.css.includes("dash2") ? [2, 3] : undefined;
    const count = values.reduce((sum, value) => sum + (typeof value === "number" ? 1 : 0), 0);
    const dots = !this.small && !trend && !area && (line.look === "dots" ? count <= 100 : count <= FEW);
    return {
      scale: line.right ? "y2" : "y",
      stroke,
      dash: trend ? undefined : dash,
      fill: area ? stroke : undefined,
      width: area ? 0 : trend || line.look === "dots" ? 2 : this.small ? 1.2 : 1.6,
      alpha: faint ? Math.max(0.06, Math.min(0.25, 0.5 / this.lines.length)) : line.look === "behind" && !trend ? 0.55 : 1,
      points: { show: dots, size: 5, fill: stroke, stroke },
    };
  }

  cursor() {
    if (this.small) return { show: false };
    return {
      y: false,
      drag: { x: true, y: false, setScale: false },
      move: (u, left, top) => this.snap(u, left, top),
      dataIdx: (u, series, index) => this.near(u, series, this.index ?? index),
      points: { size: 8, width: 1.5, stroke: () => color("--paper"), fill: (u, place) => color(this.drawn[place - 1].line.css), show: (u, place) => (this.drawn[place - 1].trend || this.stacked ? undefined : element("div", { className: "u-cursor-pt" })) },
      bind: {
        dblclick: () => () => {
          this.all = false;
          this.group.setZoom(null);
        },
      },
    };
  }

  // The cursor stands at steps: at the nearest one, or one beside it that more lines have.
  snap(u, left, top) {
    const xs = u.data[0];
    if (left < 0 || !xs.length) {
      this.index = null;
      return [left, top];
    }
    if (this.exact === null) {
      const wanted = u.posToVal(left, "x");
      let best = nearest(xs, wanted);
      const reach = u.posToVal(left + NEAR, "x") - wanted;
      for (const way of [-1, 1]) {
        for (let at = best; at >= 0 && at < xs.length && Math.abs(xs[at] - wanted) <= reach; at += way) {
          if (this.counts[at] > this.counts[best]) best = at;
        }
      }
      this.index = best;
    } else this.index = this.exact;
    return [u.valToPos(xs[this.index], "x"), top];
  }

  near(u, series, index) {
    const values = u.data[series];
    if (series === 0 || values === undefined || index === null) return index;
    for (let reach = 0; reach < values.length; reach += 1) {
      if (values[index - reach] !== undefined) return index - reach;
      if (values[index + reach] !== undefined) return index + reach;
    }
    return null;
  }

  moved(u) {
    if (this.exact !== null) return;
    // A chart that is only drawn has no cursor to leave with.
    if (this.index === null && !this.hovered) return;
    this.hovered = this.index !== null;
    const x = this.index === null ? null : u.data[0][this.index];
    this.tell(x);
    this.group.follow(this, x);
  }

  moveTo(x) {
    if (!this.uplot || this.small) return;
    const u = this.uplot;
    const { min, max } = u.scales.x;
    if (x === null || x < min || x > max || !u.data[0].length) {
      u.setCursor({ left: -10, top: -10 }, false);
      this.tell(null);
      return;
    }
    this.exact = nearest(u.data[0], x);
    u.setCursor({ left: u.valToPos(u.data[0][this.exact], "x"), top: u.over.clientHeight / 2 }, false);
    this.exact = null;
    this.tell(u.data[0][this.index]);
  }

  // A number of a line at a place on the axis: the log's own, or the nearest there is, with its step.
  read(line, x) {
    if (!line.xs.length) return null;
    const at = nearest(line.xs, x);
    const value = this.stacked ? (line.shares?.[at] ?? line.values[at]) : line.values[at];
    if (value === null) return null;
    const text = typeof value === "number" ? UNITS[this.spec.unit](value) : value;
    return line.xs[at] === x ? text : `${text} @${thousands(line.steps[at])}`;
  }

  tell(x) {
    const said = [];
    for (const line of this.lines) {
      const text = x === null || !this.shown(line) ? null : this.read(line, x);
      if (line.output) line.output.textContent = text ?? "";
      if (text !== null) said.push(`${line.letter ? `${line.letter} ` : ""}${line.name} ${text}`);
    }
    const where = x === null ? "" : this.place(x);
    this.where.textContent = where;
    if (x === null) return;
    this.plot.setAttribute("aria-valuenow", Math.round(x));
    this.plot.setAttribute("aria-valuetext", `${where}: ${said.join(", ")}`);
  }

  place(x) {
    const axis = this.group.axis();
    const step = this.stepAt.get(x);
    if (axis === "step" || step === undefined) return AXES[axis].said(x);
    return `${AXES[axis].said(x)}, step ${thousands(step)}`;
  }

  selected(u) {
    const { left, width } = u.select;
    if (width < 4) return;
    this.group.setZoom([u.posToVal(left, "x"), u.posToVal(left + width, "x")]);
    u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
  }

  key(event) {
    if (!this.uplot || event.altKey || event.ctrlKey || event.metaKey) return;
    const xs = this.uplot.data[0];
    const [left, right] = this.group.range();
    const first = xs.findIndex((x) => x >= left);
    const last = xs.findLastIndex((x) => x <= right);
    if (first < 0 || last < first) return;
    const now = this.index ?? first - 1;
    const far = Math.max(1, Math.round((last - first) / 10));
    const moves = {
      ArrowRight: now + 1,
      ArrowUp: now + 1,
      ArrowLeft: now - 1,
      ArrowDown: now - 1,
      PageUp: now + far,
      PageDown: now - far,
      Home: first,
      End: last,
    };
    const around = this.index === null ? (left + right) / 2 : xs[this.index];
    const zooms = { "+": 0.5, "=": 0.5, "-": 2 };
    if (event.key in moves) {
      const x = xs[Math.min(last, Math.max(first, moves[event.key]))];
      this.moveTo(x);
      this.group.follow(this, x);
    } else if (event.key in zooms) this.group.scaleBy(zooms[event.key], around);
    else if (event.key === "0") this.group.setZoom(null);
    else if (event.key === "Escape") this.leave();
    else return;
    event.preventDefault();
  }

  leave() {
    this.moveTo(null);
    this.group.follow(this, null);
  }

  rows() {
    const axis = this.group.axis();
    const shown = this.lines.filter((line) => this.shown(line));
    const letters = new Set(shown.map((line) => line.run));
    const extra = letters.size === 1 && axis !== "step" ? [axis] : [];
    const at = new Map();
    shown.forEach((line, column) =>
      line.steps.forEach((step, place) => {
        if (!at.has(step)) at.set(step, { x: line.xs[place], values: new Array(shown.length).fill("") });
        const value = this.stacked ? (line.shares[place] ?? line.values[place]) : line.values[place];
        at.get(step).values[column] = value ?? "";
      }),
    );
    const header = ["step", ...extra, ...shown.map((line) => (line.letter ? `${line.letter} ${line.name}` : line.name))];
    const rows = [...at.entries()].sort((one, other) => one[0] - other[0]);
    return { header, rows: rows.map(([step, { x, values }]) => [step, ...(extra.length ? [x] : []), ...values]) };
  }
}
