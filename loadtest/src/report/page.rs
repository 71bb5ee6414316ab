//! What all pages have in common: one file, our own style and script in it, nothing from elsewhere, text that stays text.

use std::{
    fmt::Write as _,
    hash::{BuildHasher, RandomState},
};

use serde::Serialize;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// A text, with nothing in it that HTML would take for its own; good between tags and within quoted attributes.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Data for the script, as an element that is never run; no text in it can end the element.
pub(super) fn data(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
    // `<` stands only within strings in JSON, so this changes how it is written and not what it says.
    let json = json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029");
    format!("<script type=\"application/json\" id=\"data\">{json}</script>\n")
}

/// The whole page. `body` is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    // Nobody who writes a scenario can know it, so nothing but our own style and script is ever applied.
    let nonce = format!("{:016x}", RandomState::new().hash_one(body.len()));
    let policy = format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; base-uri 'none'; form-action 'none'"
    );
    let mut page = String::with_capacity(body.len() + STYLE.len() + SCRIPT.len() + 2_000);
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style nonce=\"{nonce}\">\n{STYLE}</style>\n</head>\n<body>\n{body}\
         <script nonce=\"{nonce}\">\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(title),
    );
    page
}

/// The switch between light and dark, at the top of each page; without the script the browser's choice holds.
pub(super) const THEME_SWITCH: &str = "<button type=\"button\" class=\"theme\" data-theme-switch hidden \
                                       aria-label=\"Switch between light and dark\">◐</button>\n";

/// `passed` or `failed`, as a word and a sign, never as a colour alone.
pub(super) fn pill(passed: usize, all: usize) -> String {
    match (all, all - passed) {
        (0, _) => "<span class=\"pill none\">nothing judged</span>".to_owned(),
        (1, 0) => "<span class=\"pill pass\">✓ passed</span>".to_owned(),
        (_, 0) => format!("<span class=\"pill pass\">✓ all {all} passed</span>"),
        (_, failed) => format!("<span class=\"pill fail\">✗ {failed} of {all} failed</span>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("<b a=\"1\" b='2'>&\x1b"), "&lt;b a=&quot;1&quot; b=&#39;2&#39;&gt;&amp;\u{fffd}");
        assert_eq!(escape("3 × 3 ÷ „ü“\n"), "3 × 3 ÷ „ü“\n");
    }

    #[test]
    fn data_cannot_end_its_element() {
        let text = data(&"</script><script>alert(1)</script><!--");
        assert_eq!(text.matches("</script>").count(), 1, "{text}");
        assert!(!text.contains("<!--"));
        let json = text.split_once('>').and_then(|(_, rest)| rest.rsplit_once("</script>")).expect("an element").0;
        assert_eq!(serde_json::from_str::<String>(json).expect("JSON"), "</script><script>alert(1)</script><!--");
    }

    #[test]
    fn a_page_needs_no_network_and_permits_none() {
        let page = page("<title>", "<p>body</p>");
        assert!(page.contains("default-src 'none'") && page.contains("<title>&lt;title&gt;</title>"));
        for other in ["http://", "https://", "src=", "@import", "url(", "style=\"", "onclick", "innerHTML", "eval("] {
            // The namespace of SVG is a name, not an address.
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(other), "{other}");
        }
    }
}
