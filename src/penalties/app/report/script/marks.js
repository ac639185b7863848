// Marks in a chart over steps: what is not finite, failures, values off the scale, events of the run, letters.

const APART = 12; // pixels between two marks of a kind
const FAR = 50; // pixels by which a letter may stand beside the end of its line

Lines.prototype.marks = function (u) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `${12 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = "center";
  const [low, high] = [u.scales.x.min, u.scales.x.max];
  const across = (x) => u.valToPos(x, "x", true);
  if (!this.small) {
    const shown = this.lines.filter((line) => this.shown(line));
    for (const line of shown) {
      let [lastTick, lastCross] = [-Infinity, -Infinity];
      line.values.forEach((value, place) => {
        const x = line.xs[place];
        if (typeof value !== "string" || x < low || x > high) return;
        const left = across(x);
        if (value === "failed") {
          if (left - lastTick < ratio) return;
          lastTick = left;
          ctx.fillStyle = color(line.css);
          ctx.fillRect(left - ratio / 2, bbox.top + bbox.height - 8 * ratio, 1.5 * ratio, 8 * ratio);
        } else {
          ctx.fillStyle = color("--alert");
          ctx.globalAlpha = 0.3;
          ctx.fillRect(left - ratio / 2, bbox.top, ratio, bbox.height);
          ctx.globalAlpha = 1;
          if (left - lastCross >= APART * ratio) ctx.fillText("×", left, bbox.top - 2 * ratio);
          if (left - lastCross >= APART * ratio) lastCross = left;
        }
      });
    }
    for (const [step] of this.spec.moments) {
      const [x] = run(this.lines[0].run).along(this.group.axis(), [step]);
      if (x < low || x > high) continue;
      ctx.strokeStyle = ctx.fillStyle = color("--quiet");
      ctx.lineWidth = ratio;
      ctx.setLineDash([2 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(across(x), bbox.top);
      ctx.lineTo(across(x), bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText("↻", across(x), bbox.top - 2 * ratio);
    }
    if (!this.stacked) this.outside(u);
    this.ends(u);
  }
  ctx.restore();
};

// Signs at the edge where a value is off the scale; the furthest is said under the chart.
Lines.prototype.outside = function (u) {
  const { ctx, bbox } = u;
  const { min, max } = u.scales.x;
  let furthest = null;
  ctx.fillStyle = color("--quiet");
  for (const one of this.drawn) {
    if (one.trend) continue;
    const scale = u.scales[one.line.right ? "y2" : "y"];
    let last = -Infinity;
    one.values.forEach((value, place) => {
      const x = one.xs[place];
      if (typeof value !== "number" || x < min || x > max) return;
      const over = value - scale.max;
      const under = this.scale === "log" && value <= 0 ? 0 : scale.min - value;
      const off = Math.max(over, under) / (scale.max - scale.min);
      if (off <= 1e-9) return;
      const left = u.valToPos(x, "x", true);
      if (left - last >= APART * devicePixelRatio) {
        ctx.fillText(over > 0 ? "▲" : "▼", left, over > 0 ? bbox.top - devicePixelRatio : bbox.top + bbox.height - devicePixelRatio);
        last = left;
      }
      if (furthest === null || off > furthest.off) furthest = { off, value, over, step: one.line.steps[place], line: one.line };
    });
  }
  const words = furthest === null ? "" : `${furthest.over > 0 ? "▲" : "▼"} ${shown(furthest.value)} at step ${thousands(furthest.step)} is off the scale; show all`;
  if (this.beyond && this.beyond.textContent !== words) {
    this.beyond.textContent = words;
    this.beyond.hidden = words === "";
  }
};

// The letter of a run where its line ends, apart from the others.
Lines.prototype.ends = function (u) {
  const { ctx, bbox } = u;
  const ratio = devicePixelRatio;
  const found = [];
  for (const one of this.drawn) {
    if (!one.line.letter || one.faint) continue;
    const { min, max } = u.scales.x;
    const last = one.values.findLastIndex((value, place) => typeof value === "number" && one.xs[place] <= max && one.xs[place] >= min);
    if (last < 0) continue;
    const top = Math.min(bbox.top + bbox.height, Math.max(bbox.top, u.valToPos(one.values[last], "y", true)));
    found.push({ left: u.valToPos(one.xs[last], "x", true), top, wanted: top, line: one.line });
  }
  if (found.length * 11 * ratio > bbox.height) return;
  found.sort((one, other) => one.top - other.top);
  found.forEach((one, place) => {
    if (place) one.top = Math.max(one.top, found[place - 1].top + 11 * ratio);
  });
  found.reverse().forEach((one, place) => {
    one.top = Math.min(one.top, bbox.top + bbox.height - place * 11 * ratio);
  });
  // Far from the ends of their lines letters would say nothing, or something wrong.
  if (found.some((one) => Math.abs(one.top - one.wanted) > FAR * ratio)) return;
  ctx.font = `700 ${11 * ratio}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  for (const one of found) {
    ctx.fillStyle = color(one.line.css);
    ctx.fillText(one.line.letter, one.left + 4 * ratio, one.top);
  }
};
