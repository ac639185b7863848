// The limits of axes.

const RARE = 0.02; // at most this part of the values may be off the scale
const SPIKE = 5; // if it is further from the others than this many times their range
const SAMPLE = 4000;

// The values of several lists between which all but rare spikes lie.
function robust(lists) {
  let [low, high, count] = [Infinity, -Infinity, 0];
  for (const values of lists) {
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    count += values.length;
  }
  const every = Math.max(1, Math.floor(count / SAMPLE));
  const some = lists.flatMap((values) => values.filter((_, index) => index % every === 0)).sort((a, b) => a - b);
  if (some.length < 8) return { low, high };
  const at = (part) => some[Math.round(part * (some.length - 1))];
  const [inner, outer] = [at(RARE / 2), at(1 - RARE / 2)];
  const room = SPIKE * (outer - inner);
  if (room > 0 && high > outer + room) high = outer + 0.15 * (outer - inner);
  if (room > 0 && low < inner - room) low = inner - 0.15 * (outer - inner);
  return { low, high };
}

// How uPlot calls the scales.
const DISTRIBUTIONS = { linear: 1, log: 3, asinh: 4 };

// The ends of an axis on which these lists of numbers are drawn; with `all` nothing is off the scale. An asinh axis is
// about linear up to the size `asinh`.
function limits(lists, { scale, zero, all, asinh }) {
  if (scale === "log") {
    const positive = lists.map((values) => values.filter((value) => value > 0));
    let [low, high] = [Infinity, -Infinity];
    for (const values of positive) for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low > high) return [0.1, 1];
    // At least half of a decade, or noise would fill the axis.
    const lacking = Math.max(1.1, Math.sqrt(Math.sqrt(10) / (high / low)));
    return [low / lacking, high * lacking];
  }
  let { low, high } = robust(lists);
  if (all || scale === "asinh") {
    for (const values of lists) for (const value of values) [low, high] = [Math.min(low, value), Math.max(high, value)];
  }
  if (low > high) return [0, 1];
  if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (low === high) return [low - (Math.abs(low) / 10 || 1), high + (Math.abs(high) / 10 || 1)];
  if (scale === "asinh") {
    const [first, last] = [Math.asinh(low / asinh), Math.asinh(high / asinh)];
    const room = 0.05 * (last - first);
    return [asinh * Math.sinh(first - room), asinh * Math.sinh(last + room)];
  }
  const room = 0.05 * (high - low);
  return [low < 0 || !zero ? low - room : 0, high > 0 || !zero ? high + room : 0];
}

// The round numbers between two positive ends. uPlot counts upwards from the lower end: if that is just under 0.01, or a
// smaller power of ten, it rounds what follows to 0 and never comes to the upper one.
function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= 308 && Number(`1e${power}`) <= high; power += 1) {
    for (let digit = 1; digit < 10; digit += 1) {
      const value = Number(`${digit}e${power}`);
      if (value >= low && value <= high) found.push(value);
    }
  }
  return found;
}

// Where an axis has labels, if it is not linear.
const SPLITS = {
  log: (u, axis, low, high) => decades(low, high),
  asinh: (u, axis, low, high) => {
    const { asinh } = u.scales[u.axes[axis].scale];
    const below = decades(asinh, -low).filter((one) => -one <= high);
    const above = decades(asinh, high).filter((one) => one >= low);
    return [...below.reverse().map((one) => -one), ...(low <= 0 && high >= 0 ? [0] : []), ...above];
  },
};

// On an axis of several decades, lines at the decades alone, and at 0.
const DECADES = {
  stroke: () => color("--grid"),
  width: 1,
  filter: (u, splits) => {
    const whole = splits.map((one) => (one === 0 || Number.isInteger(Math.log10(Math.abs(one))) ? one : null));
    return whole.filter((one) => one !== null).length > 1 ? whole : splits;
  },
};

// Up to which size an asinh axis is about linear: small beside most of the values.
function linear(lists) {
  const sizes = lists.flatMap((values) => values.filter((value) => value !== 0).map(Math.abs)).sort((a, b) => a - b);
  return sizes.length ? sizes[Math.floor(sizes.length / 10)] : 1;
}
