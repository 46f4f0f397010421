(() => {
  const calls = JSON.parse(document.getElementById('invocations').textContent);
  const canvas = document.querySelector('canvas'), said = document.getElementById('pointed');
  if (!calls.length) { said.textContent = 'No run of Stellaris is there.'; return; }
  const lanes = new Map();
  for (const call of [...calls].sort((a, b) => a[0] < b[0] ? -1 : a[0] > b[0] ? 1 : a[1] - b[1])) {
    const lane = call[0] + ' ' + call[1];
    if (!lanes.has(lane)) lanes.set(lane, lanes.size);
  }
  const colours = {actor: '#0072B2', learner: '#D55E00', parameter: '#009E73'};
  const end = Math.max(...calls.map(call => call[4])), left = 70;
  let from = 0, until = Math.min(end, 5), held = null;
  const x = time => left + (time - from) / (until - from) * (canvas.clientWidth - left);
  const height = () => (canvas.clientHeight - 18) / lanes.size;
  function draw() {
    const scale = window.devicePixelRatio || 1, pen = canvas.getContext('2d');
    canvas.width = canvas.clientWidth * scale; canvas.height = canvas.clientHeight * scale;
    pen.scale(scale, scale); pen.font = '11px system-ui,sans-serif';
    for (const [name, container, acquired, started, ended] of calls) {
      const y = lanes.get(name + ' ' + container) * height();
      pen.fillStyle = colours[name] || '#555'; pen.globalAlpha = .3;
      pen.fillRect(x(acquired), y, Math.max(x(started) - x(acquired), 0), height() - 1);
      pen.globalAlpha = 1; pen.fillRect(x(started), y, Math.max(x(ended) - x(started), .5), height() - 1);
    }
    pen.fillStyle = '#fff'; pen.fillRect(0, 0, left, canvas.clientHeight); pen.fillStyle = '#111';
    let last = '';
    for (const [lane, row] of lanes) {
      const name = lane.split(' ')[0];
      if (name !== last) pen.fillText(name, 4, row * height() + 11);
      last = name;
    }
    const step = 10 ** Math.floor(Math.log10((until - from) / 3));
    for (let t = Math.ceil(from / step) * step; t <= until; t += step)
      if (x(t) >= left) pen.fillText(+t.toFixed(6) + ' s', x(t), canvas.clientHeight - 4);
  }
  function move(a, b) {
    const span = Math.min(Math.max(b - a, .01), end);
    from = Math.min(Math.max(a, 0), end - span); until = from + span; draw();
  }
  canvas.addEventListener('wheel', event => {
    event.preventDefault();
    const share = Math.max((event.offsetX - left) / (canvas.clientWidth - left), 0), at = from + share * (until - from);
    const factor = Math.exp(event.deltaY / 400);
    move(at - (at - from) * factor, at + (until - at) * factor);
  }, {passive: false});
  canvas.addEventListener('pointerdown', event => { held = event.offsetX; canvas.setPointerCapture(event.pointerId); });
  canvas.addEventListener('pointerup', () => { held = null; });
  canvas.addEventListener('pointermove', event => {
    const each = (until - from) / (canvas.clientWidth - left);
    if (held !== null) { const by = (held - event.offsetX) * each; held = event.offsetX; move(from + by, until + by); return; }
    const time = from + (event.offsetX - left) * each, lane = Math.floor(event.offsetY / height());
    const call = calls.find(c => lanes.get(c[0] + ' ' + c[1]) === lane && c[2] <= time && time <= c[4]);
    said.textContent = call ? `${call[0]}, container ${call[1]}: from ${call[3]} s to ${call[4]} s` +
      (call[5] ? `, cold start of ${(call[3] - call[2]).toFixed(3)} s` : '') : '\u00a0';
  });
  window.addEventListener('resize', draw);
  draw();
})();
