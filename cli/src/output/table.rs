//! Tables for people.

use super::style::Style;

/// One cell: its text, and what colour does to it after the width is known.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    paint: fn(Style, &str) -> String,
}

impl Cell {
    /// A cell in the usual colour. The text must be escaped already if a guest had a hand in it.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            paint: |_, text| text.to_owned(),
        }
    }

    /// A cell in a colour: `Cell::painted("ok", Style::green)`.
    pub(crate) fn painted(text: impl Into<String>, paint: fn(Style, &str) -> String) -> Self {
        Self {
            text: text.into(),
            paint,
        }
    }
}

/// Lays out rows below a heading; columns are two spaces apart and as wide as their longest cell.
///
/// Columns that are empty in every row are left out.
pub(crate) fn render(heading: &[&str], rows: &[Vec<Cell>], style: Style) -> String {
    let used: Vec<usize> = (0..heading.len())
        .filter(|&column| rows.iter().any(|row| !cell(row, column).is_empty()))
        .collect();
    let widths: Vec<usize> = used
        .iter()
        .map(|&column| {
            rows.iter()
                .map(|row| width(cell(row, column)))
                .max()
                .unwrap_or(0)
                .max(width(heading[column]))
        })
        .collect();
    let title: Vec<Cell> = heading.iter().map(|name| Cell::painted(*name, Style::dim)).collect();
    std::iter::once(&title)
        .chain(rows)
        .map(|row| line(row, &used, &widths, style))
        .collect()
}

fn line(row: &[Cell], used: &[usize], widths: &[usize], style: Style) -> String {
    let mut line = String::new();
    let mut gap = 0;
    for (&column, &full) in used.iter().zip(widths) {
        let Some(cell) = row.get(column) else { continue };
        if !cell.text.is_empty() {
            line.push_str(&" ".repeat(gap));
            line.push_str(&(cell.paint)(style, &cell.text));
            gap = 0;
        }
        gap += full - width(&cell.text) + 2;
    }
    line.push('\n');
    line
}

fn cell(row: &[Cell], column: usize) -> &str {
    row.get(column).map_or("", |cell| &cell.text)
}

/// Characters, not columns of the terminal: close enough for names, and wrong only in looks.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(texts: &[&str]) -> Vec<Cell> {
        texts.iter().map(|text| Cell::new(*text)).collect()
    }

    #[test]
    fn columns_are_aligned_and_lines_have_no_blank_end() {
        let rows = [cells(&["a", "12", ""]), cells(&["longer", "3", "note"])];
        assert_eq!(
            render(&["name", "size", "why"], &rows, Style::PLAIN),
            "name    size  why\na       12\nlonger  3     note\n"
        );
    }

    #[test]
    fn a_column_without_a_single_entry_is_left_out() {
        let rows = [cells(&["a", "", "x"])];
        assert_eq!(
            render(&["one", "two", "three"], &rows, Style::PLAIN),
            "one  three\na    x\n"
        );
    }

    #[test]
    fn colour_does_not_disturb_the_columns() {
        let rows = [vec![Cell::painted("ok", Style::green), Cell::new("x")]];
        assert_eq!(
            render(&["verdict", "what"], &rows, Style::COLORED),
            "\u{1b}[2mverdict\u{1b}[0m  \u{1b}[2mwhat\u{1b}[0m\n\u{1b}[32mok\u{1b}[0m       x\n"
        );
    }
}
