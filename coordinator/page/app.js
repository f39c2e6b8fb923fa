// SPDX-License-Identifier: Apache-2.0
// A chat over /v1/chat/completions, and the fleet by /fleet. All text reaches
// the document as text nodes, so nothing that a model writes becomes markup.
const $ = (id) => document.getElementById(id);

// ---- What the browser keeps.

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function keep(name, value) {
  try {
    localStorage.setItem(name, JSON.stringify(value));
  } catch (error) {
    notice(`This browser keeps no more chats: ${error.message}`);
  }
}

let settings = read('ringfleet.settings', {});
// A chat: {id, title, messages: [{role, content, reasoning}]}.
let chats = read('ringfleet.chats', []);
let chat = null;
let answer = null;  // The running answer: {controller, message}.

// ---- Text to elements.

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === 'class') made.className = value;
    else if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function inline(text) {
  return text.split(/(`[^`\n]+`)/).map((part) =>
    part.length > 2 && part.startsWith('`') && part.endsWith('`')
      ? element('code', {}, part.slice(1, -1)) : part);
}

function codeBlock(language, code) {
  const copy = element('button', {type: 'button', onclick: async () => {
    try {
      await navigator.clipboard.writeText(code);
      copy.textContent = 'Copied';
    } catch {
      copy.textContent = 'Not allowed';
    }
    setTimeout(() => { copy.textContent = 'Copy'; }, 1500);
  }}, 'Copy');
  return element('div', {class: 'code'},
    element('div', {}, element('span', {}, language || 'text'), copy),
    element('pre', {tabindex: '0'}, element('code', {}, code)));
}

// Code between fences, paragraphs elsewhere. A fence that is still open is code.
function rendered(text) {
  const out = [];
  const lines = text.split('\n');
  let paragraph = [];
  const flush = () => {
    const whole = paragraph.join('\n').trim();
    if (whole) out.push(element('p', {}, ...inline(whole)));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; ++i) {
    const fence = lines[i].match(/^\s*(`{3,}|~{3,})\s*([^\s`]*)/);
    if (fence) {
      flush();
      const code = [];
      while (++i < lines.length && !lines[i].trim().startsWith(fence[1])) code.push(lines[i]);
      out.push(codeBlock(fence[2], code.join('\n')));
    } else if (lines[i].trim() === '') {
      flush();
    } else {
      paragraph.push(lines[i]);
    }
  }
  flush();
  return out;
}

function messageElement(message) {
  const name = message.role === 'user' ? 'You' : 'Answer';
  const box = element('article', {class: `message ${message.role}`}, element('p', {class: 'who'}, name));
  fillMessage(box, message);
  return box;
}

function fillMessage(box, message) {
  let details = box.querySelector('details');
  if (message.reasoning) {
    if (!details) {
      details = element('details', {}, element('summary', {}, 'Reasoning'), element('div'));
      box.append(details);
    }
    details.lastChild.textContent = message.reasoning;
  }
  let text = box.querySelector('.text');
  if (!text) {
    text = element('div', {class: 'text'});
    box.append(text);
  }
  text.replaceChildren(...(message.role === 'user'
    ? [element('p', {}, message.content)] : rendered(message.content)));
}

// ---- Chats.

function notice(text) {
  $('notice').textContent = text;
}

function saveChats() {
  chats = [chat, ...chats.filter((other) => other !== chat)].filter((other) => other.messages.length > 0).slice(0, 100);
  keep('ringfleet.chats', chats);
  listChats();
}

function listChats() {
  $('chat-list').replaceChildren(...chats.map((other) => element('li', {},
    element('button', {type: 'button', 'aria-current': String(other === chat), onclick: () => openChat(other)}, other.title),
    element('button', {type: 'button', 'aria-label': `Delete ${other.title}`, onclick: () => {
      chats = chats.filter((kept) => kept !== other);
      keep('ringfleet.chats', chats);
      if (other === chat) openChat(null); else listChats();
    }}, '✕'))));
}

function openChat(next) {
  answer?.controller.abort();
  chat = next ?? {id: crypto.randomUUID?.() ?? String(Date.now()), title: 'New chat', messages: []};
  $('messages').replaceChildren(...chat.messages.map(messageElement));
  $('messages').scrollTop = $('messages').scrollHeight;
  $('speed').textContent = '';
  notice('');
  update();
  listChats();
}

function update() {
  $('send').hidden = answer !== null;
  $('stop').hidden = answer === null;
  $('regenerate').disabled = answer !== null || !chat.messages.some((message) => message.role === 'user');
}

// ---- Answers.

function headers() {
  const out = {'Content-Type': 'application/json'};
  if (settings.key) out.Authorization = `Bearer ${settings.key}`;
  return out;
}

function requestBody() {
  const messages = chat.messages.map(({role, content}) => ({role, content}));
  if (settings.system) messages.unshift({role: 'system', content: settings.system});
  const body = {messages, stream: true, stream_options: {include_usage: true}};
  if (settings.temperature) body.temperature = Number(settings.temperature);
  if (settings.topP) body.top_p = Number(settings.topP);
  if (settings.maxTokens) body.max_tokens = Number(settings.maxTokens);
  if (settings.thinking) {
    const on = settings.thinking === 'on';
    body.chat_template_kwargs = {thinking: on, enable_thinking: on};
  }
  return body;
}

// Calls `take` with the data of each event.
async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('data: ')) take(line.slice(6));
    }
  }
}

async function errorOf(response) {
  if (response.status === 401) {
    openSettings();
    return 'The server wants an API key: enter it in the settings.';
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

async function generate() {
  const message = {role: 'assistant', content: '', reasoning: ''};
  const controller = new AbortController();
  const mine = chat;
  const running = {controller, message};
  answer = running;
  notice('');
  update();
  const box = messageElement(message);
  $('messages').append(box);
  const log = $('messages');
  let dirty = false;
  let usage = null;
  let first = 0;
  const draw = () => {
    dirty = false;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    fillMessage(box, message);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  try {
    const response = await fetch('/v1/chat/completions', {
      method: 'POST', headers: headers(), body: JSON.stringify(requestBody()), signal: controller.signal});
    if (!response.ok) throw new Error(await errorOf(response));
    await readEvents(response.body, (data) => {
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const delta = event.choices?.[0]?.delta ?? {};
      if (!delta.content && !delta.reasoning_content) return;
      first ||= performance.now();
      message.content += delta.content ?? '';
      message.reasoning += delta.reasoning_content ?? '';
      if (!dirty) {
        dirty = true;
        requestAnimationFrame(draw);
      }
    });
    const seconds = (performance.now() - first) / 1000;
    if (first && usage && mine === chat) {
      const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
      const rate = usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : '';
      $('speed').textContent = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens` +
        (cached ? ` (${cached} cached)` : '') + rate;
    }
  } catch (error) {
    if (error.name !== 'AbortError' && mine === chat) notice(error.message);
  }
  draw();
  if (message.content || message.reasoning) mine.messages.push(message); else box.remove();
  if (answer === running) answer = null;
  if (mine === chat) {
    saveChats();
    update();
  } else {
    keep('ringfleet.chats', chats);
  }
}

function send() {
  const text = $('prompt').value.trim();
  if (!text || answer) return;
  $('prompt').value = '';
  const message = {role: 'user', content: text};
  if (chat.messages.length === 0) chat.title = text.split('\n')[0].slice(0, 60);
  chat.messages.push(message);
  $('messages').append(messageElement(message));
  $('messages').scrollTop = $('messages').scrollHeight;
  saveChats();
  generate();
}

// ---- Settings.

const fields = {key: 'key', system: 'system', temperature: 'temperature', topP: 'top-p', maxTokens: 'max-tokens', thinking: 'thinking'};

function openSettings() {
  for (const [name, id] of Object.entries(fields)) $(id).value = settings[name] ?? '';
  if (!$('settings').open) $('settings').showModal();
}

// ---- The fleet.

const bytes = (count) => {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) {
    count /= 1024;
    ++unit;
  }
  return `${count.toFixed(count < 10 && unit > 0 ? 1 : 0)} ${units[unit]}`;
};

function showFleet(fleet, before) {
  $('model').textContent = fleet.model;
  $('fleet-state').textContent = fleet.state + (fleet.waits_for ? `: ${fleet.waits_for}` : '');
  const seconds = before ? (fleet.time - before.time) : 0;
  const rate = (name) => seconds > 0 ? ((fleet[name] - before[name]) / seconds).toFixed(1) : '–';
  const figures = [
    ['Tokens per second', rate('generation_tokens')],
    ['Prompt tokens per second', rate('prompt_tokens')],
    ['Running', fleet.running],
    ['Waiting', fleet.waiting],
    ['Cache in use', `${fleet.cache_blocks_used} of ${fleet.cache_blocks} blocks`],
    ['Kept for reuse', `${fleet.cache_blocks_kept} blocks`],
    ['Prefix hits', fleet.prefix_queries ? `${(100 * fleet.prefix_hits / fleet.prefix_queries).toFixed(0)} %` : '–'],
    ['Preemptions', fleet.preemptions],
    ['Imbalance of experts', fleet.imbalance ? fleet.imbalance.toFixed(2) : '–'],
  ];
  $('fleet-figures').replaceChildren(...figures.flatMap(([name, value]) =>
    [element('dt', {}, name), element('dd', {}, String(value))]));
  $('fleet-workers').replaceChildren(...fleet.workers.map((worker) => element('tr', {},
    element('td', {}, String(worker.rank)), element('td', {}, worker.host), element('td', {}, worker.state),
    element('td', {}, bytes(worker.memory_bytes)))));
}

async function watchFleet() {
  let before = null;
  for (;;) {
    if (document.visibilityState === 'visible') {
      try {
        const response = await fetch('/fleet', {headers: headers()});
        if (!response.ok) throw new Error(response.status === 401 ? 'wants an API key' : `answered ${response.status}`);
        const fleet = await response.json();
        showFleet(fleet, before);
        before = fleet;
      } catch (error) {
        before = null;
        $('fleet-state').textContent = `The server cannot be reached or ${error.message}.`;
      }
    }
    await new Promise((resolve) => setTimeout(resolve, $('fleet').hidden ? 5000 : 1000));
  }
}

// ---- Events.

function toggle(button, panel) {
  const shows = panel.hidden;
  panel.hidden = !shows;
  button.setAttribute('aria-expanded', String(shows));
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
$('prompt').addEventListener('keydown', (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
$('stop').addEventListener('click', () => {
  answer?.controller.abort();
  $('prompt').focus();
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !$('settings').open) answer?.controller.abort();
});
$('regenerate').addEventListener('click', () => {
  while (chat.messages.at(-1)?.role === 'assistant') {
    chat.messages.pop();
    $('messages').lastChild.remove();
  }
  generate();
});
$('new-chat').addEventListener('click', () => {
  openChat(null);
  $('prompt').focus();
});
$('show-chats').addEventListener('click', () => toggle($('show-chats'), $('chats')));
$('show-fleet').addEventListener('click', () => toggle($('show-fleet'), $('fleet')));
$('show-settings').addEventListener('click', openSettings);
$('settings-cancel').addEventListener('click', () => $('settings').close('cancel'));
$('settings').addEventListener('close', () => {
  if ($('settings').returnValue !== 'save') return;
  for (const [name, id] of Object.entries(fields)) settings[name] = $(id).value.trim();
  keep('ringfleet.settings', settings);
  notice('');
});

if (matchMedia('(min-width: 60rem)').matches) {
  toggle($('show-chats'), $('chats'));
  toggle($('show-fleet'), $('fleet'));
}
openChat(null);
watchFleet();
