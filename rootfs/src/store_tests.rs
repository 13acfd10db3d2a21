use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::{Image, Record, Store, write_json};
use crate::progress::Progress;

fn image(name: &str, digit: &str) -> Image {
    Image {
        name: name.to_owned(),
        hash: digit.repeat(64),
        interpreter: None,
        environment: BTreeMap::new(),
        packages: Vec::new(),
        warm_up: None,
        imports: Vec::new(),
    }
}

fn adopt(store: &Store, image: &Image, content: &str) -> PathBuf {
    let folder = store.unfinished("try");
    fs::create_dir_all(folder.join("tree")).unwrap();
    fs::write(folder.join("tree/file"), content).unwrap();
    write_json(&folder.join("image.json"), image).unwrap();
    let record = Record {
        inputs: "i".to_owned(),
        builder: "b".to_owned(),
        bytes: 7,
    };
    write_json(&folder.join("build.json"), &record).unwrap();
    store.adopt(&folder, image).unwrap()
}

fn ids(store: &Store) -> Vec<(String, bool)> {
    store
        .list()
        .unwrap()
        .iter()
        .map(|stored| (stored.image.id(), stored.current))
        .collect()
}

#[test]
fn a_store_that_does_not_exist_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    assert!(Store::new(folder.path().join("none")).list().unwrap().is_empty());
}

#[test]
fn the_name_leads_to_the_image_adopted_last() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    adopt(&store, &image("data", "a"), "1");
    adopt(&store, &image("data", "b"), "2");
    assert_eq!(
        ids(&store),
        [
            ("data@bbbbbbbbbbbb".to_owned(), true),
            ("data@aaaaaaaaaaaa".to_owned(), false)
        ]
    );
    assert_eq!(
        fs::read_link(folder.path().join("data")).unwrap().to_str(),
        Some("data-bbbbbbbbbbbb")
    );
    assert_eq!(store.find("data").unwrap().image, image("data", "b"));
    assert_eq!(store.find("data@aaaaaaaaaaaa").unwrap().image, image("data", "a"));
}

#[test]
fn the_same_tree_can_be_adopted_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    adopt(&store, &image("data", "a"), "1");
    let place = adopt(&store, &image("data", "a"), "1");
    assert_eq!(fs::read_to_string(place.join("tree/file")).unwrap(), "1");
    assert_eq!(ids(&store), [("data@aaaaaaaaaaaa".to_owned(), true)]);
}

#[test]
fn removing_a_name_removes_all_its_images_and_the_link() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    adopt(&store, &image("data", "a"), "1");
    adopt(&store, &image("data", "b"), "2");
    adopt(&store, &image("base", "c"), "3");
    assert_eq!(store.remove("data", &Progress::quiet()).unwrap().len(), 2);
    assert_eq!(ids(&store), [("base@cccccccccccc".to_owned(), true)]);
    assert!(fs::symlink_metadata(folder.path().join("data")).is_err());
}

#[test]
fn an_unknown_image_is_named_with_those_that_exist() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    adopt(&store, &image("data", "a"), "1");
    let expected = "unknown image \"dada\"; there are: data@aaaaaaaaaaaa";
    assert_eq!(store.find("dada").unwrap_err().to_string(), expected);
    assert_eq!(
        store.remove("dada", &Progress::quiet()).unwrap_err().to_string(),
        expected
    );
}

#[test]
fn what_an_interrupted_build_left_is_neither_listed_nor_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    fs::create_dir_all(store.unfinished("data").join("tree")).unwrap();
    assert!(store.list().unwrap().is_empty());
    store.sweep().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn image_json_reads_back_as_it_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::new(folder.path());
    let image = Image {
        interpreter: Some("/usr/bin/python3".to_owned()),
        environment: BTreeMap::from([("LANG".to_owned(), "C.UTF-8".to_owned())]),
        warm_up: Some("x = 1".to_owned()),
        imports: vec!["numpy".to_owned()],
        ..image("data", "a")
    };
    adopt(&store, &image, "1");
    assert_eq!(store.find("data").unwrap().image, image);
}
