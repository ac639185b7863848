// Charts without steps: a row of dots for each name with its interval, and one quantity against another.

class Dots extends Figure {
  drawing() {
    const { rows, x } = this.spec;
    const numbers = rows.flatMap((row) => [...row.values, row.mean, row.low, row.high].filter((one) => one !== null));
    const [low, high] = limits([numbers], { scale: "linear", zero: true, all: true });
    // Rows from the top: the last one is at 0.
    const height = (row) => rows.length - 1 - row;
    const tables = rows.map((row, place) => {
      const values = [...row.values].sort((one, other) => one - other);
      return [values, values.map(() => height(place))];
    });
    const data = tables.some((one) => one[0].length) ? uPlot.join(tables) : [[]];
    const wide = Math.min(0.35 * this.plot.clientWidth, 24 + 7 * Math.max(0, ...rows.map((row) => row.name.length)));
    const name = (place) => (Number.isInteger(place) && rows[height(place)] ? cut(rows[height(place)].name, wide / 7) : "");
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
          this.axis({ size: 44, label: x, labelSize: 18, labelFont: "12px sans-serif", values: (_, splits) => splits.map((one) => shown(one, 3)) }),
          this.axis({ size: wide, splits: () => rows.map((_, place) => place), values: (_, splits) => splits.map(name) }),
        ],
        series: [{}, ...series],
        cursor: { show: false },
        hooks: { drawClear: [(u) => this.intervals(u, height)] },
      },
    };
  }

  intervals(u, height) {
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
      const top = u.valToPos(height(place), "y", true);
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
    const rows = this.spec.rows.flatMap((row) => row.values.map((value) => [row.name, value, row.mean ?? "", row.low ?? "", row.high ?? ""]));
    return { header: ["name", this.spec.x, "mean", "low", "high"], rows };
  }
}

class Scatter extends Figure {
  drawing() {
    const { spots, x, y, log, joined } = this.spec;
    const order = [...spots].sort((one, other) => one.x - other.x);
    const front = order.filter((spot) => spot.front);
    const paths = [
      { of: front, paths: uPlot.paths.stepped({ align: 1 }), stroke: () => color("--quiet"), points: { show: false } },
      { of: joined ? order : [], paths: uPlot.paths.linear(), stroke: () => color("--quiet"), points: { show: false } },
      ...spots.map((spot) => ({
        of: [spot],
        paths: () => null,
        stroke: () => color(spot.css),
        points: { show: true, size: 9, fill: () => color(spot.css), stroke: () => color("--paper") },
      })),
    ].filter((one) => one.of.length);
    const data = paths.length ? uPlot.join(paths.map(({ of }) => [of.map((spot) => spot.x), of.map((spot) => spot.y)])) : [[]];
    const ends = (take, scale) => limits([spots.map(take)], { scale, zero: false, all: true });
    const words = (label) => ({ label, labelSize: 18, labelFont: "12px sans-serif", values: (_, splits) => splits.map((one) => (one === null ? "" : shown(one, 3))) });
    return {
      data,
      options: {
        padding: [12, 14, 0, 0],
        scales: {
          x: { time: false, distr: log ? 3 : 1, range: () => ends((spot) => spot.x, log ? "log" : "linear") },
          y: { range: () => ends((spot) => spot.y, "linear") },
        },
        axes: [this.axis({ ...words(x), size: 44, ...(log ? { grid: DECADES } : {}) }), this.axis({ ...words(y), size: 72 })],
        series: [{}, ...paths.map(({ of, ...series }) => series)],
        cursor: { show: false },
        hooks: { draw: [(u) => this.names(u)] },
      },
    };
  }

  names(u) {
    const { ctx, bbox } = u;
    ctx.save();
    ctx.font = `${11 * devicePixelRatio}px ${getComputedStyle(document.body).fontFamily}`;
    for (const spot of this.spec.spots) {
      const left = u.valToPos(spot.x, "x", true);
      const right = left > bbox.left + 0.6 * bbox.width;
      ctx.textAlign = right ? "right" : "left";
      ctx.fillStyle = color("--ink");
      ctx.fillText(cut(spot.name, 28), left + (right ? -8 : 8) * devicePixelRatio, u.valToPos(spot.y, "y", true) - 6 * devicePixelRatio);
    }
    ctx.restore();
  }

  rows() {
    const { spots, x, y } = this.spec;
    return { header: ["name", x, y], rows: spots.map((spot) => [spot.name, spot.x, spot.y]) };
  }
}

function cut(name, most) {
  const whole = Math.max(6, Math.floor(most));
  return name.length <= whole ? name : `${name.slice(0, whole >> 1)}…${name.slice((whole >> 1) + 1 - whole)}`;
}
