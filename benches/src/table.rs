//! The table for people.

use crate::report::{Report, Row};

const HEADINGS: [&str; 9] = [
    "",
    "unit",
    "p50",
    "p95",
    "mean",
    "peer",
    "p50",
    "times better",
    "asked for",
];

/// The rows as lines, with what was left out.
pub(crate) fn table(report: &Report, left_out: &[String]) -> String {
    let mut lines: Vec<[String; 9]> = vec![HEADINGS.map(str::to_owned)];
    let mut last = "";
    for row in &report.rows {
        let mut line = line(row);
        if row.name == last {
            line[..5].fill_with(String::new);
        }
        last = &row.name;
        lines.push(line);
    }
    let mut widths = [0; 9];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells = line.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            // Words to the left, numbers to the right.
            if matches!(column, 0 | 1 | 5) {
                format!("{cell:width$}")
            } else {
                format!("{cell:>width$}")
            }
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    for what in left_out {
        text.push_str(&format!("left out: {what}\n"));
    }
    text
}

fn line(row: &Row) -> [String; 9] {
    let asked = match (row.least, row.met) {
        (Some(least), Some(met)) => {
            let verdict = if met { "met" } else { "NOT met" };
            let of = match row.of {
                Some("ratio") => "x",
                Some("ratio of p95") => "x of p95",
                Some("p95") => " of p95",
                _ => "",
            };
            format!("{least}{of}: {verdict}")
        }
        _ => String::new(),
    };
    [
        row.name.clone(),
        row.unit.to_owned(),
        number(row.ours.p50),
        number(row.ours.p95),
        number(row.mean),
        row.peer.as_ref().map_or_else(String::new, |peer| peer.name.clone()),
        row.peer
            .as_ref()
            .map_or_else(String::new, |peer| number(peer.figures.p50)),
        row.ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
        asked,
    ]
}

fn number(value: f64) -> String {
    let digits = match value.abs() {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{value:.digits$}")
}
