//! A page of a browser, as a person meets it: with a size, a theme and a keyboard.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use quell_services::{Chromium, await_that};
use serde_json::{Value, json};

use crate::faults::Faults;

/// How long a condition may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The width of a desktop and of a small phone, in pixels.
pub(crate) const WIDTHS: [u32; 2] = [1280, 360];
const HEIGHT: u32 = 800;

/// The colours that a person prefers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Theme {
    Light,
    Dark,
}

impl Theme {
    pub(crate) const ALL: [Theme; 2] = [Theme::Light, Theme::Dark];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Theme::Light => "light",
            Theme::Dark => "dark",
        }
    }
}

/// What a page can find out about its reader.
#[derive(Clone, Copy, Debug)]
struct Media {
    theme: Theme,
    calm: bool,
    print: bool,
}

/// A page with cookies of its own. Its end fails the test where the page had faults.
pub(crate) struct Page {
    pub(crate) browser: Arc<Chromium>,
    pub(crate) session: String,
    target: String,
    media: RefCell<Media>,
    faults: RefCell<Faults>,
}

impl Page {
    /// Opens an empty page, as wide as a desktop.
    pub(crate) fn open(browser: &Arc<Chromium>) -> Page {
        let ask = |method: &str, params: Value| browser.call(None, method, &params).unwrap();
        let context = ask("Target.createBrowserContext", json!({}))["browserContextId"].take();
        let blank = json!({ "url": "about:blank", "browserContextId": context });
        let target = ask("Target.createTarget", blank)["targetId"].as_str().unwrap().to_owned();
        let attach = json!({ "targetId": target, "flatten": true });
        let session =
            ask("Target.attachToTarget", attach)["sessionId"].as_str().unwrap().to_owned();
        let media = RefCell::new(Media { theme: Theme::Light, calm: false, print: false });
        let browser = Arc::clone(browser);
        let page = Page { browser, session, target, media, faults: RefCell::default() };
        for domain in ["Page", "Runtime", "Log", "Audits"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        page.size(WIDTHS[0]);
        page.set_media(|_| {});
        page
    }

    pub(crate) fn call(&self, method: &str, params: Value) -> Value {
        self.try_call(method, params).unwrap()
    }

    fn try_call(&self, method: &str, params: Value) -> anyhow::Result<Value> {
        self.browser.call(Some(&self.session), method, &params)
    }

    /// Goes to an address, and waits until it is loaded.
    pub(crate) fn goto(&self, url: &str) {
        let answer = self.call("Page.navigate", json!({ "url": url }));
        assert!(answer["errorText"].is_null(), "{url}: {answer}");
        self.wait("document.readyState === 'complete'");
    }

    /// Does what leads to another page, or to this one again, and waits until that is loaded.
    pub(crate) fn follow(&self, act: impl FnOnce()) {
        self.eval("window.isPast = true");
        act();
        self.wait("!window.isPast && document.readyState === 'complete'");
    }

    /// The value of an expression.
    pub(crate) fn eval(&self, expression: &str) -> Value {
        self.try_eval(expression).unwrap_or_else(|error| panic!("{expression}: {error:#}"))
    }

    fn try_eval(&self, expression: &str) -> anyhow::Result<Value> {
        let params = json!({
            "expression": expression, "returnByValue": true, "awaitPromise": true,
        });
        let mut answer = self.try_call("Runtime.evaluate", params)?;
        anyhow::ensure!(answer["exceptionDetails"].is_null(), "{}", answer["exceptionDetails"]);
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression is true. It may fail meanwhile, as it does while another page loads.
    pub(crate) fn wait(&self, expression: &str) {
        let mut last = String::new();
        let is_true = || match self.try_eval(&format!("Boolean({expression})")) {
            Ok(value) => {
                last = value.to_string();
                value == true
            }
            Err(error) => {
                last = format!("{error:#}");
                false
            }
        };
        if !await_that(PATIENCE, is_true) {
            let (place, text) = (self.path(), self.text());
            panic!("never: {expression} ({last}) at {place}:\n{text}");
        }
    }

    /// Waits until the page has this text.
    pub(crate) fn wait_for_text(&self, text: &str) {
        self.wait(&format!("document.body.innerText.includes({})", json!(text)));
    }

    /// The text that a person sees.
    pub(crate) fn text(&self) -> String {
        let text = self.eval("document.body ? document.body.innerText : ''");
        text.as_str().unwrap_or_default().to_owned()
    }

    /// The path and the query of its address.
    pub(crate) fn path(&self) -> String {
        self.eval("location.pathname + location.search").as_str().unwrap_or_default().to_owned()
    }

    /// Makes the window this wide. Less than 600 pixels are a phone, with touch.
    pub(crate) fn size(&self, width: u32) {
        let size = json!({
            "width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    pub(crate) fn theme(&self, theme: Theme) {
        self.set_media(|media| media.theme = theme);
    }

    /// Whether the reader prefers reduced motion.
    pub(crate) fn calm(&self, calm: bool) {
        self.set_media(|media| media.calm = calm);
    }

    /// Whether the page is as on paper.
    pub(crate) fn print(&self, print: bool) {
        self.set_media(|media| media.print = print);
    }

    fn set_media(&self, change: impl FnOnce(&mut Media)) {
        let mut media = self.media.borrow_mut();
        change(&mut media);
        let motion = if media.calm { "reduce" } else { "no-preference" };
        let features = json!([
            { "name": "prefers-color-scheme", "value": media.theme.name() },
            { "name": "prefers-reduced-motion", "value": motion },
        ]);
        let kind = if media.print { "print" } else { "screen" };
        self.call("Emulation.setEmulatedMedia", json!({ "media": kind, "features": features }));
    }

    /// Whether scripts run.
    pub(crate) fn scripts(&self, run: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": !run }));
    }

    /// What makes the page wider than the window, if it is.
    pub(crate) fn sideways_scroll(&self) -> Option<String> {
        let wide = self.eval(
            "(() => {
                const page = document.documentElement;
                if (page.scrollWidth <= page.clientWidth) return null;
                const wide = [...document.querySelectorAll('body *')].filter(
                    (one) => one.getBoundingClientRect().right > page.clientWidth + 1);
                return page.scrollWidth + ' > ' + page.clientWidth + ': ' + wide.slice(0, 5)
                    .map((one) => one.outerHTML.slice(0, 120)).join('\\n');
            })()",
        );
        Some(format!("{} is too wide: {}", self.path(), wide.as_str()?))
    }

    /// Leaves a picture of the whole page in `target/screenshots`.
    pub(crate) fn screenshot(&self, name: &str) {
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].take();
        // A picture of a very long page is of no use.
        let height = size["height"].as_f64().unwrap_or_default().min(4_000.0);
        let clip = json!({
            "x": 0, "y": 0, "width": size["width"], "height": height, "scale": 1,
        });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.call("Page.captureScreenshot", params);
        let bytes = BASE64_STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("screenshots");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(format!("{name}.png")), bytes).unwrap();
    }

    /// Says that the page will have a fault with this text, and that it is meant.
    pub(crate) fn expect(&self, text: &str) {
        self.faults.borrow_mut().expect(text);
    }

    /// Says that the page may have a fault with this text, by whether it asks for something in time.
    pub(crate) fn tolerate(&self, text: &str) {
        self.faults.borrow_mut().tolerate(text);
    }

    /// Forgets the faults that have come.
    pub(crate) fn forgive(&self) {
        let _forgotten = self.faults.take();
    }

    /// Fails where the page has had faults that were not expected.
    pub(crate) fn has_no_faults(&self) {
        // A call, so that the events before its answer have come.
        self.eval("1");
        let mut faults = self.faults.borrow_mut();
        faults.add(&self.browser.take_events(&self.session));
        faults.check();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.has_no_faults();
            self.faults.borrow().check_expected();
        }
        let close = json!({ "targetId": self.target });
        let _gone = self.browser.call(None, "Target.closeTarget", &close);
    }
}
