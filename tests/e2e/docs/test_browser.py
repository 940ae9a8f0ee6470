"""The site in a real browser: pages show, the search finds, the language switch leads to the same page."""

import functools
import os
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="no chromium with chromedriver here (Debian: apt-get install chromium chromium-driver)",
)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,1000",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with Chrome(options=options, service=Service(DRIVER)) as driver:
        yield driver


def wait_for(browser: Any, condition: Any) -> Any:
    from selenium.webdriver.support.ui import WebDriverWait

    return WebDriverWait(browser, 60).until(condition)


def keep(browser: Any, name: str) -> None:
    """Keep a picture where ``DOCS_SCREENSHOTS`` says, for people to look at."""
    folder = os.environ.get("DOCS_SCREENSHOTS")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        assert browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def complaints(browser: Any) -> list[str]:
    """What the browser logged as an error, apart from the icon that it asks every site for."""
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_page_shows_and_fits(browser: Any, address: str, site: Path, language: str) -> None:
    pages = sorted(page.relative_to(site).as_posix() for page in (site / language).rglob("*.html"))
    for page in pages:
        browser.get(f"{address}/{page}")
        assert browser.find_elements("css selector", "h1") or page.endswith(("search.html", "genindex.html")), page
        assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth"), (
            f"{page} is too wide"
        )
        keep(browser, page.replace("/", "-").removesuffix(".html"))
    assert complaints(browser) == []


@pytest.mark.parametrize(
    ("language", "words", "page"),
    [
        ("en", "proposal", "sync-guide"),
        ("en", "parity", "weight-sync"),
        ("zh", "检查点", "checkpoints"),
        ("zh", "补丁", "patch-stack"),
    ],
)
def test_search_finds(browser: Any, address: str, language: str, words: str, page: str) -> None:
    browser.get(f"{address}/{language}/index.html")
    box = browser.find_element("css selector", "input.sidebar-search")
    box.send_keys(words)
    box.submit()
    wait_for(browser, lambda b: b.find_elements("css selector", f"#search-results a[href*='{page}']"))
    keep(browser, f"search-{language}-{page}")


def test_language_switch_leads_to_the_same_page_and_back(browser: Any, address: str) -> None:
    for page in ("index", "runtime/engines"):
        browser.get(f"{address}/en/{page}.html")
        browser.find_element("css selector", ".site-languages a[lang=zh]").click()
        wait_for(browser, lambda b, page=page: b.current_url == f"{address}/zh/{page}.html")
        assert browser.find_element("css selector", "html").get_attribute("lang") == "zh-CN"
        assert "404" not in browser.title
        browser.find_element("css selector", ".site-languages a[lang=en]").click()
        wait_for(browser, lambda b, page=page: b.current_url == f"{address}/en/{page}.html")
