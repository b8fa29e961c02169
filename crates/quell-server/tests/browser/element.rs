//! Elements of a page: found by selector, or by role and name as a screen reader finds them; used by mouse
//! and keyboard.

use std::cell::RefCell;

use quell_services::await_that;
use serde_json::{Value, json};

use crate::page::{PATIENCE, Page};

/// The most presses of the Tab key on the way to an element.
const MAX_TABS: usize = 150;

/// An element of a page.
pub(crate) struct Element<'p> {
    page: &'p Page,
    object: String,
}

/// A role and a name, as assistive technology has them.
pub(crate) type Named = (String, String);

impl Page {
    /// The first element of a selector, once it is there.
    pub(crate) fn css(&self, selector: &str) -> Element<'_> {
        let expression = format!("document.querySelector({})", json!(selector));
        self.wait(&expression);
        let found = self.call("Runtime.evaluate", json!({ "expression": expression }));
        let object = found["result"]["objectId"].as_str();
        Element { page: self, object: object.expect(selector).to_owned() }
    }

    /// The first element with this role and name, once it is there.
    pub(crate) fn role(&self, role: &str, name: &str) -> Element<'_> {
        let found = RefCell::new(None);
        let is_there = await_that(PATIENCE, || {
            found.replace(self.find(role, name));
            found.borrow().is_some()
        });
        let all = self.named(role).into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert!(is_there, "no {role} {name:?} at {}; there are {all:?}", self.path());
        Element { page: self, object: found.into_inner().unwrap_or_default() }
    }

    /// Whether an element with this role and name is there now.
    pub(crate) fn has(&self, role: &str, name: &str) -> bool {
        self.named(role).iter().any(|(found, _)| found == name)
    }

    fn find(&self, role: &str, name: &str) -> Option<String> {
        let node = self.named(role).into_iter().find(|(found, _)| found == name)?.1;
        let params = json!({ "backendNodeId": node });
        // It may be gone by now.
        let answer = self.browser.call(Some(&self.session), "DOM.resolveNode", &params).ok()?;
        Some(answer["object"]["objectId"].as_str()?.to_owned())
    }

    /// The names of all elements with a role, and their numbers.
    fn named(&self, role: &str) -> Vec<(String, Value)> {
        let call = |method: &str, params: Value| {
            self.browser.call(Some(&self.session), method, &params).unwrap_or_default()
        };
        let document = call("Runtime.evaluate", json!({ "expression": "document" }));
        let params = json!({ "objectId": document["result"]["objectId"], "role": role });
        let answer = call("Accessibility.queryAXTree", params);
        let nodes = answer["nodes"].as_array().cloned().unwrap_or_default();
        let shown = nodes.into_iter().filter(|node| node["ignored"] != true);
        shown.map(|node| (name(&node), node["backendDOMNodeId"].clone())).collect()
    }

    /// The role and the name of the element that has the focus.
    pub(crate) fn focused(&self) -> Named {
        let active =
            self.call("Runtime.evaluate", json!({ "expression": "document.activeElement" }));
        let params = json!({ "objectId": active["result"]["objectId"], "fetchRelatives": false });
        let answer = self.call("Accessibility.getPartialAXTree", params);
        let node = &answer["nodes"][0];
        (node["role"]["value"].as_str().unwrap_or_default().to_owned(), name(node))
    }

    /// Presses Tab until an element has the focus. Each element on the way has to show that it has it.
    pub(crate) fn tab_to(&self, role: &str, name: &str) {
        let mut passed = Vec::new();
        for _ in 0..MAX_TABS {
            self.press("Tab");
            let focused = self.focused();
            self.shows_focus(&focused);
            if focused.0 == role && focused.1 == name {
                return;
            }
            passed.push(focused);
        }
        panic!("Tab never comes to {role} {name:?}, but to {passed:?}");
    }

    fn shows_focus(&self, focused: &Named) {
        let shows = self.eval(
            "(() => {
                const one = document.activeElement;
                if (one === document.body) return true;
                const style = getComputedStyle(one);
                const outlined = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) > 0;
                return outlined || style.boxShadow !== 'none';
            })()",
        );
        assert_eq!(shows, true, "{focused:?} does not show that it has the focus");
    }

    /// Presses a key, such as `Tab`, `Shift+Tab` or `k`.
    pub(crate) fn press(&self, keys: &str) {
        let mut parts: Vec<&str> = keys.split('+').collect();
        let key = parts.pop().unwrap_or_default();
        let modifiers: u8 = parts.iter().map(|one| modifier(one)).sum();
        let (name, code, number, text) = key_of(key);
        let mut down = json!({
            "type": "keyDown", "key": name, "code": code, "windowsVirtualKeyCode": number,
            "modifiers": modifiers,
        });
        if !text.is_empty() && modifiers & !8 == 0 {
            down["text"] = json!(text);
        }
        let mut up = down.clone();
        up["type"] = json!("keyUp");
        self.call("Input.dispatchKeyEvent", down);
        self.call("Input.dispatchKeyEvent", up);
    }

    /// Types a text into the field that has the focus.
    pub(crate) fn write(&self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }
}

impl Element<'_> {
    /// Clicks it by mouse, once a person could: it has to be in sight, nothing may cover it, and it has to stay
    /// where it is when the mouse gets there.
    pub(crate) fn click(&self) {
        let mouse = |kind: &str, place: &Value, button: &str| {
            let params = json!({
                "type": kind, "x": place["x"], "y": place["y"], "button": button, "clickCount": 1,
            });
            self.page.call("Input.dispatchMouseEvent", params);
        };
        let place = RefCell::new(Value::Null);
        let is_free = await_that(PATIENCE, || {
            let there = self.call(PLACE);
            if there["x"].is_number() {
                mouse("mouseMoved", &there, "none");
            }
            let still = there["x"].is_number() && self.call(PLACE) == there;
            place.replace(there);
            still
        });
        let place = place.into_inner();
        assert!(is_free, "cannot be clicked: {place}");
        mouse("mousePressed", &place, "left");
        mouse("mouseReleased", &place, "left");
    }

    /// Replaces the text of a field.
    pub(crate) fn fill(&self, text: &str) {
        self.call("function () { this.focus(); this.select(); }");
        self.page.write(text);
    }

    /// Chooses an option of a list by its value.
    pub(crate) fn choose(&self, value: &str) {
        let list =
            "function () { this.focus(); return [...this.options].map((one) => one.value); }";
        let options = self.call(list);
        let at = options.as_array().unwrap().iter().position(|option| option == value);
        self.page.press("Home");
        for _ in 0..at.expect(value) {
            self.page.press("ArrowDown");
        }
        assert_eq!(self.call("function () { return this.value; }"), value);
    }

    /// Its text as a person sees it.
    pub(crate) fn text(&self) -> String {
        self.call("function () { return this.innerText; }").as_str().unwrap_or_default().to_owned()
    }

    /// What a function without arguments returns, whose `this` it is.
    pub(crate) fn call(&self, function: &str) -> Value {
        let params = json!({
            "objectId": self.object, "functionDeclaration": function, "returnByValue": true,
        });
        let mut answer = self.page.call("Runtime.callFunctionOn", params);
        assert!(answer["exceptionDetails"].is_null(), "{function}: {answer}");
        answer["result"]["value"].take()
    }
}

/// Where to click an element: its middle, if that is in sight and not covered.
const PLACE: &str = "function () {
    this.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
    const box = this.getClientRects()[0];
    if (!box || box.width === 0 || box.height === 0) return 'it has no size';
    if (this.disabled) return 'it is disabled';
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
    const top = document.elementFromPoint(x, y);
    if (!top) return 'it is out of sight';
    return this.contains(top) ? { x, y } : 'covered by ' + top.outerHTML.slice(0, 200);
}";

fn name(node: &Value) -> String {
    let name = node["name"]["value"].as_str().unwrap_or_default();
    name.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn modifier(name: &str) -> u8 {
    match name {
        "Alt" => 1,
        "Control" => 2,
        "Meta" => 4,
        "Shift" => 8,
        _ => panic!("no modifier {name:?}"),
    }
}

/// A key's name, code, number and text.
fn key_of(key: &str) -> (&str, String, u32, &str) {
    let number = match key {
        "Backspace" => 8,
        "Tab" => 9,
        "Enter" => return (key, key.to_owned(), 13, "\r"),
        "Escape" => 27,
        "Space" => return (" ", key.to_owned(), 32, " "),
        "End" => 35,
        "Home" => 36,
        "ArrowLeft" => 37,
        "ArrowUp" => 38,
        "ArrowRight" => 39,
        "ArrowDown" => 40,
        "Delete" => 46,
        _ => {
            assert_eq!(key.chars().count(), 1, "no key {key:?}");
            let upper = key.to_ascii_uppercase();
            let number = upper.chars().next().map_or(0, u32::from);
            return (key, format!("Key{upper}"), number, key);
        }
    };
    (key, key.to_owned(), number, "")
}
