"""Looks at the pages of `shootdown report` in headless Chromium, as `cargo xtask test page` runs it.

The first argument is the `shootdown` command. Pages are tested as text in `all/report.rs`; here is
what only a browser can show: widths, filters without scripts, and flame graphs that respond.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from selenium import webdriver
from selenium.webdriver.common.by import By

COMMAND = pathlib.Path(sys.argv.pop(1)).resolve()
TRACES = pathlib.Path(__file__).resolve().parents[3] / "traces"
RECORDING = TRACES / "explain" / "forks.shootdown"
WIDTHS = (1200, 500, 360)


def overflows(browser):
    """Returns the elements that are wider than the window, unless an ancestor scrolls them."""
    return browser.execute_script(
        """
        const scrolls = (element) => {
            for (let it = element; it && it !== document.body; it = it.parentElement) {
                if (getComputedStyle(it).overflowX !== "visible") return true;
            }
            return false;
        };
        const width = document.documentElement.clientWidth;
        return [...document.body.querySelectorAll("*")]
            .filter((it) => it.getBoundingClientRect().right > width + 1 && !scrolls(it))
            .map((it) => it.outerHTML.slice(0, 200));
        """
    )


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        page = pathlib.Path(cls.folder.name) / "page.html"
        arguments = ["report", "--quick", RECORDING, "--output", page]
        subprocess.run([COMMAND, *arguments], check=True, stdout=subprocess.DEVNULL)
        options = webdriver.ChromeOptions()
        for option in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
            options.add_argument(option)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        service = webdriver.ChromeService(shutil.which("chromedriver"))
        cls.browser = webdriver.Chrome(options=options, service=service)
        cls.browser.get(page.as_uri())

    @classmethod
    def tearDownClass(cls):
        cls.browser.quit()
        cls.folder.cleanup()

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def test_program_comes_before_designs(self):
        chapters = [heading.get_attribute("id") for heading in self.all("h2")]
        self.assertEqual(chapters[:3], ["program-0", "designs", "recordings"])
        answer = self.all(".verdict")[0].text
        self.assertRegex(answer, r"^[0-9.]+ % of the program's CPU time: [0-9.]+ % by ")
        self.assertLess(self.all(".verdict")[0].rect["y"], 400)

    def test_tables_and_plots_are_drawn(self):
        table = self.all("table")[0]
        self.assertIn("copy-on-write", table.text)
        columns = self.all(".timeline svg rect")
        heights = {float(column.get_attribute("height")) for column in columns}
        self.assertGreater(len(heights), 3, "the columns have the heights of their counts")
        self.assertGreater(self.all(".timeline svg")[0].rect["width"], 200)

    def test_choice_of_cause_hides_other_call_sites(self):
        sites = self.all(".site")
        shown = lambda: [site for site in sites if site.is_displayed()]
        self.assertEqual(len(shown()), len(sites))
        options = {label.text.strip(): label for label in self.all("fieldset label")}
        for cause in ("copy-on-write", "fork"):
            options[cause].click()
            left = shown()
            self.assertTrue(0 < len(left) < len(sites), cause)
            for site in left:
                self.assertIn(f" by {cause}: ", site.find_element(By.TAG_NAME, "summary").text)
        options["all"].click()
        self.assertEqual(len(shown()), len(sites))

    def test_call_site_opens_with_stack_and_advice(self):
        site = self.all(".site")[1]
        site.find_element(By.TAG_NAME, "summary").click()
        self.assertTrue(site.find_element(By.CSS_SELECTOR, ".advice").is_displayed())

    def test_flame_graph_fills_the_page_and_zooms(self):
        frame = self.all("iframe.flame")[0]
        width = frame.rect["width"]
        self.browser.switch_to.frame(frame)
        try:
            calls = self.all("#frames g")

            def named(name):
                title = lambda call: call.find_element(By.TAG_NAME, "title")
                text = lambda call: title(call).get_attribute("textContent")
                return next(call for call in calls if text(call).startswith(name + " ("))

            self.assertGreater(named("all").rect["width"], 0.9 * width)
            fork = named("__fork")
            before = fork.rect["width"]
            fork.find_element(By.TAG_NAME, "rect").click()
            self.assertGreater(fork.rect["width"], before, "a click enlarges a call")
            self.all("#unzoom")[0].click()
            self.assertAlmostEqual(fork.rect["width"], before, delta=2)
        finally:
            self.browser.switch_to.default_content()

    def test_nothing_overflows_narrow_windows(self):
        for details in self.all("details"):
            self.browser.execute_script("arguments[0].open = true", details)
        for width in WIDTHS:
            # A window has a smallest width; the size of the page itself has none.
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            self.assertEqual(self.browser.execute_script("return innerWidth"), width)
            self.assertEqual(overflows(self.browser), [], f"{width} pixels")
        self.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_console_has_no_errors(self):
        severe = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        self.assertEqual(severe, [])


if __name__ == "__main__":
    unittest.main()
