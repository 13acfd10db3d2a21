use std::fs;
use std::path::{Path, PathBuf};

use super::{Template, shipped};

const SMALL: &str = "name = \"small\"\ndescription = \"d\"\nsuite = \"bookworm\"\n";

fn folder_with(name: &str, text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), text).unwrap();
    folder
}

fn error_of(text: &str) -> String {
    let folder = folder_with("t.toml", text);
    let error = Template::read(&folder.path().join("t.toml")).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("templates")
}

#[test]
fn the_shipped_templates_are_valid() {
    assert_eq!(shipped(&[templates()]), ["base", "data"]);
    assert_eq!(Template::find("base", &[templates()]).unwrap().name, "base");
    assert_eq!(Template::find("data", &[templates()]).unwrap().name, "data");
}

#[test]
fn a_template_has_what_it_extends() {
    let base = Template::find("base", &[templates()]).unwrap();
    let data = Template::find("data", &[templates()]).unwrap();
    assert_eq!(data.debian, base.debian);
    assert_eq!(data.python.version, base.python.version);
    assert_eq!(data.environment["LANG"], "C.UTF-8");
    assert_eq!(data.environment["MPLBACKEND"], "Agg");
    assert_eq!(data.files, base.files);
}

#[test]
fn a_template_is_found_by_path_too() {
    let file = templates().join("base.toml");
    assert_eq!(Template::find(file.to_str().unwrap(), &[]).unwrap().name, "base");
}

#[test]
fn an_unknown_template_is_named_with_those_that_exist() {
    let error = Template::find("dat", &[templates()]).unwrap_err().to_string();
    assert_eq!(
        error,
        "unknown template \"dat\" (did you mean \"data\"?); there are: base, data"
    );
}

#[test]
fn an_unknown_key_is_an_error_with_a_suggestion() {
    let error = error_of(&format!("{SMALL}enviroment = 1\n"));
    assert!(
        error.starts_with("t.toml: unknown key enviroment (did you mean \"environment\"?); there are: name,"),
        "{error}"
    );
    let error = error_of(&format!("{SMALL}[python]\nlocks = \"x\"\n"));
    assert!(
        error.starts_with("t.toml: unknown key python.locks (did you mean \"lock\"?)"),
        "{error}"
    );
}

#[test]
fn a_missing_key_is_named() {
    assert_eq!(error_of("name = \"small\"\n"), "t.toml: missing field `description`");
}

#[test]
fn a_requirement_that_is_not_pinned_is_refused() {
    let error = error_of(&format!(
        "{SMALL}[python]\nversion = \"3.11\"\nlock = \"l\"\nrequirements = [\"numpy>=2\"]\n"
    ));
    assert_eq!(
        error,
        "t.toml: python.requirements: \"numpy>=2\" is not pinned: expected name==version"
    );
}

#[test]
fn a_name_that_is_an_option_of_a_program_is_refused() {
    let error = error_of(&format!("{SMALL}debian = [\"--purge\"]\n"));
    assert_eq!(error, "t.toml: debian: \"--purge\" is not the name of a Debian package");
}

#[test]
fn a_file_outside_the_tree_is_refused() {
    let error = error_of(&format!("{SMALL}[files]\n\"/etc/../../x\" = \"x\"\n"));
    assert_eq!(
        error,
        "t.toml: files: \"/etc/../../x\": expected an absolute path without \"..\""
    );
}
