//! As much of HTML as the pages have: tags with quoted attributes, and texts between them.

/// A tag with its attributes, as a browser reads them.
#[derive(Clone, Debug)]
pub(super) struct Tag {
    pub(super) name: String,
    pub(super) attributes: Vec<(String, String)>,
}

impl Tag {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(given, _)| given == name);
        found.map(|(_, value)| value.as_str())
    }
}

/// A page, read.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pub(super) source: String,
    pub(super) tags: Vec<Tag>,
    /// The texts between tags.
    texts: Vec<String>,
}

impl Page {
    pub(super) fn read(source: &str) -> Self {
        let (mut tags, mut texts) = (Vec::new(), Vec::new());
        let mut rest = source;
        while let Some(at) = rest.find('<') {
            texts.push(unescaped(&rest[..at]));
            let (tag, after) = tag(&rest[at + 1..]);
            tags.extend(tag);
            rest = after;
        }
        texts.push(unescaped(rest));
        Page { source: source.to_owned(), tags, texts }
    }

    /// All texts, as people read them.
    pub(super) fn text(&self) -> String {
        let words = self.texts.iter().flat_map(|text| text.split_whitespace());
        words.collect::<Vec<_>>().join(" ")
    }

    pub(super) fn tags(&self, name: &str) -> impl Iterator<Item = &Tag> {
        self.tags.iter().filter(move |tag| tag.name == name)
    }

    /// The tag with an id.
    pub(super) fn by_id(&self, id: &str) -> Option<&Tag> {
        self.tags.iter().find(|tag| tag.get("id") == Some(id))
    }

    /// Whether there is a button or a link that does this.
    pub(super) fn does(&self, what: &str) -> bool {
        self.tags.iter().any(|tag| tag.get("data-do") == Some(what))
    }

    /// Which scopes the page says are missing.
    pub(super) fn lacks(&self) -> Vec<&str> {
        self.tags.iter().filter_map(|tag| tag.get("data-needs")).collect()
    }

    /// The value of a field of a form.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let found = self.tags("input").find(|tag| tag.get("name") == Some(name));
        found.and_then(|tag| tag.get("value"))
    }

    /// Where its links lead.
    pub(super) fn links(&self) -> impl Iterator<Item = &str> {
        self.tags("a").filter_map(|tag| tag.get("href"))
    }
}

/// Reads a tag, and what comes after it.
fn tag(text: &str) -> (Option<Tag>, &str) {
    let end = text.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(text.len());
    let name = text[..end].to_ascii_lowercase();
    let (mut rest, mut attributes) = (&text[end..], Vec::new());
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix('>') {
            return (Some(Tag { name, attributes }), after);
        }
        if rest.is_empty() {
            return (None, rest);
        }
        let end = rest.find(|c: char| c.is_whitespace() || c == '=' || c == '>');
        let end = end.unwrap_or(rest.len());
        let key = rest[..end].to_ascii_lowercase();
        rest = &rest[end..];
        let mut value = String::new();
        if let Some(after) = rest.strip_prefix("=\"") {
            let end = after.find('"').unwrap_or(after.len());
            value = unescaped(&after[..end]);
            rest = after.get(end + 1..).unwrap_or_default();
        } else if let Some(after) = rest.strip_prefix('=') {
            let end = after.find(|c: char| c.is_whitespace() || c == '>').unwrap_or(after.len());
            value = unescaped(&after[..end]);
            rest = &after[end..];
        }
        attributes.push((key, value));
    }
}

fn unescaped(text: &str) -> String {
    let pairs = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#x27;", "'"),
        ("&#x2f;", "/"),
        ("&amp;", "&"),
    ];
    pairs.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

#[test]
fn pages_are_read_as_browsers_do() {
    let page = Page::read("<p class=\"a &quot;b\" x=1 y>a &lt; b<br></p>");
    assert_eq!(page.text(), "a < b");
    let tag = page.tags("p").next().unwrap();
    assert_eq!(
        (tag.get("class"), tag.get("x"), tag.get("y")),
        (Some("a \"b"), Some("1"), Some(""))
    );
    assert_eq!(page.tags.len(), 3);
}
