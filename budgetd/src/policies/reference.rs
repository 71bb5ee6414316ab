//! Every field of a policy in words: what `budgetd policy fields` prints and `docs/policy-reference.md` is.
//!
//! Tests hold it to the code: no field is missing or unknown, each default is what is in force without it, and examples
//! within and beyond each range are accepted and refused.

use budget::policy::{FIELDS, Field};

const HEAD: &str = "# Policy reference

Printed by `budgetd policy fields`; a test holds this page and each default and range in it to the code.

A policy file has `[defaults]` and one table for each dependency, `[dependency.\"NAME\"]`. A name that ends in `*` stands for
all names that begin so and have no table of their own; the longest wins. A field that a table does not set comes from
`[defaults]`, field by field, and from the defaults below.

- **Rates** are written `\"500/s\"`, `\"270/min\"`, `\"100/h\"`, `\"1000/d\"`, with `k`, `M` or `G` after the number if you like,
  at most `1G` a period.
- **Durations** are written `\"200ms\"`, `\"60s\"`, `\"10m\"`, `\"2h\"`, `\"1d\"`.
- **Tokens** are whole numbers; `4_000_000` is the same as `4000000`.

A burst must not be too large for its rate to be computed exactly; the error says so. Unknown keys, values out of range and
anything written twice are errors that name line, key, value and rule.

| field | default | allowed | meaning |
|---|---|---|---|
";

/// The reference as Markdown.
#[must_use]
pub fn reference() -> String {
    let mut text = HEAD.to_owned();
    for Field { key, default, allowed, meaning, .. } in FIELDS {
        let default = if default.is_empty() { "–".to_owned() } else { format!("`{default}`") };
        text.push_str(&format!("| `{key}` | {default} | {allowed} | {meaning} |\n"));
    }
    text
}
