// One quantity against another: named points, a front as steps, or all of them joined by a line.

class Scatter extends Points {
  list() {
    const { spots, x, y } = this.spec;
    const said = (spot) => `${spot.name}: ${x} ${shown(spot.x)}, ${y} ${shown(spot.y)}${spot.front ? ", on the front" : ""}`;
    return [...spots].sort((one, other) => one.x - other.x).map((spot) => ({ ...spot, words: said(spot) }));
  }

  drawing() {
    const { spots, x, y, scale, joined } = this.spec;
    const front = this.points.filter((spot) => spot.front);
    const paths = [
      { of: front, paths: uPlot.paths.stepped({ align: 1 }), stroke: () => color("--quiet"), points: { show: false } },
      { of: joined ? this.points : [], paths: uPlot.paths.linear(), stroke: () => color("--quiet"), points: { show: false } },
      ...spots.map((spot) => ({
        of: [spot],
        paths: () => null,
        stroke: () => color(spot.css),
        points: { show: true, size: 9, fill: () => color(spot.css), stroke: () => color("--paper") },
      })),
    ].filter((one) => one.of.length);
    const data = paths.length ? uPlot.join(paths.map(({ of }) => [of.map((spot) => spot.x), of.map((spot) => spot.y)])) : [[]];
    const [across, up] = [spots.map((spot) => spot.x), spots.map((spot) => spot.y)];
    const asinh = linear([across]);
    return {
      data,
      options: {
        padding: [14, 14, 0, 0],
        scales: {
          x: { time: false, distr: DISTRIBUTIONS[scale], asinh, range: () => limits([across], { scale, asinh, all: true }) },
          y: { range: () => limits([up], { scale: "linear", all: true }) },
        },
        axes: [
          this.axis({ ...this.words(x), size: 44, space: 70, splits: SPLITS[scale], ...(scale === "linear" ? {} : { grid: DECADES }) }),
          this.axis({ ...this.words(y), size: (_, said) => room(72, said) }),
        ],
        series: [{}, ...paths.map(({ of, ...series }) => series)],
        cursor: { show: false },
        hooks: {
          draw: [
            (u) => {
              this.names(u);
              this.ring(u);
            },
          ],
        },
      },
    };
  }

  // A name beside each point where there is room, those on the front first; the cursor reads the others.
  names(u) {
    const { ctx } = u;
    const ratio = devicePixelRatio;
    const spots = this.points.map((spot) => ({ ...spot, left: u.valToPos(spot.x, "x", true), top: u.valToPos(spot.y, "y", true) }));
    const taken = spots.map(({ left, top }) => around(left, top, 5 * ratio));
    ctx.save();
    ctx.font = `${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillStyle = color("--ink");
    ctx.strokeStyle = color("--paper");
    ctx.lineWidth = 3 * ratio;
    ctx.lineJoin = "round";
    for (const spot of [...spots].sort((one, other) => other.front - one.front)) {
      const words = cut(spot.name, 28);
      const wide = ctx.measureText(words).width;
      const sides = [spot.left + 8 * ratio, spot.left - 8 * ratio - wide];
      const levels = [spot.top - 9 * ratio, spot.top + 9 * ratio, spot.top];
      const boxes = levels.flatMap((top) => sides.map((left) => ({ left, right: left + wide, top: top - 6 * ratio, bottom: top + 6 * ratio })));
      const box = boxes.find((one) => inside(one, u) && !taken.some((other) => meet(one, other)));
      if (!box) continue;
      taken.push(box);
      ctx.strokeText(words, box.left, (box.top + box.bottom) / 2);
      ctx.fillText(words, box.left, (box.top + box.bottom) / 2);
    }
    ctx.restore();
  }

  rows() {
    const { spots, x, y } = this.spec;
    return { header: ["name", x, y], rows: spots.map((spot) => [spot.name, spot.x, spot.y]) };
  }
}

function around(left, top, reach) {
  return { left: left - reach, right: left + reach, top: top - reach, bottom: top + reach };
}

function meet(one, other) {
  return one.left < other.right && other.left < one.right && one.top < other.bottom && other.top < one.bottom;
}

// In the plot, or in the room above it.
function inside(box, { bbox }) {
  return box.left >= bbox.left && box.right <= bbox.left + bbox.width + 14 * devicePixelRatio && box.top >= 0 && box.bottom <= bbox.top + bbox.height;
}
