//! "Did you mean": the known name nearest to a mistyped one.

/// The clause to put behind a mistyped name: ` (did you mean "packages"?)`, or nothing if no name is near.
pub(crate) fn clause<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let nearest = known.into_iter().map(|name| (distance(typed, name), name)).min();
    match nearest {
        Some((steps, name)) if steps <= 1 + typed.chars().count() / 4 => format!(" (did you mean {name:?}?)"),
        _ => String::new(),
    }
}

/// Insertions, deletions and replacements that lead from one word to the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::{clause, distance};

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("same", "same"), 0);
    }

    #[test]
    fn a_near_name_is_suggested_and_a_far_one_is_not() {
        let known = ["debian", "environment", "imports"];
        assert_eq!(clause("enviroment", known), " (did you mean \"environment\"?)");
        assert_eq!(clause("colour", known), "");
    }
}
