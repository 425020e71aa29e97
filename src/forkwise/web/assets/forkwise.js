/* What the pages of forkwise serve do in the browser: keys, running clocks, long output, lost connections. */
'use strict';
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const byId = id => document.getElementById(id);

  // A browser has six connections for a server: a page that is not visible gives its own back

  class Stream extends EventTarget {
    constructor(url) {
      super();
      this.url = url;
      this.connect();
      document.addEventListener('visibilitychange', () => {
        if (document.visibilityState === 'hidden') this.source.close(); else if (this.readyState === 2) this.connect();
      });
    }

    get readyState() { return this.source.readyState; }

    connect() {
      this.source = new EventSource(this.url);
      this.source.onopen = event => this.onopen && this.onopen(event);
      this.source.onerror = event => this.onerror && this.onerror(event);
      ['fork', 'progress'].forEach(name => this.source.addEventListener(name, event => {
        this.dispatchEvent(new MessageEvent(name, { data: event.data }));
      }));
    }

    close() { this.source.close(); }
  }
  htmx.createEventSource = url => new Stream(url);

  // Clocks of what is running

  const duration = seconds => {
    if (seconds < 60) return `${Math.max(seconds, 0).toFixed(0)} s`;
    const minutes = Math.floor(seconds / 60);
    return minutes < 60 ? `${minutes} min ${Math.floor(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  };
  const tick = () => all('[data-since]').forEach(one => {
    const text = duration(Date.now() / 1000 - Number(one.dataset.since));
    if (one.textContent !== text) one.textContent = text;
  });
  setInterval(tick, 1000);
  document.addEventListener('htmx:afterSettle', tick);
  tick();

  // Messages

  const tell = (text, tone = 'warn', seconds = 8) => {
    const note = document.createElement('div');
    note.className = `note ${tone}`;
    note.textContent = text;
    byId('notices').append(note);
    setTimeout(() => note.remove(), seconds * 1000);
  };
  document.addEventListener('htmx:responseError', event => {
    const text = event.detail.xhr.responseText || 'The server refused this.';
    tell(text.slice(0, 600), 'bad');
    const panel = event.detail.elt;  // nothing else would bring its newer version
    if (panel.dataset.version && event.detail.xhr.status >= 500) setTimeout(() => htmx.trigger(panel, 'sse:fork'), 3000);
  });
  document.addEventListener('htmx:sendError', () => tell('The server does not answer.', 'bad'));
  document.addEventListener('htmx:sseError', () => {
    const live = byId('live');
    live.textContent = 'Not connected; trying again …';
    live.classList.add('lost');
  });
  document.addEventListener('htmx:sseOpen', () => {
    const live = byId('live');
    live.textContent = '';
    live.classList.remove('lost');
  });

  // Choices survive the replacement of the part they are in

  const chosen = new Set();
  document.addEventListener('change', event => {
    const box = event.target;
    if (box.matches('input.pick')) {
      if (box.checked) chosen.add(box.value); else chosen.delete(box.value);
      showChoice();
    }
    if (box.matches('input.hunk-box')) {
      if (box.checked) {
        all('input.hunk-box').forEach(one => {  // one change of each place
          if (one !== box && one.dataset.spot === box.dataset.spot) one.checked = false;
        });
      }
      keepHunks();
    }
    if (box.dataset.submit) box.form.requestSubmit();
  });

  // Chosen hunks survive a reload, and files that are opened later

  const hunkForm = byId('hunk-form');
  const hunkKey = hunkForm && `hunks ${hunkForm.dataset.keep}`;
  const keptHunks = () => new Set(JSON.parse(sessionStorage.getItem(hunkKey) || '[]'));
  const keepHunks = () => {
    const kept = keptHunks();
    all('input.hunk-box').forEach(one => { if (one.checked) kept.add(one.value); else kept.delete(one.value); });
    sessionStorage.setItem(hunkKey, JSON.stringify([...kept]));
    showHunks(kept);
  };
  const showHunks = kept => {
    const text = byId('hunks');
    if (text && kept.size) text.textContent = kept.size === 1 ? '1 change chosen' : `${kept.size} changes chosen`;
    else if (text) text.textContent = 'Choose hunks with their boxes, or press x.';
  };
  const restoreHunks = root => {
    if (!hunkForm) return;
    const kept = keptHunks();
    all('input.hunk-box', root).forEach(one => { one.checked = kept.has(one.value); });
    showHunks(kept);
  };
  document.addEventListener('htmx:load', event => restoreHunks(event.detail.elt));
  restoreHunks(document);
  document.addEventListener('htmx:configRequest', event => {
    if (!hunkForm || !event.detail.path.endsWith('/do/prepare')) return;
    event.detail.formData.delete('hunk');  // also those of files that are closed
    keptHunks().forEach(value => event.detail.formData.append('hunk', value));
  });

  // What comes of a decision gets the focus

  document.addEventListener('htmx:load', event => {
    const shown = event.detail.elt;
    if (shown.dataset && shown.dataset.focus) {
      shown.focus({ preventScroll: true });
      shown.scrollIntoView({ block: 'nearest' });
    }
  });
  const showChoice = () => {
    all('input.pick').forEach(box => { box.checked = chosen.has(box.value); });
    const names = [...chosen];
    all('[data-needs]').forEach(one => {
      const least = Number(one.dataset.needs);
      one.disabled = one.dataset.exactly ? names.length !== least : names.length < least;
    });
    const shown = byId('chosen');
    if (shown) shown.textContent = names.length ? `Chosen: ${names.join(', ')}` : shown.dataset.hint;
  };
  document.addEventListener('htmx:afterSwap', showChoice);
  showChoice();

  // Keys

  let here = null;
  const isTyping = target => target.closest('input:not([type=checkbox], [type=radio]), textarea, select, dialog');
  const stops = () => {
    const found = all('.stop, table.diff tr').filter(one => one.checkVisibility());
    return found;
  };
  const moveTo = one => {
    if (!one) return;
    if (here) here.classList.remove('here');
    here = one;
    one.classList.add('here');
    if (!one.hasAttribute('tabindex')) one.tabIndex = -1;
    one.focus({ preventScroll: true });
    one.scrollIntoView({ block: 'nearest' });
    const top = one.getBoundingClientRect().top;
    if (top < 130) window.scrollBy(0, top - 140);
  };
  // A panel that is replaced by its newer version keeps the cursor and the focus
  const nameOf = one => one.id || one.dataset.attempt || one.dataset.path
    || (one.querySelector('a[href]') || one).href || '';
  const labelOf = one => one.getAttribute('aria-label') || one.textContent.trim();
  let left = null;
  document.addEventListener('htmx:beforeSwap', () => {
    if (document.activeElement !== document.body) left = document.activeElement;
  });
  document.addEventListener('htmx:afterSwap', () => {
    const wasHere = left === here;
    if (here && !here.isConnected) {
      const name = nameOf(here);
      here = (name && stops().find(one => nameOf(one) === name)) || null;
      if (here) here.classList.add('here');
    }
    if (!left || left.isConnected) return;
    const isControl = left.matches('a, button, summary, input');
    const again = isControl && all(left.localName).find(one => one.checkVisibility() && labelOf(one) === labelOf(left));
    // The focus of a control that is gone goes nowhere: the next key was meant for that control
    const next = wasHere ? here : again;
    if (next && document.activeElement === document.body) next.focus({ preventScroll: true });
    left = null;
  });
  const step = by => {
    const found = stops();
    if (!found.length) return;
    const at = here && here.isConnected ? found.indexOf(here) : -1;
    if (at < 0) {
      const seen = found.findIndex(one => one.getBoundingClientRect().top > 120);
      moveTo(found[Math.max(seen, 0)]);
    } else moveTo(found[Math.min(Math.max(at + by, 0), found.length - 1)]);
  };
  const stepFile = by => {
    const found = all('.file[data-path]');
    if (!found.length) return;
    const current = here && here.isConnected ? here.closest('.file[data-path]') : null;
    let at = current ? found.indexOf(current) : -1;
    if (at < 0 && by < 0) at = found.length;
    const next = found[at + by];
    if (!next) return;
    if (next.matches('details')) next.open = true;
    moveTo(next);
    next.scrollIntoView({ block: 'start' });
    window.scrollBy(0, -120);
  };
  const help = () => { const keys = byId('keys'); if (keys.open) keys.close(); else keys.showModal(); };
  byId('help-button').addEventListener('click', help);
  document.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    const act = {
      j: () => step(1), k: () => step(-1), n: () => stepFile(1), p: () => stepFile(-1), '?': help,
      x: () => {
        const boxes = here ? all('input[type=checkbox]', here) : [];
        const at = boxes.findIndex(box => box.checked);  // each press takes the next version, and then none
        if (at >= 0 && at === boxes.length - 1) boxes[at].click(); else if (boxes.length) boxes[at + 1].click();
      },
      s: () => { const box = document.querySelector('input[name=view]'); if (box) box.click(); },
      c: () => comment(here),
      Enter: () => {
        const link = here && event.target === here && here.querySelector('a[href]');
        if (!link) return false;
        link.click();
      },
    }[event.key];
    if (act && act() !== false) event.preventDefault();
  });

  // Comments: on the line with the cursor, or whose number is clicked

  const comment = (row, cell) => {
    const form = byId('comment-form');
    if (!form) return;
    const file = row && row.closest('.file[data-path]');
    const numbers = row && row.matches('table.diff tr') ? all('td.n', row) : [];
    if (file && numbers.length) {
      const isOld = cell ? cell === numbers[0] && cell.textContent : !numbers[1].textContent;
      const line = numbers[isOld ? 0 : 1].textContent || numbers[0].textContent;
      form.elements.path.value = file.dataset.path;
      form.elements.line.value = line;
      form.elements.side.value = isOld ? 'old' : 'new';
      byId('comment-about').textContent = `Comment on ${file.dataset.path}, line ${line}`;
      row.closest('table').after(form);
    }
    form.elements.text.focus();
  };
  document.addEventListener('click', event => {
    const cell = event.target.closest('table.diff td.n');
    if (cell && cell.textContent) { moveTo(cell.closest('tr')); comment(cell.closest('tr'), cell); }
  });
  document.addEventListener('reset', event => {
    if (event.target.id !== 'comment-form') return;
    all('input[name=path], input[name=line], input[name=side]', event.target).forEach(one => { one.value = ''; });
    byId('comment-about').textContent = 'Comment';
    if (here && here.isConnected) moveTo(here);
  });
  document.addEventListener('htmx:afterSwap', event => {  // the form may be inside a diff: only one stays
    const forms = all('#comment-form');
    if (event.detail.target.id === 'comments') forms.filter(one => !one.closest('#comments')).forEach(one => one.remove());
  });
  document.addEventListener('htmx:beforeSwap', event => {  // a comment that is being written is not replaced
    const form = byId('comment-form');
    const own = event.detail.requestConfig && event.detail.requestConfig.verb === 'post';
    if (event.detail.target.id === 'comments' && !own && form && form.elements.text.value) event.detail.shouldSwap = false;
  });

  // Rows are asked for before they come into sight

  const near = new IntersectionObserver(entries => entries.forEach(entry => {
    if (!entry.isIntersecting) return;
    near.unobserve(entry.target);
    htmx.trigger(entry.target, 'near');
  }), { rootMargin: '1800px' });
  const lookOut = root => {
    const found = all('.more[hx-trigger="near once"]', root);
    if (root.matches && root.matches('.more[hx-trigger="near once"]')) found.push(root);
    found.forEach(one => near.observe(one));
  };
  lookOut(document.body);
  document.addEventListener('htmx:load', event => lookOut(event.detail.elt));

  // What is new since the last look

  const lookKey = `looked ${location.pathname}`;
  const looked = Number(localStorage.getItem(lookKey) || 0);
  const markNew = () => all('[data-at]').forEach(one => {
    one.classList.toggle('new-since', looked > 0 && Number(one.dataset.at) > looked);
  });
  markNew();
  document.addEventListener('htmx:afterSwap', markNew);
  const noteLook = () => localStorage.setItem(lookKey, String(Date.now() / 1000));
  window.addEventListener('pagehide', noteLook);

  // Output: parts are loaded when they come near, and dropped when they are far away

  const output = byId('output');
  if (output) {
    const size = Number(output.dataset.step);
    let total = Number(output.dataset.size);
    const guess = 900;
    const near = new Set();
    const clear = part => {
      if (part.firstChild) part.style.height = `${part.offsetHeight}px`;
      part.replaceChildren();
      part.dataset.state = '';
    };
    const load = async part => {
      if (part.dataset.state) return;
      part.dataset.state = 'loading';
      const answer = await fetch(`${output.dataset.part}&start=${part.dataset.start}`).catch(() => null);
      if (!answer || !answer.ok) { part.dataset.state = ''; return; }  // asked for again when it comes near again
      total = Math.max(total, Number(answer.headers.get('x-output-size')));
      const text = await answer.text();
      if (!near.has(part)) { clear(part); return; }  // the user scrolled on while it was loading
      const atEnd = output.scrollTop + output.clientHeight >= output.scrollHeight - 40;
      part.innerHTML = text;  // made by the server, which escapes what attempts print
      part.style.height = '';
      part.dataset.state = 'loaded';
      if (atEnd) output.scrollTop = output.scrollHeight;
    };
    const watch = new IntersectionObserver(entries => entries.forEach(entry => {
      const part = entry.target;
      if (entry.isIntersecting) { near.add(part); load(part); return; }
      near.delete(part);
      if (part.dataset.state === 'loaded') clear(part);
    }), { root: output, rootMargin: '1500px' });
    const extend = () => {
      for (let start = output.childElementCount * size; start < Math.max(total, 1); start += size) {
        const part = document.createElement('div');
        part.className = 'part';
        part.dataset.start = start;
        part.style.height = `${guess}px`;
        output.append(part);
        watch.observe(part);
      }
    };
    extend();
    output.scrollTop = output.scrollHeight;
    if (output.dataset.live) {
      const follow = async () => {
        const last = output.lastElementChild;
        if (last && last.dataset.state === 'loaded') { last.dataset.state = ''; await load(last); }
        extend();
      };
      let busy = false;
      document.body.addEventListener('sse:progress', async () => {
        if (busy) return;
        busy = true;
        await follow();
        busy = false;
      });
    }
  }
})();
