# SPDX-License-Identifier: Apache-2.0
"""The page at `/` in headless Chromium. Ends with 77 where there is none.

With a folder as third argument it writes pictures of the page there.
"""
import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

WAIT_S = 60
KEY = "a-key-of-the-page-test"
CODE = "def add(a, b):\n    return a + b  # <b>not bold</b>"
LONG_WORD = "Donaudampfschifffahrt" * 12
CHAT = {"id": "stored", "title": f"<img src=x onerror='hacked=1'> {LONG_WORD}", "messages": [
    {"role": "user", "content": f"Add two numbers in Python. {LONG_WORD}"},
    {"role": "assistant", "reasoning": f"A function with two parameters. {LONG_WORD}",
     "content": "A function `add`:\n\n```python\n" + CODE + "\n```\n\n"
                "<img src=x onerror='hacked=1'><script>hacked=1</script> javascript:hacked=1\n\n"
                "```` js\n```\nnot the end\n````\n\n```inline``` is no fence.\n\n~~~\n" + LONG_WORD + "\nopen"}]}

# Returns [contrast, text, colours] of each element with text of its own that is seen.
CONTRASTS = """
const numbers = (colour) => {
  const found = colour.match(/^rgba?\\(([^)]*)\\)$/);
  if (!found) throw new Error(`no rgb: ${colour}`);
  const [r, g, b, a = 1] = found[1].split(',').map(Number);
  return [r, g, b, a];
};
const over = ([r, g, b, a], back) => [r, g, b].map((one, i) => one * a + back[i] * (1 - a));
const backOf = (element) => {
  if (!element) return [255, 255, 255];
  const own = numbers(getComputedStyle(element).backgroundColor);
  return own[3] === 1 ? own.slice(0, 3) : over(own, backOf(element.parentElement));
};
const luminance = (colour) => {
  const [r, g, b] = colour.map((one) => one / 255).map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const out = [];
for (const element of document.body.querySelectorAll('*')) {
  if (!element.checkVisibility({visibilityProperty: true, opacityProperty: true})) continue;
  const own = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join('');
  const text = own || element.value || element.placeholder;
  if (!text) continue;
  const back = backOf(element);
  const style = own || element.value ? getComputedStyle(element) : getComputedStyle(element, '::placeholder');
  const front = over(numbers(style.color), back);
  const [low, high] = [luminance(front), luminance(back)].sort((a, b) => a - b);
  out.push([(high + 0.05) / (low + 0.05), text.slice(0, 40), `${style.color} on ${back}`]);
}
return out;
"""

# Returns what reaches beyond the window and lies in nothing that scrolls by itself.
TOO_WIDE = """
const width = document.documentElement.clientWidth;
const out = [...document.body.querySelectorAll('*')].filter((element) =>
  element.checkVisibility() && !element.closest('pre, .wide, .hidden, .skip') && element.getBoundingClientRect().right > width + 0.5)
  .map((element) => element.outerHTML.slice(0, 80));
for (const element of [document.scrollingElement, ...document.querySelectorAll('#columns, #messages, #chats, #fleet, #settings')]) {
  if (element.scrollWidth > element.clientWidth) out.push(`${element.id || element.tagName} scrolls`);
}
return out;
"""

# Presses Stop once the answer has text. Returns the tokens that the fleet
# generated between the next look at it and its last running sequence's end.
STOP = """
const done = arguments[arguments.length - 1];
const fleet = async () => (await fetch('/fleet')).json();
const look = async () => {
  document.getElementById('stop').click();
  const first = await fleet();
  for (let last = first;; last = await fleet()) {
    if (last.running === 0) return done(last.generation_tokens - first.generation_tokens);
  }
};
const observer = new MutationObserver(() => {
  if (!document.querySelector('.assistant:last-child .text')?.textContent) return;
  observer.disconnect();
  look();
});
observer.observe(document.getElementById('messages'), {subtree: true, childList: true, characterData: true});
document.getElementById('send').click();
"""

FOCUSED = """
const {activeElement: element} = document;
return element.id || element.getAttribute('aria-label') || element.className || element.tagName;
"""


class Page:
    """The page in a browser of its own."""

    def __init__(self, url, pictures):
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for argument in ("headless=new", "disable-dev-shm-usage", "window-size=1280,800", "lang=en"):
            options.add_argument(f"--{argument}")
        if os.geteuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        self.driver.set_script_timeout(WAIT_S)
        self.url = url
        self.pictures = pictures

    def open(self):
        self.driver.get(self.url)

    def js(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.js("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def wait(self, what, condition):
        try:
            return WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda _: condition())
        except Exception as error:
            state = {one: self.text(f"#{one}") for one in ("notice", "progress", "fleet-state", "messages")}
            raise AssertionError(f"want {what}; the page shows {state}") from error

    def press(self, *keys):
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def focused(self):
        return self.js(FOCUSED)

    def ended(self):
        self.wait("an answer's end", lambda: self.one("#send").is_displayed())

    def ready(self):
        return self.text("#fleet-state") == "The fleet is ready"

    def set(self, **fields):
        self.one("#show-settings").click()
        for name, value in fields.items():
            field = self.one(f"#{name.replace('_', '-')}")
            field.clear()
            field.send_keys(value)
        self.one("#settings button[value=save]").click()
        assert not self.one("#settings").is_displayed()

    def ask(self, text):
        self.one("#prompt").send_keys(text, Keys.ENTER)

    def scheme(self, name):
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": name}]})

    def size(self, width, height, phone=False):
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone})
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})

    def picture(self, name):
        if self.pictures:
            self.driver.save_screenshot(str(self.pictures / f"page_{name}.png"))

    def check_contrast(self):
        found = self.js(CONTRASTS)
        assert len(found) > 10, found
        low = [one for one in found if one[0] < 4.5]
        assert not low, low

    def complaints(self):
        return [entry["message"] for entry in self.driver.get_log("browser")]


def keyboard(page):
    """Tab reaches everything in the order of reading, and the link skips to the message."""
    page.open()
    page.wait("a ready fleet", page.ready)
    order = []
    for _ in range(9):
        page.press(Keys.TAB)
        order.append(page.focused())
    assert order == ["skip", "show-chats", "show-settings", "show-fleet", "new-chat", "messages", "prompt", "send",
                     "Workers"], order
    page.one(".skip").send_keys(Keys.ENTER)
    assert page.focused() == "prompt", page.focused()
    page.one("#show-settings").send_keys(Keys.ENTER)
    assert page.focused() == "key", page.focused()
    page.press("not saved", Keys.ESCAPE)
    assert page.js("return localStorage.length") == 0
    assert page.focused() == "show-settings", page.focused()


def left_tokens(url):
    """Leaves a stream as Stop does. Returns the tokens that the fleet generates after a look at it."""
    host = url.removeprefix("http://")
    looks = http.client.HTTPConnection(host)

    def fleet():
        looks.request("GET", "/fleet")
        return json.load(looks.getresponse())

    fleet()  # Connects.
    stream = http.client.HTTPConnection(host)
    stream.request("POST", "/v1/chat/completions", json.dumps({
        "messages": [{"role": "user", "content": "Count."}], "stream": True, "max_tokens": 900, "ignore_eos": True}),
        {"Content-Type": "application/json"})
    response = stream.getresponse()
    assert response.readline().startswith(b"data: ")
    response.close()
    stream.close()
    first = last = fleet()
    while last["running"] > 0:
        last = fleet()
    looks.close()
    return last["generation_tokens"] - first["generation_tokens"]


def answers(page):
    """Streams an answer, answers again, stops, and keeps it all over a reload."""
    page.set(temperature="0", max_tokens="200")
    page.js("""
        window.lengths = new Set();
        new MutationObserver(() => lengths.add(document.querySelector('.assistant .text')?.textContent.length))
          .observe(document.getElementById('messages'), {subtree: true, childList: true, characterData: true});""")
    page.ask("import numpy as")
    page.ended()
    assert page.js("return lengths.size") > 3, page.js("return [...lengths]")
    assert re.match(r"\d+ \+ 200 tokens.* tokens/s, ended at its limit$", page.text("#progress")), page.text("#progress")
    assert page.focused() == "prompt", page.focused()

    page.set(max_tokens="8")
    page.one("#regenerate").send_keys(Keys.ENTER)
    page.ended()
    assert " + 8 tokens" in page.text("#progress"), page.text("#progress")
    assert page.focused() == "send", page.focused()
    assert len(page.all("article")) == 2
    assert page.text(".assistant .text")

    page.js("document.getElementById('max-tokens').value = ''")
    page.set(max_tokens="900")
    page.one("#prompt").send_keys("Count.")
    more = page.driver.execute_async_script(STOP)
    # Chromium closes the connection some milliseconds, steps of this model, after the click.
    assert more <= 300, f"{more} of 900 tokens were generated after Stop"
    more = left_tokens(page.url)
    assert more <= 2, f"{more} tokens were generated after a connection's end, want those of a step in flight"
    page.ended()
    assert page.text("#progress") == "Stopped", page.text("#progress")

    shown = page.text("#messages")
    page.driver.refresh()
    assert page.text("#messages") == shown, (shown, page.text("#messages"))
    assert [one.text for one in page.all("#chat-list button:first-child")] == ["import numpy as"]

    # An answer that another chat interrupts stays in its own.
    page.ask("Go on.")
    page.wait("an answer's begin", lambda: page.text(".assistant:last-child .text"))
    page.one("#new-chat").click()
    assert page.one("#send").is_displayed() and not page.one("#stop").is_displayed()
    assert not page.all("article")
    page.one("#chat-list button").click()
    assert len(page.all("article")) == 6
    page.one("#chat-list button:last-child").click()
    page.driver.switch_to.alert.accept()
    assert not page.all("article") and not page.all("#chat-list li")
    assert page.focused() == "new-chat", page.focused()


def streams(page):
    """Shows what other models and failing servers stream."""
    page.js("""
        window.serve = (...events) => {
          window.fetch = async (path) => path === '/fleet' ? new Response('{}', {status: 503}) :
            new Response(new Blob(events.map((event) => `: alive\\n\\ndata: ${event}\\n\\n`)).stream());
        };
        const part = (delta) => JSON.stringify({choices: [{delta}]});
        window.thought = part({reasoning_content: 'Because.'});
        window.said = part({content: 'Yes.'});""")
    page.js("serve(thought, said, '[DONE]')")
    page.ask("Why?")
    page.ended()
    parts = page.js("return [...document.querySelector('.assistant').children].map((one) => one.textContent)")
    assert parts == ["Answer", "ReasoningBecause.", "Yes."], parts
    for events, notice in (("said, JSON.stringify({error: {message: 'Out of luck.'}})", "Out of luck."),
                           ("said", "The answer broke off.")):
        page.js(f"serve({events})")
        page.one("#regenerate").click()
        page.ended()
        assert page.text("#notice") == notice, page.text("#notice")
        assert page.text(".assistant .text") == "Yes."
        assert len(page.all("article")) == 2
    page.js("serve(JSON.stringify({error: {message: 'No luck.'}}))")
    page.one("#regenerate").click()
    page.ended()
    assert page.text(".assistant .text") == "Yes."
    kept = page.js("return JSON.parse(localStorage.getItem('ringfleet.chats'))[0].messages")
    assert [one["content"] for one in kept] == ["Why?", "Yes."], kept
    page.js("localStorage.setItem('full', 'x'.repeat(5 * 2 ** 20 - 500))")
    page.js("serve(said, '[DONE]')")
    page.ask("Why is the sky blue? " * 20)
    page.ended()
    assert "storage is full" in page.text("#notice"), page.text("#notice")
    page.js("localStorage.removeItem('full')")


def tabs(page):
    """Another tab's chats and settings are kept beside this one's."""
    page.set(system="Short.", temperature="0", max_tokens="4")
    page.one("#show-settings").click()
    page.one("#system").send_keys(" Not saved.")
    page.press(Keys.ESCAPE)
    assert page.js("return JSON.parse(localStorage.getItem('ringfleet.settings')).system") == "Short."
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    page.open()
    page.ask("From another tab.")
    page.ended()
    page.driver.close()
    page.driver.switch_to.window(first)
    page.one("#new-chat").click()
    page.ask("From this tab.")
    page.ended()
    titles = page.js("return JSON.parse(localStorage.getItem('ringfleet.chats')).map((chat) => chat.title)")
    assert titles[:2] == ["From this tab.", "From another tab."], titles


def stored_chat(page):
    """Shows what a model wrote as text, and code with a button that copies it."""
    page.js("""
        localStorage.setItem('ringfleet.chats', JSON.stringify([arguments[0], {id: 'bad'}]));
        sessionStorage.setItem('ringfleet.chat', arguments[0].id);""", CHAT)
    page.driver.refresh()
    assert [one.text for one in page.all("#chat-list button:first-child")][0].startswith("<img"), "a title became markup"
    assert not page.all("#messages img, #messages script") and page.js("return window.hacked === undefined")
    blocks = [page.js("return arguments[0].textContent", one) for one in page.all("pre code")]
    assert blocks == [CODE, "```\nnot the end", LONG_WORD + "\nopen"], blocks
    assert [one.text for one in page.all(".code span")] == ["python", "js", "text"]
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {
        "origin": page.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    page.one(".code button").click()
    page.wait("a copied block", lambda: page.text(".code button") == "Copied")
    copied = page.driver.execute_async_script("navigator.clipboard.readText().then(arguments[0])")
    assert copied == CODE, copied
    # A page over plain HTTP has no clipboard.
    page.js("""
        window.clipboard = navigator.clipboard;
        Object.defineProperty(navigator, 'clipboard', {value: undefined});""")
    page.all(".code button")[1].click()
    page.wait("another copied block", lambda: page.all(".code button")[1].text == "Copied")
    copied = page.driver.execute_async_script("clipboard.readText().then(arguments[0])")
    assert copied == "```\nnot the end", copied
    page.wait("the button's text", lambda: page.text(".code button") == "Copy")


def looks(page):
    """Reads well in light and dark, and fits a phone."""
    page.one("summary").click()
    for scheme in ("light", "dark"):
        page.scheme(scheme)
        page.check_contrast()
        page.one("#show-settings").click()
        page.check_contrast()
        page.press(Keys.ESCAPE)
    page.size(360, 740, phone=True)
    page.driver.refresh()
    page.wait("a ready fleet", page.ready)
    assert page.one("#prompt").get_attribute("placeholder") == "Message"
    for panel in ("chats", "fleet"):
        page.one(f"#show-{panel}").click()
        shown = [one for one in ("chats", "fleet") if page.one(f"#{one}").is_displayed()]
        assert shown == [panel], shown
        assert not page.js(TOO_WIDE), page.js(TOO_WIDE)
        assert page.one("#messages").size["height"] > 100, page.one("#messages").size
        assert page.js("return document.getElementById('send').getBoundingClientRect().bottom") <= 740
    legend = page.one("#fleet-figures").get_attribute("aria-describedby")
    assert "1 is balanced" in page.text(f"#{legend}"), legend
    page.one("#show-fleet").click()
    assert not page.js(TOO_WIDE), page.js(TOO_WIDE)
    page.one("#show-settings").click()
    assert not page.js(TOO_WIDE), page.js(TOO_WIDE)
    page.press(Keys.ESCAPE)
    page.size(1280, 800)
    page.scheme("light")


def pictures(page):
    """A chat without words of 250 letters, as people see it."""
    chat = {"id": "picture", "title": "Add two numbers in Python", "messages": [
        {"role": "user", "content": "Add two numbers in Python."},
        {"role": "assistant", "reasoning": "A function with two parameters.",
         "content": "A function `add` returns the sum:\n\n```python\ndef add(a, b):\n    return a + b\n```\n\n"
                    "Call it with two numbers: `add(1, 2)` is 3."}]}
    page.js("""
        localStorage.setItem('ringfleet.chats', JSON.stringify([arguments[0]]));
        sessionStorage.setItem('ringfleet.chat', arguments[0].id);""", chat)
    for name, size, scheme in (("light", (1280, 800), "light"), ("dark", (1280, 800), "dark"),
                               ("phone", (360, 740, True), "light"), ("phone_fleet", (360, 740, True), "dark")):
        page.size(*size)
        page.scheme(scheme)
        page.driver.refresh()
        if name == "phone_fleet":
            page.one("#show-fleet").click()
        page.wait("figures of the fleet", lambda: "–" not in page.text("#fleet-figures dd:nth-of-type(1)"))
        page.picture(name)


def access(page, serve):
    """Asks for a key once, answers then, and says when the server is gone."""
    page.open()
    page.wait("a wish for a key", lambda: "wants an API key" in page.text("#notice"))
    page.check_contrast()
    page.ask("import os")
    page.wait("the settings", lambda: page.one("#settings").is_displayed())
    page.one("#max-tokens").send_keys("8")
    page.one("#key").send_keys(KEY, Keys.ENTER)
    page.wait("an answer", lambda: page.text(".assistant .text"))
    page.ended()
    page.wait("a ready fleet", page.ready)
    complaints = page.complaints()
    assert all("401" in one for one in complaints) and len(complaints) == 2, complaints
    page.driver.refresh()
    page.wait("a ready fleet", page.ready)
    assert not page.complaints()

    page.set(max_tokens="900")
    page.ask("Count.")
    page.wait("an answer's begin", lambda: page.text(".assistant:last-child .text"))
    serve.kill()
    page.ended()
    assert "connection failed" in page.text("#notice"), page.text("#notice")
    page.wait("the fleet's loss", lambda: "cannot be reached" in page.text("#fleet-state"))
    shown = page.text(".assistant:last-child .text")
    page.one("#regenerate").click()
    page.wait("a failure", lambda: "connection failed" in page.text("#notice"))
    page.ended()
    assert page.text(".assistant:last-child .text") == shown
    assert not [one for one in page.complaints() if "ERR_" not in one]


def serve_with_key(folder):
    (folder / "keys").write_text(f"page: {KEY}\n")
    (folder / "keys").chmod(0o600)
    with open(folder / "address", "w") as out, open(folder / "errors", "w") as errors:
        serve = subprocess.Popen([os.environ["RINGFLEET"], "serve", "--model", os.environ["RINGFLEET_MODEL"], "--dtype",
                                  "f32", "--port", "0", "--api-key-file", str(folder / "keys")], stdout=out, stderr=errors)
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and serve.poll() is None:
        found = re.match(r"listening on (\S+)\n", (folder / "address").read_text())
        if found:
            return serve, found[1]
        time.sleep(0.1)
    serve.kill()
    raise AssertionError(f"no server: {(folder / 'errors').read_text()}")


def main(url, model, out=None):
    if not shutil.which("chromium") or not shutil.which("chromedriver"):
        print("no chromium and chromedriver; cluster/install-packages.sh --clients installs them")
        return 77
    page = Page(url, out and pathlib.Path(out))
    try:
        for step in (keyboard, answers, streams, tabs, stored_chat, looks):
            step(page)
        assert model in page.driver.title, page.driver.title
        if page.pictures:
            pictures(page)
        complaints = page.complaints()
        assert not complaints, complaints
    finally:
        page.driver.quit()
    with tempfile.TemporaryDirectory() as folder:
        serve, address = serve_with_key(pathlib.Path(folder))
        try:
            page = Page(address, None)
            try:
                access(page, serve)
            finally:
                page.driver.quit()
        finally:
            serve.kill()
            serve.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
