// Draws functions over time on a canvas: one lane per container, below the name of its function.
(() => {
  const chart = document.getElementById('chart'), canvas = chart.querySelector('canvas');
  const pointed = document.getElementById('pointed'), shown = document.getElementById('shown');
  const calls = JSON.parse(document.getElementById('invocations').textContent)
    .map(([name, container, acquired, started, ended, cold]) => ({name, container, acquired, started, ended, cold}));
  if (!calls.length) { pointed.textContent = 'No run of Stellaris is there.'; return; }
  chart.hidden = false;

  // ---- lanes, from top to bottom; sizes are in pixels -----------------------------------------------------------
  const TITLE = 22, AXIS = 22, FONT = '13px system-ui,sans-serif';
  const COLOURS = {actor: '#0072B2', learner: '#D55E00', parameter: '#009E73'};
  const titles = [], lanes = [];
  const thick = Math.min(Math.max(320 / new Set(calls.map(call => call.name + ' ' + call.container)).size, 4), 14);
  let height = 0;
  for (const name of [...new Set(calls.map(call => call.name))].sort()) {
    const own = calls.filter(call => call.name === name);
    const containers = [...new Set(own.map(call => call.container))].sort((a, b) => a - b);
    height += TITLE;
    titles.push([`${name}: ${containers.length} container${containers.length > 1 ? 's' : ''}`, height - 6]);
    for (const container of containers) {
      const of = own.filter(call => call.container === container).sort((a, b) => a.started - b.started);
      of.forEach((call, index) => Object.assign(call, {lane: lanes.length, index, top: height}));
      lanes.push(of);
      height += thick;
    }
  }
  canvas.style.height = height + AXIS + 'px';

  // ---- the visible interval, and the selected invocation --------------------------------------------------------
  const end = Math.max(...calls.map(call => call.ended), .001);
  let from = 0, until = Math.min(end, 5), chosen = null, held = null;
  const x = time => (time - from) / (until - from) * canvas.clientWidth;
  const time = x => from + x / canvas.clientWidth * (until - from);

  function draw() {
    const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, pen = canvas.getContext('2d');
    canvas.width = width * scale;
    canvas.height = (height + AXIS) * scale;
    pen.scale(scale, scale);
    pen.font = FONT;
    const rough = (until - from) * 90 / width, power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find(factor => power * factor >= rough);
    const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    for (let tick = Math.ceil(from / step); tick * step <= until; tick++) {
      const at = x(tick * step);
      pen.fillStyle = '#e4e4e4';
      pen.fillRect(at, 0, 1, height + 4);
      pen.fillStyle = '#111';
      if (at < width - 60) pen.fillText((tick * step).toFixed(digits) + ' s', at, height + AXIS - 5);
    }
    const bar = (call, begin, end, alpha) => {
      pen.globalAlpha = alpha;
      pen.fillRect(x(begin), call.top, Math.max(x(end) - x(begin), .5), thick - 1);
    };
    for (const call of calls.filter(call => call.ended >= from && call.acquired <= until)) {
      pen.fillStyle = COLOURS[call.name] || '#555';
      if (call.started > call.acquired) bar(call, call.acquired, call.started, .3);
      bar(call, call.started, call.ended, 1);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = '#111';
    for (const [title, y] of titles) pen.fillText(title, 0, y);
    pen.lineWidth = 2;
    if (chosen)
      pen.strokeRect(x(chosen.acquired) - 1, chosen.top - 1, x(chosen.ended) - x(chosen.acquired) + 2, thick + 1);
    shown.textContent = `${from.toFixed(2)} s to ${until.toFixed(2)} s of ${end.toFixed(2)} s`;
  }

  function move(a, b) {
    const span = Math.min(Math.max(b - a, .01), end);
    from = Math.min(Math.max(a, 0), end - span);
    until = from + span;
    draw();
  }

  const zoom = (factor, at = (from + until) / 2) => move(at - (at - from) * factor, at + (until - at) * factor);

  function choose(call) {
    chosen = call;
    const waited = call && (call.started - call.acquired).toFixed(3);
    pointed.textContent = !call ? '\u00a0' : `${call.name}, container ${call.container}: ` +
      `from ${call.started.toFixed(3)} s to ${call.ended.toFixed(3)} s` + (call.cold ? `, cold start of ${waited} s` : '');
    draw();
  }

  // ---- pointer, wheel, keys and buttons -------------------------------------------------------------------------
  const under = event => {
    const lane = lanes.find(([call]) => call.top <= event.offsetY && event.offsetY < call.top + thick) || [];
    const at = time(event.offsetX), near = time(event.offsetX + 2) - at;
    return lane.find(call => call.acquired - near <= at && at <= call.ended + near) || null;
  };
  canvas.addEventListener('pointerdown', event => {
    held = event.offsetX;
    canvas.setPointerCapture(event.pointerId);
    choose(under(event));
  });
  for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, () => { held = null; });
  canvas.addEventListener('pointermove', event => {
    if (held === null) { choose(under(event)); return; }
    const by = time(held) - time(event.offsetX);
    held = event.offsetX;
    move(from + by, until + by);
  });
  // Without the control key the wheel scrolls the page; pinching a touchpad arrives as a wheel with that key.
  canvas.addEventListener('wheel', event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoom(Math.exp(event.deltaY / 400), time(event.offsetX));
  }, {passive: false});

  const nearest = lane => lane && lane.reduce((best, call) =>
    Math.abs(call.started - chosen.started) < Math.abs(best.started - chosen.started) ? call : best);
  const beside = {
    ArrowLeft: () => lanes[chosen.lane][chosen.index - 1], ArrowRight: () => lanes[chosen.lane][chosen.index + 1],
    ArrowUp: () => nearest(lanes[chosen.lane - 1]), ArrowDown: () => nearest(lanes[chosen.lane + 1]),
  };
  const factors = {'+': .5, '=': .5, '-': 2, '0': Infinity};
  canvas.addEventListener('keydown', event => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    if (event.key in factors) zoom(factors[event.key]);
    else if (event.key in beside) {
      choose(chosen ? beside[event.key]() || chosen : lanes[0][0]);
      const middle = (chosen.started + chosen.ended) / 2, half = (until - from) / 2;
      if (middle < from || middle > until) move(middle - half, middle + half);
    } else return;
    event.preventDefault();
  });
  for (const button of chart.querySelectorAll('button'))
    button.addEventListener('click', () => zoom(Number(button.dataset.zoom)));
  window.addEventListener('resize', draw);
  draw();
})();
