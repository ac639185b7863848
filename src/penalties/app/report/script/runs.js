// The numbers of runs, read from the page when a chart needs them.

class Run {
  constructor(data) {
    this.steps = data.steps.map((differences) => {
      let sum = 0;
      return differences.map((one) => (sum += one));
    });
    this.columns = data.columns;
    this.axes = data.axes;
  }

  // Steps and values; where a series is thinned, the means of its buckets too. A word stands for what is not a number.
  column(number, times) {
    const [at, values, meansAt, means] = this.columns[number];
    const steps = this.steps[at];
    const scaled = (value) => (typeof value === "number" ? value * times : value);
    const whole = (found, of) => (Array.isArray(found) ? found.map(scaled) : new Array(of.length).fill(scaled(found)));
    return {
      steps,
      values: whole(values, steps),
      means: means === undefined ? null : { steps: this.steps[meansAt], values: whole(means, this.steps[meansAt]) },
    };
  }

  has(axis) {
    return axis in this.axes;
  }

  // Increasing steps as tokens or seconds up to them.
  along(axis, steps) {
    if (axis === "step") return steps;
    const from = this.axes.step;
    const to = this.axes[axis];
    let knot = 0;
    return steps.map((step) => {
      while (knot < from.length - 2 && from[knot + 1] < step) knot += 1;
      const wide = from[knot + 1] - from[knot];
      const way = wide > 0 ? Math.min(1, Math.max(0, (step - from[knot]) / wide)) : 1;
      return to[knot] + way * (to[knot + 1] - to[knot]);
    });
  }

  // A step before the first of all stands for nothing done, and is none.
  ends(axis) {
    const all = this.axes[axis];
    return [Math.max(0, all[0]), all[all.length - 1]];
  }
}

const known = new Map();

function run(letter) {
  if (!known.has(letter)) known.set(letter, new Run(JSON.parse(document.getElementById(`numbers-${letter}`).textContent)));
  return known.get(letter);
}

// The index of the number nearest to this one, among increasing ones.
function nearest(numbers, wanted) {
  let low = 0;
  let high = numbers.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low > 0 && wanted - numbers[low - 1] < numbers[low] - wanted ? low - 1 : low;
}

// Means over a moving window, which is shorter at the ends; gaps stay.
function smoothed(values, width) {
  const half = Math.floor(width / 2);
  const sums = [0];
  const counts = [0];
  for (const value of values) {
    const good = typeof value === "number";
    sums.push(sums[sums.length - 1] + (good ? value : 0));
    counts.push(counts[counts.length - 1] + (good ? 1 : 0));
  }
  return values.map((value, index) => {
    const reach = Math.min(half, index, values.length - 1 - index);
    const [from, to] = [index - reach, index + reach + 1];
    const count = counts[to] - counts[from];
    return typeof value === "number" && count ? (sums[to] - sums[from]) / count : value;
  });
}
