use super::*;

fn named(names: &[&str]) -> Vec<String> {
    input_names("input_files", names).unwrap()
}

fn refused(name: &str) -> Problem {
    input_names("input_files", &[name]).unwrap_err().problem
}

fn path(text: &str) -> Result<String, Problem> {
    let parsed = RelativePath::parse("expected_outputs[0].path", text);
    parsed
        .map(|path| path.as_str().to_owned())
        .map_err(|error| error.problem)
}

#[test]
fn names_that_need_no_quoting_are_kept() {
    let safe = ["sales.csv", "Sales_2024-Q3.CSV", "README", "a.b.c", "1"];
    assert_eq!(named(&safe), safe);
}

#[test]
fn spaces_shell_characters_and_directories_are_written_out() {
    let names = [
        "Q3 sales (1).csv",
        "$(rm -rf ~).txt",
        "a;b|c&d.json",
        "reports/2024/East.csv",
        "C:\\Users\\me\\My Data.xlsx",
        "-rf",
        ".bashrc",
        "tab\tnew\nline.csv",
        "archive.tar.gz",
        "it's \"quoted\".md",
    ];
    let expected = [
        "q3_sales_1.csv",
        "rm_-rf.txt",
        "a_b_c_d.json",
        "East.csv",
        "my_data.xlsx",
        "rf",
        "bashrc",
        "tab_new_line.csv",
        "archive.tar.gz",
        "it_s_quoted.md",
    ];
    assert_eq!(named(&names), expected);
}

#[test]
fn letters_of_every_script_are_kept_and_combining_marks_dropped() {
    let names = [
        "売上 2024.csv",
        "Übersicht.csv",
        "Cafe\u{301} du Nord.txt",
        "отчёт №1.xlsx",
        "😀.csv",
    ];
    let expected = [
        "売上_2024.csv",
        "übersicht.csv",
        "cafe_du_nord.txt",
        "отчёт_1.xlsx",
        "input.csv",
    ];
    assert_eq!(named(&names), expected);
}

#[test]
fn names_with_nothing_usable_become_input() {
    assert_eq!(
        named(&["???", "(!)", "   ", "."]),
        ["input", "input_2", "input_3", "input_4"]
    );
}

#[test]
fn later_names_get_numbers_and_safe_ones_come_first() {
    let names = [
        "Q3 sales.csv",
        "q3_sales.csv",
        "q3_sales.csv",
        "a/q3_sales.csv",
        "q3_sales_2.csv",
    ];
    let expected = [
        "q3_sales_3.csv",
        "q3_sales.csv",
        "q3_sales_4.csv",
        "q3_sales_5.csv",
        "q3_sales_2.csv",
    ];
    assert_eq!(named(&names), expected);
}

#[test]
fn long_names_are_cut_between_characters_and_keep_their_ending() {
    let long = format!("{} x.csv", "売".repeat(100));
    let names = named(&[long.as_str(), long.as_str()]);
    assert_eq!(names[0], format!("{}.csv", "売".repeat(32)));
    assert_eq!(names[1], format!("{}_2.csv", "売".repeat(31)));
    assert!(names.iter().all(|name| name.len() <= INPUT_NAME_MAX));
}

#[test]
fn input_names_that_leave_the_directory_are_refused() {
    let names = ["", "a\0b", "/etc/passwd", "../x.csv", "a/../../x", ".."];
    let problems = names.map(refused);
    use Problem::{Absolute, Empty, Leaves, Nul};
    assert_eq!(problems, [Empty, Nul, Absolute, Leaves, Leaves, Leaves]);
}

#[test]
fn every_sanitised_name_is_a_plain_file_name() {
    // All of Unicode's first plane, in names of 50 characters.
    let all: Vec<char> = (1..0xffff_u32)
        .filter_map(char::from_u32)
        .filter(|c| *c != '/')
        .collect();
    let names: Vec<String> = all.chunks(50).map(|chunk| chunk.iter().collect()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let found = named(&names);
    let distinct: HashSet<&String> = found.iter().collect();
    assert_eq!(distinct.len(), names.len());
    let plain = |name: &&String| {
        let word = name
            .chars()
            .all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-'));
        word && !name.starts_with(['.', '-']) && name.len() <= INPUT_NAME_MAX && !name.is_empty()
    };
    assert_eq!(found.iter().find(|name| !plain(name)), None);
}

#[test]
fn paths_below_the_directory_are_accepted_in_one_spelling() {
    let good = [
        "summary.json",
        "./out/chart.png",
        "out//a//b.csv",
        "with space (1).txt",
        "..a/b..",
        "売上.csv",
        "...",
    ];
    let expected = [
        "summary.json",
        "out/chart.png",
        "out/a/b.csv",
        "with space (1).txt",
        "..a/b..",
        "売上.csv",
        "...",
    ];
    assert_eq!(good.map(|text| path(text).unwrap()), expected);
    assert_eq!(RelativePath::parse("path", "a/./b/c").unwrap().depth(), 3);
}

#[test]
fn paths_that_mean_something_else_are_refused() {
    use Problem::{Absolute, Control, Directory, Empty, Leaves, Nul, TooLong};
    let bad = [
        "",
        ".",
        "/etc/passwd",
        "..",
        "a/..",
        "../a",
        "a\0",
        "a\nb",
        "a\u{7f}",
        "a\u{85}b",
        "out/",
        "out/.",
    ];
    let problems = [
        Empty, Empty, Absolute, Leaves, Leaves, Leaves, Nul, Control, Control, Control, Directory, Directory,
    ];
    assert_eq!(bad.map(|text| path(text).unwrap_err()), problems);
    let lengths = [PART_MAX, PART_MAX + 1].map(|length| path(&"a".repeat(length)).err());
    assert_eq!(lengths, [None, Some(TooLong)]);
    let deep = [
        "a/".repeat(511) + "bb",
        "a/".repeat(511) + "bbb",
        "a/".repeat(100_000) + "b",
    ];
    assert_eq!(deep.map(|text| path(&text).err()), [None, Some(TooLong), Some(TooLong)]);
}

#[test]
fn errors_name_the_field_and_what_is_accepted() {
    let error = RelativePath::parse("expected_outputs[2].path", "../secret").unwrap_err();
    let text = "expected_outputs[2].path: \"../secret\" contains `..`: give a path below the working directory";
    assert_eq!(error.to_string(), text);
    let error = input_names("input_files", &["ok.csv", "a\0b"]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "input_files[1].name: \"a\\0b\" contains a NUL character"
    );
}
