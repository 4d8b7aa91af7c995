"""Markdown in the page: story texts, and content that must not pass."""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import BrowserContext, Page, expect

from backend.web.controller import PageFiles
from tests.support.browser import Watch
from tests.support.process import Served

pytestmark = pytest.mark.browser

REL = 'target="_blank" rel="noopener noreferrer nofollow"'
SIGN = '<svg class="icon" aria-hidden="true" viewBox="0 0 24 24"></svg>'

CASES = {
    # Paragraphs and lines.
    "": "",
    " \n\n ": "",
    "One.\nTwo.\n\nThree.": "<p>One.<br>Two.</p><p>Three.</p>",
    "One.  \r\nTwo.\\\nThree.": "<p>One.<br>Two.\\<br>Three.</p>",
    "    far in": "<p>far in</p>",
    # Emphasis.
    "*a* **b** ***c*** _d_ __e__ ~~f~~": (
        "<p><em>a</em> <strong>b</strong> <em><strong>c</strong></em> <em>d</em> "
        "<strong>e</strong> <s>f</s></p>"
    ),
    "*one\ntwo*": "<p><em>one<br>two</em></p>",
    "*a **b** c*": "<p><em>a <strong>b</strong> c</em></p>",
    "**a *b***": "<p><strong>a <em>b</em></strong></p>",
    "***a* b**": "<p><strong><em>a</em> b</strong></p>",
    "un*believ*able": "<p>un<em>believ</em>able</p>",
    "snake_case_name _word_s": "<p>snake_case_name _word_s</p>",
    "**„Ja“**sagte": "<p><strong><q>„Ja“</q></strong>sagte</p>",
    "2 * 3 * 4 and * and **": "<p>2 * 3 * 4 and * and **</p>",
    "*open": "<p>*open</p>",
    "*a **b* c**": "<p><em>a <em><em>b</em> c</em></em></p>",
    "****four**** ~one~ ~~~": "<p>****four**** ~one~ ~~~</p>",
    r"\*not\* \_not\_ \\ \a": r"<p>*not* _not_ \ \a</p>",
    # Speech.
    '"Hello," she said. "You\'re late."': (
        '<p><q>"Hello,"</q> she said. <q>"You\'re late."</q></p>'
    ),
    "“A” ‘b’ «C» „D“ „E” »F«": (
        "<p><q>“A”</q> ‘b’ <q>«C»</q> <q>„D“</q> <q>„E”</q> <q>»F«</q></p>"
    ),
    '*She nods.* "I *know*."': '<p><em>She nods.</em> <q>"I <em>know</em>."</q></p>',
    '*He says "no" and goes.*': '<p><em>He says <q>"no"</q> and goes.</em></p>',
    '("Aside.")': '<p>(<q>"Aside."</q>)</p>',
    '"Never closed.\n\nNext": "b"': '<p>"Never closed.</p><p>Next": <q>"b"</q></p>',
    '5\'10" and 6" tall': '<p>5\'10" and 6" tall</p>',
    '`"code"` "`say`"': '<p><code>"code"</code> <q>"<code>say</code>"</q></p>',
    # Code.
    "`a*b*` ``c`d`` ` e ` `": "<p><code>a*b*</code> <code>c`d</code> <code>e</code> `</p>",
    "```js\na = *1*\n\n  <b>\n```\nafter": (
        "<pre><code>a = *1*\n\n  &lt;b&gt;</code></pre><p>after</p>"
    ),
    "~~~~\n```\n~~~\n~~~~": "<pre><code>```\n~~~</code></pre>",
    "```\nnever closed": "<pre><code>never closed</code></pre>",
    # Quotes and lists.
    "> a\n> b\n>\n> > c\n\nd": (
        "<blockquote><p>a<br>b</p><blockquote><p>c</p></blockquote></blockquote><p>d</p>"
    ),
    "said:\n> a": "<p>said:</p><blockquote><p>a</p></blockquote>",
    "- a\n- b\n  - c\n    d\n- e": (
        "<ul><li>a</li><li>b<ul><li>c<br>d</li></ul></li><li>e</li></ul>"
    ),
    "- a\n\n- b": "<ul><li>a</li><li>b</li></ul>",
    "- a\n\n  b\n- c": "<ul><li>a<p>b</p></li><li>c</li></ul>",
    "3. a\n4. b\n\nc": '<ol start="3"><li>a</li><li>b</li></ol><p>c</p>',
    "1) a\n   1. b": "<ol><li>a<ol><li>b</li></ol></li></ol>",
    "- a\nlazy\n* b": "<ul><li>a<br>lazy</li><li>b</li></ul>",
    "- ```\n  x\n  ```\n- > y": (
        "<ul><li><pre><code>x</code></pre></li><li><blockquote><p>y</p></blockquote></li></ul>"
    ),
    "In 1984\n1984. Not a list": "<p>In 1984<br>1984. Not a list</p>",
    "*She smiles.*\n- or not": "<p><em>She smiles.</em></p><ul><li>or not</li></ul>",
    # Headings, rules, tables.
    "# A\n### B *c* ##\n###### D\n#tag": "<h3>A</h3><h5>B <em>c</em></h5><h6>D</h6><p>#tag</p>",
    "a\n---\nb\n***\n* * *\n___": "<p>a</p><hr><p>b</p><hr><hr><hr>",
    "| a | b |\n|:--|--:|\n| *c* | d \\| e |\nf | g\n\nh": (
        "<table><tr><th>a</th><th>b</th></tr>"
        "<tr><td><em>c</em></td><td>d | e</td></tr><tr><td>f</td><td>g</td></tr>"
        "</table><p>h</p>"
    ),
    "a | b\nc | d": "<p>a | b<br>c | d</p>",
    # Links and pictures.
    '[the *inn*](https://inn.example/a_(b)?c=*d* "Title") [x](http://x.example)': (
        f'<p><a href="https://inn.example/a_(b)?c=*d*" {REL}>the <em>inn</em>'
        f'<small> (inn.example)</small></a> <a href="http://x.example" {REL}>x'
        "<small> (x.example)</small></a></p>"
    ),
    "See https://a.example/b_c_d, (http://e.example).": (
        f'<p>See <a href="https://a.example/b_c_d" {REL}>https://a.example/b_c_d</a>, '
        f'(<a href="http://e.example" {REL}>http://e.example</a>).</p>'
    ),
    "**https://a.example/** `https://b.example`": (
        f'<p><strong><a href="https://a.example/" {REL}>https://a.example/</a></strong> '
        "<code>https://b.example</code></p>"
    ),
    "[https://bank.example](https://thief.example)": (
        f'<p><a href="https://thief.example" {REL}>https://bank.example'
        "<small> (thief.example)</small></a></p>"
    ),
    "[a](javascript:alert) [b](data:text/html,x) [c](/d) [e] [f]()": (
        "<p>[a](javascript:alert) [b](data:text/html,x) [c](/d) [e] [f]()</p>"
    ),
    "![A *door*](https://a.example/d) ![](https://b.example/e) ![f](data:image/png;base64,AA)": (
        f'<p><a href="https://a.example/d" {REL}>{SIGN} A <em>door</em>'
        f'<small> (a.example)</small></a> <a href="https://b.example/e" {REL}>{SIGN} '
        f"<small> (b.example)</small></a> <span>{SIGN} f</span></p>"
    ),
    # HTML and entities.
    "<b>a</b> <EM class=x>b</em> c<br>d<br/>e <sub>f</sub>": (
        "<p><b>a</b> <em>b</em> c<br>d<br>e <sub>f</sub></p>"
    ),
    "<i>open </b> <div>a</div> <img src=x onerror=alert(1)>": (
        "<p>&lt;i&gt;open &lt;/b&gt; &lt;div&gt;a&lt;/div&gt; "
        "&lt;img src=x onerror=alert(1)&gt;</p>"
    ),
    "<b>*a</b>*": "<p><b>*a</b>*</p>",
    "&lt;b&gt; &amp;lt; &#39;&#x2014;&hearts;&": "<p>&lt;b&gt; &amp;lt; '—&amp;hearts;&amp;</p>",
}

HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)><script>alert(1)</script></svg>",
    "<b onclick=alert(1) style=color:red>a</b>",
    "<i/onmouseover=alert(1)>a</i>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<style>*{display:none}</style><link rel=stylesheet href=//evil.example>",
    "<form action=//evil.example><input name=a><button>b</button></form>",
    "[a](javascript:alert(1)) [a](JaVaScRiPt:alert(1)) [a](java\tscript:alert(1))",
    "[a](&#106;avascript:alert(1)) [a](\x01javascript:alert(1)) [a](<javascript:alert(1)>)",
    "[a](data:text/html;base64,AAAA) [a](vbscript:x) [a](file:///etc/passwd) [a](//evil.example)",
    '[a](https://a.example" onclick="alert(1)) [a](https://a.example/"x)',
    "[a](https://a.example '\"><script>alert(1)</script>')",
    "![a](javascript:alert(1)) ![a](data:image/svg+xml,<svg/onload=alert(1)>) ![a](x)",
    "https://a.example/<script>alert(1)</script> http:// https://? http://[ https://%",
    "[a](http://) [a](https://[) [a](https://user:pass@evil.example/) [[a](http://b)](http://c)",
    "[https://a.example ![b](https://b.example) c](https://c.example)",
    "`<script>` ``<b>`` ```\n<script>alert(1)</script>",
    "| <script> | [a](javascript:1) |\n|---|---|\n| <b> | ![x](http://y) |",
    '> - # <b>*_~~`"[![](\n> 1. \\<br>&#0;&#x110000;&#99999999;',
    '*_*_*_ **__**__ ~~*~~* "*"* [*](http://a)* <b>*</b>* <b><i></b></i> “„”« »',
    "&#60;script&#62; &lt;img&gt; &#x3c;",
    "constructor __proto__ <constructor> &constructor; &__proto__; &toString;",
    "\x00\ufeff\u202e\ud800 * a",
)

ALLOWED = {
    "a": {"href", "target", "rel"},
    "ol": {"start"},
    "svg": {"class", "aria-hidden", "viewBox"},
    "path": {"d"},
}
BARE = set(
    re.findall(
        r"\w+",
        "b blockquote br code em h3 h4 h5 h6 hr i li p pre q s small span strong sub sup table "
        "td th tr u ul",
    )
)
"""Elements that have no attributes."""

TEDIOUS = (
    *'*_~`[]!<&"“„«>#-|\\\n',
    *("* ", "- ", "> ", "1. ", "*a", "*a ", "a* ", "**a ", "_a_", "*a_b", "`a``b", "\n\n*", "\n- "),
    *("[a](", "](", "[a](b", "![", "[](", "[a](http://b ", '[a](http://b "', "[](((((", "[a]"),
    *("<b>", "</b>", "<b", "<b ", "<br", "<http://", "http://", "http://)", "https://a ", "&a"),
    *('"a ', '" a', "“a„b", "«»", "a|", "a|\n-|\n", "|-\n", "-|", "```\n", "~~~\n\n", "# ", " #"),
    *("\n> ", "\n>", ">\n\n", "- a\n\n", "1. a\n2) ", "    ", "\t", "\r", "\\*", "~~a", "~~a~~"),
)
"""Each is said over and over, to see how the time grows with the text."""

STORY = """*The rain has not stopped for **three** days.* Mara looks up from her book.

"You again," she says, "and *wet* to the bone." She points at the fire.
"Sit. Before you fall."

> Whoever enters
> leaves something behind.

1. A candle
   - half burnt
2. A key

```
a = "*not speech*"
```

| Door | Behind it |
|------|-----------|
| red  | *nothing* |

---

## Later

See https://inn.example/rooms and [the map](https://map.example "Map"). "Good **night**," *she"""

PLAIN = """One paragraph
over two lines.

*Emphasis*, **strong**, ***both***, _one_ __two__, `code`, ``co`de``, and un*believ*able snake_case.

**Strong with *emphasis* inside** and *emphasis with **strong** inside*. 2 * 3 * 4, a lone * star.

> A quote
> of two lines
>
> > and one inside

- one
- two
  - inner
    - innermost
- three

3. three
4. four

And

1. a
   - b
   - c
2. d

***

# First
## Second ##
### Third *with emphasis*

```
code <b>

  more
```

~~~
more code
~~~

| a | b |
|---|:-:|
| 1 | *2* |

Some \\*escaped\\* text &amp; &lt;entities&gt; &#39;&#x41;.
"""

MAIN = 'document.querySelector("[type=module]").src'
IMPORTED = f'await import({MAIN}.replace("main.js", "core/markdown.js"))'
EXPORTS = PageFiles().exports
NAMES = f"{EXPORTS['markdown']}: markdown, {EXPORTS['growing']}: growing"
RENDER = f"""async (texts) => {{
  const {{ {NAMES} }} = {IMPORTED};
  return texts.map((text) => {{
    const box = document.createElement("div");
    box.append(markdown(text));
    for (const icon of box.querySelectorAll("svg")) icon.replaceChildren();
    return box.innerHTML;
  }});
}}"""
ELEMENTS = f"""async (text) => {{
  const {{ {NAMES} }} = {IMPORTED};
  const box = document.createElement("div");
  box.append(markdown(text));
  document.body.append(box);
  return [...box.querySelectorAll("*")].map((element) => [
    element.localName,
    Object.fromEntries([...element.attributes].map(({{ name, value }}) => [name, value])),
  ]);
}}"""
GROWTH = f"""async (text) => {{
  const {{ {NAMES} }} = {IMPORTED};
  const quickest = (length) => Math.min(...[1, 2, 3].map(() => {{
    const start = performance.now();
    markdown(text.repeat(length / text.length));
    return performance.now() - start;
  }}));
  const [short, long] = [12_500, 50_000].map(quickest);
  // Four times as long: a linear text takes four times the time, a quadratic one 16 times.
  return long > 50 ? long / short : 1;
}}"""
GROW = f"""async (text) => {{
  const {{ {NAMES} }} = {IMPORTED};
  const box = document.createElement("div");
  const {{ write }} = growing(box);
  const html = () => box.innerHTML;
  const steps = [];
  let replaced = 0;
  new MutationObserver((changes) => {{
    for (const {{ removedNodes }} of changes) replaced += removedNodes.length;
  }}).observe(box, {{ childList: true }});
  for (let end = 1; end <= text.length; end++) {{
    write(text.slice(0, end));
    steps.push(html());
  }}
  await null;
  const first = box.firstChild;
  write(text, true);
  const whole = document.createElement("div");
  whole.append(markdown(text));
  const same = first === box.firstChild && box.isEqualNode(whole);
  write("Another.");
  return {{ steps, same, another: html(), replaced, blocks: whole.childNodes.length }};
}}"""


@pytest.fixture(scope="module")
def opened(shared_context: BrowserContext, server: Served) -> Generator[Page]:
    """The page of a visitor. Tests render texts with its scripts."""
    watch = Watch(server.url)
    with watch.over(shared_context):
        page = shared_context.new_page()
        page.goto("/")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        yield page
        page.close()
    watch.check()


def test_stories_look_as_they_are_meant(opened: Page) -> None:
    found: list[str] = opened.evaluate(RENDER, list(CASES))
    assert dict(zip(CASES, found, strict=True)) == CASES


def test_what_anyone_writes_makes_no_more_than_text_and_links(opened: Page) -> None:
    for text in (*HOSTILE, *CASES, "".join(HOSTILE), "\n\n> ".join(HOSTILE)):
        for name, attributes in opened.evaluate(ELEMENTS, text):
            assert name in ALLOWED or name in BARE, (name, text)
            assert attributes.keys() <= ALLOWED.get(name, set()), (name, attributes, text)
            if name == "a":
                assert re.match("https?://", attributes["href"]), text
                assert attributes["target"] == "_blank"
                assert attributes["rel"] == "noopener noreferrer nofollow"


def test_no_text_is_lost(opened: Page) -> None:
    texts = [text for text in HOSTILE if not re.search(r"[&\\`|>]", text)]
    found: list[str] = opened.evaluate(RENDER, texts)
    for text, html in zip(texts, found, strict=True):
        words = set(re.findall(r"[a-z]{3,}", text.lower()))
        assert words <= set(re.findall(r"[a-z]{3,}", html.lower())), text


def test_no_text_takes_more_than_its_length(opened: Page) -> None:
    for text in TEDIOUS:
        # Something else may have run in between: what grows, grows each time.
        assert any(opened.evaluate(GROWTH, text) < 12 for _ in range(3)), text


def test_a_text_that_grows_ends_as_if_it_had_come_at_once(opened: Page) -> None:
    found: dict[str, Any] = opened.evaluate(GROW, STORY)
    assert found["same"]
    assert found["another"] == "<p>Another.</p>"
    # Emphasis and speech are there from their first word on.
    assert "<p><em>The ra</em></p>" in found["steps"]
    assert any(step.endswith('<p><q>"You</q></p>') for step in found["steps"])
    assert not any(re.search(r"\*\w[^<]*</p>$", step) for step in found["steps"])


def test_a_selection_stays_while_the_text_grows(opened: Page) -> None:
    said: str = opened.evaluate(
        f"""async ([begin, rest]) => {{
          const {{ {NAMES} }} = {IMPORTED};
          const box = document.createElement("div");
          document.body.append(box);
          const {{ write }} = growing(box);
          write(begin);
          getSelection().selectAllChildren(box.firstChild);
          for (let end = 1; end <= rest.length; end++) write(begin + rest.slice(0, end));
          return String(getSelection());
        }}""",
        ["First of all.\n\nThen\nmore\nand ", "*more*.\n\nAnd `more`.\n\n- And\n- more."],
    )

    assert said == "First of all."


def test_plain_markdown_is_what_it_is_elsewhere(opened: Page) -> None:
    peer = MarkdownIt("commonmark", {"breaks": True}).enable("table").disable("code")
    sections = PLAIN.split("\n\n")
    texts = [PLAIN, *(section for section in sections if "```" not in section)]
    found: list[str] = opened.evaluate(RENDER, texts)
    for text, html in zip(texts, found, strict=True):
        assert html == as_here(peer.render(text)), text


def as_here(html: str) -> str:
    """A peer's HTML, with our headings, bare cells, and no white space between elements."""
    html = re.sub(r"<(/?)h([1-4])>", lambda h: f"<{h[1]}h{int(h[2]) + 2}>", html)
    html = re.sub(r"</?(?:thead|tbody)>| style=\"[^\"]*\"", "", html)
    html = (
        html.replace("<br />\n", "<br>").replace("<hr />", "<hr>").replace("\n</code>", "</code>")
    )
    html = re.sub(
        r"(</?(?:p|ul|ol|li|blockquote|h\d|table|tr|t[hd]|pre|hr)\b[^>]*>)\n+", r"\1", html
    )
    return re.sub(r"\n(?=<(?:ul|ol)\b)", "", html).replace("&quot;", '"')
