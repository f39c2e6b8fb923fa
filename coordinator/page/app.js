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
    const full = error.name === 'QuotaExceededError';
    notice(`Not kept for later: ${full ? 'the browser\u2019s storage is full. Delete older chats.' : error.message}`);
  }
}

// A chat: {id, title, messages: [{role, content, reasoning}]}.
function storedChats() {
  const stored = read('ringfleet.chats', []);
  return (Array.isArray(stored) ? stored : []).filter((one) => Array.isArray(one?.messages)).map((one) => ({
    id: String(one.id), title: String(one.title),
    messages: one.messages.map(({role, content, reasoning}) => ({
      role: role === 'user' ? role : 'assistant', content: content ?? '', reasoning: reasoning ?? ''}))
      .filter(({content, reasoning}) => content || reasoning)}));
}

let settings = read('ringfleet.settings', {});
let chats = storedChats();
let chat = null;
let answer = null;  // The controller of the running answer.

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

async function copyCode(button, code) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(code.textContent);
    } else {  // Pages over plain HTTP have no clipboard.
      getSelection().selectAllChildren(code);
      if (!document.execCommand('copy')) throw new Error('refused');
    }
    button.textContent = 'Copied';
  } catch {
    button.textContent = 'Not allowed';
  }
  setTimeout(() => { button.textContent = 'Copy'; }, 1500);
}

function codeBlock(language, text) {
  const code = element('code', {}, text);
  const copy = element('button', {type: 'button', onclick: () => copyCode(copy, code)}, 'Copy');
  return element('div', {class: 'code'},
    element('div', {}, element('span', {}, language || 'text'), copy),
    element('pre', {tabindex: '0', role: 'region', 'aria-label': 'Code'}, code));
}

// Returns {language, text} of each block: code between fences, paragraphs
// without a language elsewhere. A fence that is still open is code.
function blocksOf(content) {
  const out = [];
  const lines = content.split(/\r?\n/);
  let paragraph = [];
  const flush = () => {
    const text = paragraph.join('\n').trimEnd();
    if (text) out.push({text});
    paragraph = [];
  };
  for (let i = 0; i < lines.length; ++i) {
    const fence = lines[i].match(/^(\s*)(`{3,}(?=[^`]*$)|~{3,})\s*(\S*)/);
    if (fence) {
      flush();
      const [, indent, marks, language] = fence;
      const code = [];
      while (++i < lines.length && !(/^\s*(`+|~+)\s*$/.test(lines[i]) && lines[i].trim().startsWith(marks))) {
        code.push(lines[i].startsWith(indent) ? lines[i].slice(indent.length) : lines[i]);
      }
      out.push({language, text: code.join('\n')});
    } else if (lines[i].trim() === '') {
      flush();
    } else {
      paragraph.push(lines[i]);
    }
  }
  flush();
  return out;
}

// Shows blocks in `box`. Elements whose block is as before stay as they are,
// and code that grows keeps its element: its button may have the focus.
function showBlocks(box, blocks) {
  const shown = box.blocks ?? [];
  blocks.forEach(({language, text}, i) => {
    const before = shown[i];
    if (before && before.language === language && before.text === text) return;
    const place = box.children[i];
    if (before && language !== undefined && before.language === language) {
      place.querySelector('code').textContent = text;
      return;
    }
    const made = language === undefined ? element('p', {dir: 'auto'}, ...inline(text)) : codeBlock(language, text);
    if (place) place.replaceWith(made); else box.append(made);
  });
  while (box.children.length > blocks.length) box.lastChild.remove();
  box.blocks = blocks;
}

function messageElement(message) {
  const box = element('article', {class: `message ${message.role}`},
    element('p', {class: 'who'}, message.role === 'user' ? 'You' : 'Answer'), element('div', {class: 'text'}));
  fillMessage(box, message);
  return box;
}

function fillMessage(box, message) {
  const text = box.querySelector('.text');
  if (message.reasoning) {
    let details = box.querySelector('details');
    if (!details) {
      details = element('details', {}, element('summary', {}, 'Reasoning'), element('div', {dir: 'auto'}));
      text.before(details);
    }
    details.lastChild.textContent = message.reasoning;
  }
  showBlocks(text, message.role === 'user' ? [{text: message.content}] : blocksOf(message.content));
}

// ---- Chats.

function notice(text) {
  $('notice').textContent = text;
}

function keepChats() {
  keep('ringfleet.chats', chats);
}

function saveChats() {
  chats = [chat, ...chats.filter((other) => other !== chat)].slice(0, 100);
  keepChats();
  listChats();
}

function deleteChat(gone) {
  if (!confirm(`Delete the chat "${gone.title}"?`)) return;
  chats = chats.filter((other) => other !== gone);
  if (gone === chat) openChat(null); else listChats();
  keepChats();
}

function listChats() {
  const list = $('chat-list');
  const focus = [...list.querySelectorAll('button')].indexOf(document.activeElement);
  list.replaceChildren(...chats.map((other) => element('li', {},
    element('button', {type: 'button', dir: 'auto', 'aria-current': String(other === chat), onclick: () => {
      openChat(other);
      if (!wide.matches && !$('chats').hidden) toggle('chats');
    }}, other.title),
    element('button', {type: 'button', 'aria-label': `Delete ${other.title}`, onclick: () => deleteChat(other)}, '✕'))));
  const buttons = list.querySelectorAll('button');
  if (focus >= 0) (buttons[Math.min(focus, buttons.length - 1)] ?? $('new-chat')).focus();
}

function openChat(next) {
  answer?.abort();
  answer = null;
  chat = next ?? {id: crypto.randomUUID?.() ?? String(Date.now()), title: 'New chat', messages: []};
  try {
    sessionStorage.setItem('ringfleet.chat', chat.id);
  } catch {
    // The chat will not be open after a reload.
  }
  $('messages').replaceChildren(...chat.messages.map(messageElement));
  $('messages').scrollTop = $('messages').scrollHeight;
  progress('');
  notice('');
  update();
  listChats();
}

function progress(text) {
  if ($('progress').textContent !== text) $('progress').textContent = text;
}

function update() {
  const focus = document.activeElement;
  $('send').hidden = answer !== null;
  $('stop').hidden = answer === null;
  $('regenerate').disabled = answer !== null || !chat.messages.some((message) => message.role === 'user');
  // A screen reader waits for the whole answer.
  $('messages').setAttribute('aria-busy', String(answer !== null));
  if (answer && (focus === $('send') || focus === $('regenerate'))) $('stop').focus();
  if (!answer && focus === $('stop')) $('send').focus();
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
    wantsKey = true;
    openSettings();
    return keyNotice;
  }
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}

// Adds an answer to the chat. `replaced`, messages that the answer stands for,
// come back if there is none.
async function generate(replaced = []) {
  const controller = new AbortController();
  const mine = chat;
  const log = $('messages');
  const body = JSON.stringify(requestBody());
  const message = {role: 'assistant', content: '', reasoning: ''};
  const box = messageElement(message);
  mine.messages.push(message);
  log.append(box);
  log.scrollTop = log.scrollHeight;
  answer = controller;
  notice('');
  progress('Waiting for the first token…');
  update();
  let failure = '';
  let figures = '';
  let end = '';
  let usage = null;
  let first = 0;
  let drawn = 0;
  const draw = () => {
    drawn = 0;
    const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    fillMessage(box, message);
    if (follows) log.scrollTop = log.scrollHeight;
  };
  try {
    const response = await fetch('/v1/chat/completions', {method: 'POST', headers: headers(), body, signal: controller.signal});
    if (!response.ok) throw new Error(await errorOf(response));
    let done = false;
    await readEvents(response.body, (data) => {
      done ||= data === '[DONE]';
      if (done) return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      usage = event.usage ?? usage;
      const {delta = {}, finish_reason: reason} = event.choices?.[0] ?? {};
      end = reason ?? end;
      if (!delta.content && !delta.reasoning_content) return;
      first ||= performance.now();
      message.content += delta.content ?? '';
      message.reasoning += delta.reasoning_content ?? '';
      if (answer === controller) progress(message.content ? 'Answering…' : 'Reasoning…');
      drawn ||= requestAnimationFrame(draw);
    });
    if (!done) throw new Error('The answer broke off.');
    const seconds = (performance.now() - first) / 1000;
    if (usage) {
      const cached = usage.prompt_tokens_details?.cached_tokens;
      figures = `${usage.prompt_tokens} + ${usage.completion_tokens} tokens` + (cached ? ` (${cached} cached)` : '') +
        (first && usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / seconds).toFixed(1)} tokens/s` : '') +
        (end === 'length' ? ', ended at its limit' : '');
    }
  } catch (error) {
    if (controller.signal.aborted) figures = 'Stopped';
    else if (error.name === 'TypeError') failure = `The connection failed: ${error.message}.`;
    else failure = error.message;
  }
  controller.abort();  // Ends a stream that was not read to its end.
  cancelAnimationFrame(drawn);
  draw();
  if (!message.content && !message.reasoning) {
    box.remove();
    mine.messages.splice(mine.messages.indexOf(message), 1, ...replaced);
    if (mine === chat) log.append(...replaced.map(messageElement));
  }
  if (answer === controller) {
    answer = null;
    progress(figures);
    notice(failure);
    update();
    saveChats();
  } else {
    keepChats();
  }
}

function send() {
  const text = $('prompt').value.trim();
  if (!text || answer) return;
  $('prompt').value = '';
  const message = {role: 'user', content: text};
  if (chat.messages.length === 0) chat.title = [...text.split('\n')[0]].slice(0, 60).join('');
  chat.messages.push(message);
  $('messages').append(messageElement(message));
  generate();
  saveChats();
}

// ---- Settings.

const fields = {key: 'key', system: 'system', temperature: 'temperature', topP: 'top-p', maxTokens: 'max-tokens', thinking: 'thinking'};

const keyNotice = 'This server wants an API key: enter it in the settings.';
let wantsKey = false;  // The last request was refused.

function openSettings() {
  if ($('settings').open) return;
  for (const [name, id] of Object.entries(fields)) $(id).value = settings[name] ?? '';
  $('settings').returnValue = '';
  $('settings').showModal();
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

// Replaces the children of `parent` if `values` differ from those it shows.
function show(parent, values, make) {
  const text = JSON.stringify(values);
  if (parent.shown === text) return;
  parent.shown = text;
  parent.replaceChildren(...values.flatMap(make));
}

function showFleet(fleet, before) {
  const model = fleet.model.split('/').pop();
  $('model').textContent = model;
  document.title = `${model} – ringfleet`;
  $('fleet-state').textContent = `The fleet is ${fleet.state}` + (fleet.waits_for ? `: ${fleet.waits_for}` : '');
  const seconds = before ? fleet.time - before.time : 0;
  const rate = (name) => seconds > 0 ? Math.max(0, (fleet[name] - before[name]) / seconds).toFixed(1) : '–';
  show($('fleet-figures'), [
    ['Tokens/s', rate('generation_tokens')],
    ['Prompt tokens/s', rate('prompt_tokens')],
    ['Running', fleet.running],
    ['Waiting', fleet.waiting],
    ['Cache in use', `${fleet.cache_blocks_used} of ${fleet.cache_blocks} blocks`],
    ['Kept for reuse', `${fleet.cache_blocks_kept} blocks`],
    ['Prefix hits', fleet.prefix_queries ? `${(100 * fleet.prefix_hits / fleet.prefix_queries).toFixed(0)} %` : '–'],
    ['Preemptions', fleet.preemptions],
    ['Expert imbalance', fleet.imbalance ? fleet.imbalance.toFixed(2) : '–'],
  ], ([name, value]) => [element('dt', {}, name), element('dd', {}, String(value))]);
  show($('fleet-workers'),
    fleet.workers.map((worker) => [worker.rank, worker.host, worker.state, bytes(worker.memory_bytes)]),
    (cells) => element('tr', {}, ...cells.map((cell) => element('td', {}, String(cell)))));
}

let wake = () => {};  // Ends the pause of watchFleet.

async function watchFleet() {
  let before = null;
  for (;;) {
    let refused = false;
    if (document.visibilityState === 'visible') {
      try {
        const response = await fetch('/fleet', {headers: headers(), signal: AbortSignal.timeout(10000)});
        refused = response.status === 401;
        if (!response.ok) throw new Error(refused ? keyNotice : `The server answered ${response.status}.`);
        const fleet = await response.json();
        showFleet(fleet, before);
        before = fleet;
      } catch (error) {
        before = null;
        $('fleet-state').textContent = error.name === 'Error' ? error.message : 'The server cannot be reached.';
        if (refused) notice(keyNotice);
      }
    }
    const pause = before && !$('fleet').hidden ? 1000 : 5000;
    await new Promise((resolve) => {
      wake = resolve;
      // A refused key stays refused until the settings change.
      if (!refused) setTimeout(resolve, pause);
    });
  }
}

// ---- Events.

const wide = matchMedia('(min-width: 60rem)');
const touch = matchMedia('(pointer: coarse)');

// Shows or hides a panel. A narrow window has room for one.
function toggle(name) {
  const shows = $(name).hidden;
  if (shows && !wide.matches) {
    for (const other of ['chats', 'fleet']) if (!$(other).hidden) toggle(other);
  }
  $(name).hidden = !shows;
  $(`show-${name}`).setAttribute('aria-expanded', String(shows));
  wake();
}

$('form').addEventListener('submit', (event) => {
  event.preventDefault();
  send();
});
$('prompt').addEventListener('keydown', (event) => {
  // A phone has no Shift+Enter. Safari ends a composition with key code 229.
  if (event.key === 'Enter' && !event.shiftKey && !touch.matches && !event.isComposing && event.keyCode !== 229) {
    event.preventDefault();
    send();
  }
});
$('stop').addEventListener('click', () => {
  answer?.abort();
});
document.addEventListener('keydown', (event) => {
  if (event.key === 'Escape' && !event.isComposing && !$('settings').open) answer?.abort();
});
$('regenerate').addEventListener('click', () => {
  const replaced = [];
  while (chat.messages.at(-1)?.role === 'assistant') {
    replaced.unshift(chat.messages.pop());
    $('messages').lastChild.remove();
  }
  generate(replaced);
});
$('new-chat').addEventListener('click', () => {
  openChat(null);
  if (!wide.matches) toggle('chats');
  $('prompt').focus();
});
$('show-chats').addEventListener('click', () => toggle('chats'));
$('show-fleet').addEventListener('click', () => toggle('fleet'));
$('show-settings').addEventListener('click', openSettings);
$('settings-cancel').addEventListener('click', () => $('settings').close('cancel'));
$('settings').addEventListener('close', () => {
  if ($('settings').returnValue !== 'save') return;
  for (const [name, id] of Object.entries(fields)) settings[name] = $(id).value.trim();
  notice('');
  keep('ringfleet.settings', settings);
  wake();
  if (wantsKey && !answer && chat.messages.at(-1)?.role === 'user') generate();
  wantsKey = false;
});
// Another tab kept something.
addEventListener('storage', (event) => {
  if (event.key === 'ringfleet.settings') settings = read('ringfleet.settings', {});
  if (event.key === 'ringfleet.chats') {
    chats = storedChats().map((other) => other.id === chat.id ? chat : other);
    listChats();
  }
});
addEventListener('pagehide', () => {
  if (answer) keepChats();
});
document.addEventListener('visibilitychange', () => {
  if (document.visibilityState === 'visible') wake();
});

if (touch.matches) $('prompt').placeholder = 'Message';
if (wide.matches) {
  toggle('chats');
  toggle('fleet');
}
let last = null;
try {
  last = sessionStorage.getItem('ringfleet.chat');
} catch {
  // Begins a new chat.
}
openChat(chats.find((other) => other.id === last));
watchFleet();
