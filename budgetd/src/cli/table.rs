//! Text in columns.

use std::io::{self, Write};

use budget::{
    ids::PolicyVersion,
    units::{Decimal, format_duration_ms},
};
use serde_json::{Value, json};

/// Rows of cells; every column is as wide as its widest cell.
#[derive(Debug, Default)]
pub(super) struct Table(Vec<Vec<String>>);

// === impl Table ===

impl Table {
    pub(super) fn row<C: Into<String>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.0.push(cells.into_iter().map(Into::into).collect());
    }

    pub(super) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.0 {
            for (column, cell) in row.iter().enumerate() {
                let width = cell.chars().count();
                match widths.get_mut(column) {
                    Some(widest) => *widest = width.max(*widest),
                    None => widths.push(width),
                }
            }
        }
        for row in &self.0 {
            let cells: Vec<_> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(out, "{}", cells.join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// One JSON document on one line.
pub(super) fn print_json(out: &mut impl Write, value: &Value) -> io::Result<()> {
    writeln!(out, "{value}")
}

pub(super) fn version_json(version: PolicyVersion) -> Value {
    json!({ "number": version.number, "id": version.id })
}

/// Tokens for people: thousandths, rounded down.
pub(super) fn tokens(micros: i64) -> String {
    Decimal(micros.div_euclid(1000).saturating_mul(1000)).to_string()
}

pub(super) fn yes_no(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// A duration for people.
pub(super) fn duration(ms: i64) -> String {
    format_duration_ms(ms)
}
