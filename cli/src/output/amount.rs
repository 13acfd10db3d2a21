//! Sizes and times as people read them: rounded, with a blank before the unit.

/// Writes a number of bytes: `512 B`, `8.2 K`, `92 M`.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match UNITS.iter().find(|(factor, _)| bytes >= *factor) {
        Some((factor, unit)) => format!("{} {unit}", decimal(bytes.into(), (*factor).into())),
        None => format!("{bytes} B"),
    }
}

/// Writes a number of milliseconds: `840 ms`, `1.8 s`, `5 min`.
pub(crate) fn span(millis: u128) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..120_000 => format!("{} s", decimal(millis, 1_000)),
        _ => format!("{} min", decimal(millis, 60_000)),
    }
}

/// Divides with one digit after the point as long as the number is small, and none where it would be zero.
fn decimal(value: u128, factor: u128) -> String {
    let tenths = (value * 10 + factor / 2) / factor;
    if tenths >= 1_000 || tenths.is_multiple_of(10) {
        return ((tenths + 5) / 10).to_string();
    }
    format!("{}.{}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_one_digit() {
        let sizes = [0, 1023, 1024, 84_231, 96_468_992, 536_870_912, 5 << 30];
        assert_eq!(
            sizes.map(size),
            ["0 B", "1023 B", "1 K", "82.3 K", "92 M", "512 M", "5 G"]
        );
    }

    #[test]
    fn spans_change_their_unit() {
        let spans = [0, 999, 1_000, 1_840, 30_012, 119_999, 120_000, 3_600_000];
        assert_eq!(
            spans.map(span),
            ["0 ms", "999 ms", "1 s", "1.8 s", "30 s", "120 s", "2 min", "60 min"]
        );
    }
}
