"""Opens the pages of a folder in Chromium and holds what they show against what the profiles say.

Called by `cargo xtask page` as `check.py CHROMIUM FOLDER`. For each NAME.html there is a NAME.json (see the example `pages` of
plimsoll-report). Every check can fail; none depends on the clock but the one goal that is about time, which is printed only.
"""

import json
import pathlib
import sys
import time

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

MOST_NODES = 2000
problems = []


def check(name, what, holds, detail=""):
    if not holds:
        problems.append(f"{name}: {what} {detail}".strip())


def watched(browser, name, scheme):
    """A page that notes what it must not do: talk to anybody, fail, or complain."""
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(30000)
    page.on("request", lambda request: check(name, "a request:", request.url.startswith("file:"), request.url[:200]))
    page.on("pageerror", lambda error: check(name, "an error:", False, str(error)))
    page.on("console", lambda message: check(name, "the console:", message.type not in ("error", "warning"), message.text))
    return page


def table_rows(page, selector):
    """What a table of owners shows, as a person reads it."""
    cells = page.eval_on_selector_all(f"{selector} tr", "rows => rows.map(r => [...r.children].map(c => c.textContent.trim()))")
    return {row[0]: int(row[1].replace(",", "")) for row in cells if len(row) == 3 and row[1].replace(",", "").isdigit()}


def check_numbers(page, name, expected):
    shown = table_rows(page, "#peak-owners")
    owners = {owner: bytes for owner, bytes in expected["owners"].items() if bytes > 0}
    check(name, "owners of the peak", {k: v for k, v in shown.items() if k != "in use"} == owners, f"{shown} {owners}")
    check(name, "in use", shown.get("in use") == expected["peak"], f"{shown} {expected['peak']}")
    check(name, "peak", page.inner_text("#peak-bytes") == f"{expected['peak']:,} B", page.inner_text("#peak-bytes"))
    rows = page.evaluate("moments => moments.map(m => Array.from(app.run.rowsAt(m)))", [row[0] for row in expected["rows"]])
    for (moment, wanted, in_use), got in zip(expected["rows"], rows):
        check(name, f"rows of moment {moment}", sorted(got) == sorted(wanted) and sum(got) == in_use, f"{got} {wanted}")


def check_prices(page, name, expected):
    """What having each block again would take, as the page computes it and as `explain` does."""
    price = """([moment, blocks]) => {
        const { run } = app;
        const alive = new Map(run.alive(moment).map((i) => [[run.owners[run.owner[i]], run.site[i], run.bytes[i], run.offset[i]].join(), i]));
        return blocks.map(([owner, site, bytes, offset]) => {
            const life = alive.get([owner, site, bytes, offset].join());
            return life === undefined ? "gone" : run.works.price(life, moment).ns ?? null;
        });
    }"""
    compared = 0
    for moment, blocks in expected["prices"]:
        got = page.evaluate(price, [moment, [block[:4] for block in blocks]])
        wanted = [block[4] for block in blocks]
        compared += len([ns for ns in wanted if ns])
        check(name, f"prices of moment {moment}", got == wanted, f"{got} {wanted}"[:400])
    return compared


def check_bounds(page, name):
    for zoom in ([0, 1], [0.2, 0.7], [0.5, 0.501]):
        page.evaluate("([a, b]) => app.timeline.setZoom(a * app.run.last, b * app.run.last)", zoom)
        points, width = page.evaluate("[+chart.dataset.points, +chart.dataset.width]")
        check(name, "points for each pixel", points <= 4 * width, f"{points} on {width}")
    page.evaluate("app.timeline.setZoom(0, app.run.last)")
    nodes = page.evaluate("document.querySelectorAll('*').length")
    check(name, "nodes", nodes <= MOST_NODES, str(nodes))


def slowest_zoom(page):
    """The longest pause of twenty zooms, in milliseconds; it is printed, because it depends on the clock."""
    return page.evaluate("""() => {
        let worst = 0;
        for (let n = 0; n < 20; n++) {
            const [from, wide] = [(n / 40) * app.run.last, Math.pow(0.7, n) * app.run.last];
            const start = performance.now();
            app.timeline.setZoom(from, Math.min(app.run.last, from + wide));
            worst = Math.max(worst, performance.now() - start);
        }
        app.timeline.setZoom(0, app.run.last);
        return worst;
    }""")


def check_keys(page, name):
    """Everything is reached and moved by keys alone."""
    page.focus("#chart")
    page.keyboard.press("Home")
    check(name, "Home", page.evaluate("app.moment") == 0)
    page.keyboard.press("ArrowRight")
    check(name, "an arrow", page.evaluate("app.moment") == min(1, page.evaluate("app.run.last")))
    page.keyboard.press("p")
    check(name, "P", page.evaluate("app.moment === app.run.meta.peak.moment"))
    check(name, "the link", page.evaluate("location.hash === '#t=' + app.moment"), page.evaluate("location.hash"))
    page.focus("#icicle")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    check(name, "the icicle", page.evaluate("app.icicle.names.length") == 1)
    page.keyboard.press("Escape")
    page.fill("#holders input[type=search]", "no such layer anywhere")
    check(name, "the filter", page.inner_text("#holders .count") == "nothing")
    page.fill("#holders input[type=search]", "")
    page.click("#holders tbody button.link >> nth=0")
    card = page.inner_text("#card-facts")
    check(name, "the card", all(part in card for part in ["requested", "read next by", "kept alive by", "goes with it", "its price"]), card)


def check_steps(page, name, expected):
    """Each step is told of, those that the profile has left out in one row for several."""
    told = page.inner_text("#subtitle")
    steps = f"{expected['steps']:,} step"
    check(name, "the number of steps", steps in told, f"{told} {steps}")
    facts = page.inner_text("#facts")
    left_out = f"of {expected['left_out']:,} steps in the middle"
    check(name, "what is left out", (left_out in facts) == (expected["left_out"] > 0), facts[:300])
    rows = page.evaluate("stepRows(app.run).map(({ n, ms, most }) => [n, ms, most])")
    check(name, "rows of steps", sum(n for n, _, _ in rows) == expected["steps"] and all(ms >= 0 and most > 0 for _, ms, most in rows), str(rows[:5]))


def check_leak(page, name, expected):
    """From the page as it opens to the line of a leak, and to its blocks: how many clicks that takes."""
    line = expected["grown"]
    check(name, "the line of the leak, without a click", line in page.inner_text("#growth-said"), page.inner_text("#growth-said"))
    page.click(f"#growth-table tr:has-text('{line}') button.link")
    card = page.inner_text("#card-facts")
    check(name, "the blocks of the leak, after one click", line in card and "read next by" in card and "kept alive by" in card, card)
    check(name, "all blocks of the leak", page.locator("#blocks tbody tr").count() > 1)


def check_accessible(page, name, scheme):
    found = Axe().run(page).response["violations"]
    check(name, f"accessibility, {scheme}:", not found, "; ".join(f"{v['id']}: {v['nodes'][0]['html'][:120]}" for v in found))


def check_page(browser, path):
    name, expected = path.stem, json.loads(path.with_suffix(".json").read_text())
    page = watched(browser, name, "light")
    started = time.monotonic()
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-state=ready]")
    seconds = time.monotonic() - started
    title = page.title()
    check_numbers(page, name, expected)
    prices = check_prices(page, name, expected)
    check_bounds(page, name)
    pause = slowest_zoom(page)
    if expected["grown"]:
        check_leak(page, name, expected)
    check_keys(page, name)
    check_steps(page, name, expected)
    check_accessible(page, name, "light")
    page.click("#theme")
    check_accessible(page, name, "dark")
    grew = page.inner_text("#growth-said")
    check(name, "growth", grew.startswith("Grew") == (expected["growth"] > 0), grew)
    check(name, "the title is the page's", page.title() == title and title != "pwned", page.title())
    check(name, "made elements", page.evaluate("document.querySelectorAll('main img, main script, main b').length") == 0)
    page.close()
    check_link(browser, path, expected)
    print(f"{name}: {expected['events']:,} events, {path.stat().st_size:,} bytes, usable after {seconds:.2f} s, zooms of {pause:.0f} ms at most, {prices:,} prices equal")


def check_link(browser, path, expected):
    """A link to a moment shows that moment."""
    moment = expected["events"] // 2
    page = watched(browser, path.stem, "dark")
    page.goto(path.as_uri() + f"#t={moment}")
    page.wait_for_selector("body[data-state=ready]")
    # Where the blocks of a moment were left out, the nearest that has them is shown, and the page says so.
    kept = page.evaluate("moment => app.run.isKept(moment)", moment)
    shown = page.evaluate("app.moment")
    check(path.stem, "a link to a moment", shown == (moment if kept else page.evaluate("moment => app.run.nearestKept(moment)", moment)))
    check(path.stem, "what is said of another moment", page.is_visible("#not-kept") == (not kept))
    page.close()


def check_prediction(browser, path):
    """The dry run laid over its run: in every step and every batch of an evaluation that both have, the same bytes at each event."""
    page = watched(browser, path.stem, "light")
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-state=ready]")
    said = page.inner_text("#comparison-said")
    check(path.stem, "run and dry run", said.startswith("At each of the "), said)
    check_accessible(page, path.stem, "light")
    page.close()
    print(f"{path.stem}: {said}")


def main():
    chromium, folder = sys.argv[1:]
    with sync_playwright() as playwright:
        # Pages are our own, and whoever tests as root has no sandbox.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        pages = sorted(pathlib.Path(folder).glob("*.html"))
        for path in pages:
            what = check_page if path.with_suffix(".json").exists() else check_prediction
            what(browser, path)
        browser.close()
    for problem in problems[:40]:
        print(problem)
    print(f"{len(pages)} pages, {len(problems)} problems")
    sys.exit(1 if problems or not pages else 0)


main()
